"""Token quotas over an hour or a day: what was charged in a window, what is left, and when more will be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from data.errors import InputError

if TYPE_CHECKING:
    from serving.controller.pool import Pool

HOUR_S, DAY_S = 3_600, 86_400
PARTS = 60
"""A sliding window moves on by a sixtieth of its length: a minute of an hour, 24 minutes of a day."""
SOON_S = 0.2
"""Wait for room of a shared quota that other replicas have and this one asks for."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Tokens, prompt and output, that a tenant may use in a window.

    Attributes:
        tokens: the most in one window.
        sliding: any stretch as long as the window counts; else the hours and days of the calendar, in UTC.
        burst_tokens: most unused tokens of past hours or days of the calendar that may be used on top.

    """

    tokens: int
    sliding: bool = False
    burst_tokens: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.tokens < math.inf:
            raise InputError(f"Quota tokens must be over 0 and finite; got {self.tokens!r}.")
        if not 0 <= self.burst_tokens < math.inf:
            raise InputError(f"Quota burst_tokens must be 0 or more and finite; got {self.burst_tokens!r}.")


class Window:
    """Tokens charged in one window. Without a quota they are counted all the same, for one set later.

    A charge is taken from the quota and, where that is used up, from the credit that past windows left. What
    is given back goes to where it came from, as long as that still counts. Times are seconds of the wall
    clock. In any stretch of a sliding window's length at most the quota is charged; tokens leave it up to a
    sixtieth of its length late.

    Where replicas share the quota, a window counts what this one charged, and its ``pool`` says how far that
    may go; the credit is the pool's as well.

    >>> hour = Window(HOUR_S, Quota(1_000), wall_s=0.0)
    >>> part, from_credit = hour.take(900, 10.0)
    >>> hour.wait_s(200, 10.0), hour.wait_s(1_001, 10.0)
    (3590.0, inf)
    >>> hour.settle(part, from_credit, 300 - 900, 20.0)
    >>> hour.left_tokens(20.0)
    700.0
    """

    __slots__ = (
        "_burst",
        "_credit",
        "_length_s",
        "_limit",
        "_part",
        "_part_ends_s",
        "_part_s",
        "_parts",
        "_period",
        "_period_used",
        "_used",
        "pool",
    )

    def __init__(self, length_s: int, quota: Quota | None, wall_s: float) -> None:
        self._length_s = length_s
        self._part_s = length_s // PARTS
        self._part = int(wall_s // self._part_s)
        self._part_ends_s = (self._part + 1) * self._part_s
        self._period = self._part // PARTS
        self._credit = 0
        self._used = 0  # what counts against the quota now
        self._period_used = 0  # what was charged in this hour or day of the calendar
        self._parts: dict[int, int] | None = None  # of a sliding window: tokens by the part they came in
        self._limit, self._burst = math.inf, 0
        self.pool: Pool | None = None
        self.set(quota, wall_s)

    def set(self, quota: Quota | None, wall_s: float) -> None:
        """Change the quota; what was charged stays charged."""
        self._roll(wall_s)
        self._limit = math.inf if quota is None else float(quota.tokens)
        self._burst = 0 if quota is None or self.pool is not None else quota.burst_tokens
        self._credit = min(self._credit, self._burst)
        sliding = quota is not None and quota.sliding
        if sliding and self._parts is None:
            self._parts = {self._part: self._used} if self._used else {}
        elif not sliding and self._parts is not None:
            self._parts = None
            self._used = self._period_used

    def share(self, pool: Pool | None) -> None:
        """Go by a pool that replicas share, or with None by this window alone."""
        self.pool = pool
        if pool is not None:
            self._credit = self._burst = 0

    def used_tokens(self, wall_s: float) -> int:
        """Tokens that count against the quota."""
        self._roll(wall_s)
        return self._used

    def left_tokens(self, wall_s: float) -> float:
        """Tokens left, credit included; infinite without a quota, below 0 where answers ran over it."""
        self._roll(wall_s)
        return self._limit - self._used + self._credit

    def wait_s(self, tokens: int, wall_s: float) -> float:
        """Seconds until there is room for ``tokens``: 0 now, infinite where there never will be."""
        if wall_s >= self._part_ends_s:
            self._roll(wall_s)
        if self.pool is not None:
            return self._shared_wait_s(self.pool, tokens, wall_s)
        over = self._used + tokens - self._limit - self._credit
        if over <= 0:
            return 0.0
        if tokens > self._limit + self._burst:
            return math.inf
        credit_s = self._credit_wait_s(tokens - self._limit, wall_s)
        if self._parts is None:
            return max(credit_s, (self._period + 1) * self._length_s - wall_s)
        over, leaves_s = min(over, self._used), wall_s
        for part, charged in self._parts.items():
            if over <= 0:
                break
            over -= charged
            leaves_s = (part + PARTS + 1) * self._part_s
        return max(credit_s, leaves_s - wall_s)

    def _shared_wait_s(self, pool: Pool, tokens: int, wall_s: float) -> float:
        if self._used + tokens <= pool.ceiling_tokens:
            return 0.0
        if tokens > pool.limit_tokens + pool.burst_tokens:
            return math.inf
        if pool.reachable_tokens >= tokens:
            return SOON_S
        if self._parts is not None:  # what leaves the windows of other replicas, and when, is not known here
            return (self._part + 1) * self._part_s - wall_s
        return (self._period + 1) * self._length_s - wall_s

    def _credit_wait_s(self, wanted: float, wall_s: float) -> float:
        """Seconds until the credit is at least ``wanted``, when nothing more is charged."""
        if wanted <= self._credit:
            return 0.0
        hours = 1 + max(0, math.ceil((wanted - self._grown()) / self._limit))
        return (self._period + hours) * self._length_s - wall_s

    def take(self, tokens: int, wall_s: float) -> tuple[int, int]:
        """Charge ``tokens``; the part of the window and how many the credit paid, to settle them by."""
        if wall_s >= self._part_ends_s:
            self._roll(wall_s)
        from_credit = 0
        if self._credit and self._used + tokens > self._limit:
            from_credit = min(self._credit, tokens, int(self._used + tokens - self._limit))
            self._credit -= from_credit
            tokens -= from_credit
        self._used += tokens
        self._period_used += tokens
        if self._parts is not None:
            self._parts[self._part] = self._parts.get(self._part, 0) + tokens
        if self.pool is not None:
            self.pool.taken(tokens)
        return self._part, from_credit

    def settle(self, part: int, from_credit: int, change_tokens: int, wall_s: float) -> None:
        """Change a charge by what was really used: below 0 is given back, above 0 is charged now."""
        if change_tokens > 0:
            self.take(change_tokens, wall_s)
            return
        if wall_s >= self._part_ends_s:
            self._roll(wall_s)
        if self.pool is not None:
            self.pool.touch()
        back = -change_tokens
        if from_credit:
            to_credit = min(from_credit, back)
            self._credit = min(self._burst, self._credit + to_credit)
            back -= to_credit
        if part // PARTS == self._period:
            self._period_used -= back
        else:  # that hour or day is over: it has left more than it seemed to
            self._credit = min(self._burst, self._credit + back)
        if self._parts is not None:
            self._used -= self._take_out(part, back)
        elif part // PARTS == self._period:
            self._used -= back

    def _take_out(self, part: int, tokens: int) -> int:
        """Take tokens out of their part, or out of the part that theirs was merged into; how many."""
        parts = self._parts
        if not parts or part < self._part - PARTS:
            return 0
        if part not in parts:
            part = next(iter(parts))
        tokens = min(tokens, parts[part])
        parts[part] -= tokens
        return tokens

    def _grown(self) -> int:
        """Credit when this hour or day ends with nothing more charged."""
        return int(min(self._burst, self._credit + max(0.0, self._limit - self._period_used)))

    def _roll(self, wall_s: float) -> None:
        part = int(wall_s // self._part_s)
        if part <= self._part:
            return
        self._part = part
        self._part_ends_s = (part + 1) * self._part_s
        before = self._used
        period = part // PARTS
        if period > self._period:
            if self._burst:
                self._credit = self._grown()
                idle = period - self._period - 1
                self._credit = int(min(self._burst, self._credit + idle * self._limit))
            self._period = period
            self._period_used = 0
            if self._parts is None:
                self._used = 0
        if self._parts is not None:
            for old in [old for old in self._parts if old < part - PARTS]:
                self._used -= self._parts.pop(old)
        if self.pool is not None:
            self.pool.rolled(before - self._used)
