"""Whether a lane misses its own target for the first token so often that its answers are clamped."""

import math
from dataclasses import dataclass

from data.errors import InputError


@dataclass(frozen=True, slots=True)
class BreachRules:
    """When a breach of a lane's target begins and ends.

    Attributes:
        memory_s: time constant over which settlements are forgotten; a breach outlasts the last sign of it by
            as long.
        least_requests: settlements, of those remembered, without which nothing is said.
        begins_over: share of misses over which a breach begins; 1 is never.
        ends_under: share of misses under which it is over.

    """

    memory_s: float = 30.0
    least_requests: float = 10.0
    begins_over: float = 0.25
    ends_under: float = 0.10

    def __post_init__(self) -> None:
        for name in ("memory_s", "least_requests"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(
                    f"Rule breach.{name} must be over 0 and finite; got {getattr(self, name)!r}."
                )
        if not 0 < self.begins_over <= 1:
            raise InputError(f"Rule breach.begins_over must be in (0, 1]; got {self.begins_over!r}.")
        if not 0 < self.ends_under <= self.begins_over:
            raise InputError(
                f"Rule breach.ends_under must be over 0 and not over begins_over ({self.begins_over!r}); "
                f"got {self.ends_under!r}."
            )


class Breach:
    """Breach of one lane's target; it stands until ``until_s``.

    >>> breach = Breach(BreachRules())
    >>> for second in range(20):
    ...     breach.note(missed=second % 2 == 0, now_s=float(second))
    >>> breach.until_s
    49.0
    """

    __slots__ = ("_at_s", "_missed", "_noted", "_rules", "until_s")

    def __init__(self, rules: BreachRules) -> None:
        self.until_s = -math.inf
        self._rules = rules
        self._noted = self._missed = self._at_s = 0.0

    def note(self, *, missed: bool, now_s: float) -> None:
        """Note a settlement that told a time to first token."""
        rules = self._rules
        left = math.exp((self._at_s - now_s) / rules.memory_s)
        self._at_s = now_s
        self._noted = self._noted * left + 1.0
        self._missed = self._missed * left + missed
        if self._noted < rules.least_requests:
            return
        share = self._missed / self._noted
        if share > rules.begins_over or (now_s < self.until_s and share >= rules.ends_under):
            self.until_s = now_s + rules.memory_s
        elif share < rules.ends_under:
            self.until_s = -math.inf
