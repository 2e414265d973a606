"""How fast a lane gives tokens back, measured from what was settled."""

import math


class Drain:
    """Tokens per second that leave a lane, averaged with exponential weights over its busy time.

    A lane that holds little gives back little, whatever the engine could do, so only time with at least
    ``busy_tokens`` held counts, and a quiet lane keeps its last rate. The first rate is the engine model's.
    A busy lane that nothing leaves comes down to 0.

    >>> drain = Drain(prior_tokens_per_s=1_000.0, memory_s=10.0, busy_tokens=500)
    >>> for second in range(1, 101):
    ...     drain.change(5_000, now_s=float(second), freed_tokens=300)
    >>> round(drain.rate(5_000, 100.0)), round(drain.rate(5_000, 200.0)), round(drain.rate(0, 200.0))
    (315, 0, 315)
    """

    __slots__ = ("_at_s", "_busy_tokens", "_memory_s", "_rate")

    def __init__(self, prior_tokens_per_s: float, memory_s: float, busy_tokens: int) -> None:
        self._rate = prior_tokens_per_s
        self._memory_s = memory_s
        self._busy_tokens = busy_tokens
        self._at_s = 0.0

    def rate(self, held_tokens: int, now_s: float) -> float:
        """Tokens per second at ``now_s``, when ``held_tokens`` were held since the last change."""
        if held_tokens < self._busy_tokens or now_s <= self._at_s:
            return self._rate
        return self._rate * math.exp((self._at_s - now_s) / self._memory_s)

    def change(self, held_tokens: int, now_s: float, freed_tokens: int = 0) -> None:
        """Note that ``held_tokens`` change at ``now_s``: more is taken, or ``freed_tokens`` leave."""
        if held_tokens >= self._busy_tokens:
            rate = self._rate
            if now_s > self._at_s:
                rate *= math.exp((self._at_s - now_s) / self._memory_s)
            self._rate = rate + freed_tokens / self._memory_s
        self._at_s = now_s
