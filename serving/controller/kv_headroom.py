"""How much of the KV budget can really be used: less after failures for want of blocks, then slowly more.

Fragmentation and other users of the memory leave less room than the number of blocks says. The engine tells
by failing: it preempts requests, or can't allocate blocks. So the usable share follows TCP's rule for a path
whose room nobody knows, additive increase and multiplicative decrease (Chiu and Jain, 1989).
"""

import math
from dataclasses import dataclass

from data.errors import InputError


@dataclass(frozen=True, slots=True)
class HeadroomRules:
    """How the usable share of the KV budget moves.

    Attributes:
        floor: the share never falls below this.
        shrink: factor on the share when the engine has failed for want of blocks.
        shrink_every_s: it shrinks at most once in this time: requests on their way out still hold blocks.
        recover_per_s: share that comes back in a second known to be free of failures.
        vouched_s: a reading speaks for at most this long before it.
        silence_s: after this long without a reading nothing is known, and the whole budget counts again.

    """

    floor: float = 0.5
    shrink: float = 0.9
    shrink_every_s: float = 5.0
    recover_per_s: float = 0.001
    vouched_s: float = 15.0
    silence_s: float = 600.0

    def __post_init__(self) -> None:
        for name in ("floor", "shrink"):
            if not 0 < getattr(self, name) <= 1:
                raise InputError(f"Rule headroom.{name} must be in (0, 1]; got {getattr(self, name)!r}.")
        for name in ("shrink_every_s", "recover_per_s", "vouched_s", "silence_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(
                    f"Rule headroom.{name} must be over 0 and finite; got {getattr(self, name)!r}."
                )


class KvHeadroom:
    """Usable share of the KV budget, 1 until the engine fails.

    >>> headroom = KvHeadroom(HeadroomRules())
    >>> for now_s in (0.0, 5.0, 10.0):
    ...     headroom.observe(now_s, preemptions_per_s=0.4)
    >>> round(headroom.share(10.0), 3)
    0.729
    >>> headroom.observe(20.0, preemptions_per_s=0.0)
    >>> round(headroom.share(20.0), 3), headroom.share(1_000.0)
    (0.739, 1.0)
    """

    def __init__(self, rules: HeadroomRules) -> None:
        self.shrinks = 0
        self.dropped = 0
        self._rules = rules
        self._share = 1.0
        self._shrunk_s = -math.inf
        self._known_s = -math.inf
        self._failures: float | None = None

    def observe(
        self,
        now_s: float,
        *,
        preemptions_per_s: float | None = None,
        allocation_failures: float | None = None,
    ) -> None:
        """Take what the engine says at ``now_s``; None is unknown, and impossible values are dropped.

        Args:
            now_s: monotonic seconds.
            preemptions_per_s: requests that lost their KV blocks since the last reading.
            allocation_failures: counter of allocations that found no blocks. Its first reading, and the first
                after it fell, say nothing of the time before.

        """
        preempted = self._possible(preemptions_per_s)
        failed = self._gained(self._possible(allocation_failures))
        if preempted is None and failed is None:
            return
        rules = self._rules
        self._share = self.share(now_s)
        if preempted or failed:
            if now_s >= self._shrunk_s + rules.shrink_every_s:
                self._share = max(rules.floor, self._share * rules.shrink)
                self._shrunk_s = now_s
                self.shrinks += 1
        elif self._known_s > -math.inf:
            vouched_s = min(max(0.0, now_s - self._known_s), rules.vouched_s)
            self._share = min(1.0, self._share + rules.recover_per_s * vouched_s)
        self._known_s = max(self._known_s, now_s)

    def share(self, now_s: float) -> float:
        """Usable share at ``now_s``, from the floor to 1."""
        return self._share if now_s <= self._known_s + self._rules.silence_s else 1.0

    def _possible(self, value: float | None) -> float | None:
        if value is None or 0 <= value < math.inf:
            return value
        self.dropped += 1
        return None

    def _gained(self, counter: float | None) -> float | None:
        if counter is None:
            return None
        before, self._failures = self._failures, counter
        return None if before is None or counter < before else counter - before
