"""A pool: a replica's part of one limit that replicas share, what it asks the store for, and the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from serving.controller.quota import Window
    from serving.controller.shared_limits import SharedLimits

SPARE_PARTS = 8
"""A replica that nobody is short beside keeps up to an eighth of its share ready."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a replica tells the store of one pool, and what it would like.

    Attributes:
        name: of the pool, the same on all replicas.
        length_s: length of a quota's window; 0 for tokens held.
        sliding: the window moves with time.
        limit_tokens: the limit of all replicas together.
        burst_tokens: most unused tokens of past windows that count on top.
        period: number of the hour or day that ``used_tokens`` belongs to; 0 where there is none.
        used_tokens: what this replica uses.
        keep_tokens: room that it keeps in any case; more it gave up.
        need_tokens: the smallest room that is of use, where a request lacked it; 0 where none did.
        want_tokens: room that it would like.
        carries: what it lacks may come from the next pool.

    """

    name: str
    length_s: int
    sliding: bool
    limit_tokens: int
    burst_tokens: int
    period: int
    used_tokens: int
    keep_tokens: int
    need_tokens: int
    want_tokens: int
    carries: bool = False


class Grant(NamedTuple):
    """The store's answer for one pool.

    Attributes:
        room_tokens: room beyond what was told as used.
        reachable_tokens: tokens of the limit that nobody uses, room of others included.
        elsewhere_tokens: what other replicas use.
        contended: another replica is short of room.

    """

    room_tokens: int
    reachable_tokens: int
    elsewhere_tokens: int
    contended: bool


class Pool:
    """A replica's part of one limit: used up to a ceiling, which each exchange with the store moves."""

    __slots__ = (
        "_keep",
        "_limits",
        "_need",
        "_told",
        "_told_used",
        "burst_tokens",
        "ceiling_tokens",
        "contended",
        "floor_tokens",
        "length_s",
        "limit_tokens",
        "missed_tokens",
        "name",
        "pace_tokens",
        "parted",
        "pending",
        "reachable_tokens",
        "seen",
        "short",
        "sliding",
        "smallest_tokens",
        "taken_tokens",
        "window",
    )

    def __init__(self, limits: SharedLimits, name: str, limit_tokens: int, window: Window | None) -> None:
        self._limits = limits
        self.name = name
        self.limit_tokens = limit_tokens
        self.window = window
        self.length_s, self.burst_tokens, self.sliding = 0, 0, False
        self.ceiling_tokens = self.floor_tokens = 0
        self.reachable_tokens = limit_tokens
        self.contended = self.seen = self.short = self.parted = False
        self.pending: list[int] = []  # tokens that requests wait for at this moment
        self.taken_tokens = self.missed_tokens = self.smallest_tokens = self.pace_tokens = 0
        self._keep = self._need = self._told = self._told_used = 0

    def touch(self) -> None:
        """Have the next exchange tell of this pool."""
        if not (self.parted and self.name in self._limits.by_name):  # its tenant came back: that one tells
            self._limits.touched[self.name] = self

    def taken(self, tokens: int) -> None:
        """Note that a request was let in."""
        self.taken_tokens += tokens
        self.touch()

    def missed(self, tokens: int) -> None:
        """Note that a request lacked room; where there may be some elsewhere, ask for it at once."""
        self.missed_tokens += tokens
        self.smallest_tokens = min(self.smallest_tokens or tokens, tokens)
        self.touch()
        if self.reachable_tokens >= tokens:
            self._limits.wake()

    def rolled(self, dropped_tokens: int) -> None:
        """Tokens left the window: the room stays; while the store is lost it grows to the share."""
        self.ceiling_tokens = max(self.ceiling_tokens - dropped_tokens, self.floor_tokens)
        self._told_used = max(0, self._told_used - dropped_tokens)

    def ask(
        self,
        used: int,
        period: int = 0,
        waiting: Sequence[int] = (),
        *,
        owed: int = 0,
        carries: bool = False,
    ) -> Ask:
        """Give up the room that is not needed, and say what is.

        Args:
            used: tokens of the pool that this replica uses.
            period: hour or day of the calendar that they belong to.
            waiting: tokens that requests wait for.
            owed: tokens drawn on another pool for want of room in this one.
            carries: that other pool is told next.

        """
        exact = self._limits.exact
        short = [*self.pending, *waiting]
        if self.smallest_tokens and not exact:
            short.append(self.smallest_tokens)
        need = min(short, default=0)
        want = sum(self.pending) + sum(waiting) + owed
        if not exact:
            self.pace_tokens = max(self.taken_tokens + self.missed_tokens, self.pace_tokens // 2)
            want += self.missed_tokens + 2 * self.pace_tokens
            if not self.contended:
                want = max(want, self.limit_tokens // (SPARE_PARTS * self._limits.replicas))
        if self.parted:
            need = want = 0
        room = max(0, self.ceiling_tokens - used)
        keep = 0 if room < need else min(room, want)  # too little is of no use here, and may be elsewhere
        if self._limits.lost:
            keep = room  # it is the share, which stands until the store grants anew
        self.ceiling_tokens = used + keep
        self._keep, self._need, self._told = keep, need, used
        self.taken_tokens = self.missed_tokens = self.smallest_tokens = 0
        self.short = need > 0
        return Ask(
            self.name,
            self.length_s,
            self.sliding,
            self.limit_tokens,
            self.burst_tokens,
            period,
            used,
            keep,
            need,
            max(want, need, keep),
            carries,
        )

    def granted(self, grant: Grant) -> None:
        """Take the store's answer to the last ask; what was let in meanwhile came out of the kept room."""
        self.ceiling_tokens += grant.room_tokens - self._keep
        self.reachable_tokens, self._told_used = grant.reachable_tokens, self._told
        self.contended = grant.contended
        self.floor_tokens = 0
        self.seen = True
        self.short = grant.room_tokens < self._need

    @property
    def may_get_more(self) -> bool:
        """It lacks room that others have, or had a moment ago."""
        return self.short and self.reachable_tokens >= self._need

    def fall_back(self, used: int, replicas: int) -> None:
        """Go by this replica's share from now on: of a quota, of what was left when the store last answered.

        What was used since came out of it. So all replicas together overshoot the limit by what they used
        between the first and the last of their last answers, at most.
        """
        self.floor_tokens = self.limit_tokens // replicas
        if self.window is None or not self.seen:
            self.ceiling_tokens = self.floor_tokens
        else:
            since = max(0, used - self._told_used)
            self.ceiling_tokens = used + max(0, self.reachable_tokens // replicas - since)
