"""Whether a lane misses its own target for the first token so often that its answers are clamped."""

import math

MEMORY_S = 30.0
"""Time constant over which settlements are forgotten, and how long a breach outlasts the last sign of it."""
LEAST = 10.0
"""Settlements, of those remembered, without which nothing is said."""
BEGINS_OVER, ENDS_UNDER = 0.25, 0.10
"""Share of misses at which a breach begins, and under which it is over."""


class Breach:
    """Breach of one lane's target; it stands until ``until_s``.

    >>> breach = Breach()
    >>> for second in range(20):
    ...     breach.note(missed=second % 2 == 0, now_s=float(second))
    >>> breach.until_s
    49.0
    """

    __slots__ = ("_at_s", "_missed", "_noted", "until_s")

    def __init__(self) -> None:
        self.until_s = -math.inf
        self._noted = self._missed = self._at_s = 0.0

    def note(self, *, missed: bool, now_s: float) -> None:
        """Note a settlement that told a time to first token."""
        left = math.exp((self._at_s - now_s) / MEMORY_S)
        self._at_s = now_s
        self._noted = self._noted * left + 1.0
        self._missed = self._missed * left + missed
        if self._noted < LEAST:
            return
        share = self._missed / self._noted
        if share > BEGINS_OVER or (now_s < self.until_s and share >= ENDS_UNDER):
            self.until_s = now_s + MEMORY_S
        elif share < ENDS_UNDER:
            self.until_s = -math.inf
