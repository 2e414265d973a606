"""What this replica may use now of limits that replicas share: asks go out, grants come in; no I/O here.

Each limit is a pool. A replica may use it up to a ceiling: what it uses already and the room that the shared
store granted on top. The store keeps, over all replicas, the sum of use and room within the limit, so no
replica needs to ask before it decides. Room that a replica does not ask for again it gives up before it says
so; what the store has heard is never less than what is used.

While the store is lost, the ceiling of what is held is the limit over the replicas; of a quota it is this
replica's part of what was left when the store last answered.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from data.schema import LANES
from serving.controller.pool import Ask, Grant, Pool
from serving.controller.quota import DAY_S, HOUR_S, Quota, Window
from serving.controller.rules import Rules

if TYPE_CHECKING:
    from serving.controller.decision import Reason
    from serving.controller.gate import Gate
    from serving.controller.lanes import Lane
    from serving.controller.tenants import Account
    from serving.controller.waiting import Ticket

ROOM = frozenset({"saturated", "lane_budget", "queue_full", "wait_expired"})
"""Reasons that more room would have mended."""
REFRESHED = 32
"""Quotas that an exchange tells of though nothing happened to them: what is left of them stays known."""
UNSEEN_PARTS = 100
"""Of a quota that the store was not asked about yet, all replicas together may use a hundredth."""


class SharedLimits:
    """All pools of this replica: what is held in the protected lanes' share, the rest, and tenants' quotas.

    Premium draws on its share first and then on the rest; the other lanes on the rest alone. So with the
    sums of both within their limits, no lane of any replica takes what is premium's.
    """

    def __init__(self, rules: Rules, replicas: int, *, exact: bool) -> None:
        self.replicas = self.configured_replicas = replicas
        self.exact = exact
        self.lost = True
        self.wake: Callable[[], None] = _nothing
        self.held_elsewhere_tokens = 0
        self.touched: dict[str, Pool] = {}
        self.by_name: OrderedDict[str, Pool] = OrderedDict()  # quotas; told longest ago first
        self._asked: list[Pool] = []
        protected = sum(
            round(rules.lane(name).weight * rules.capacity) for name in LANES if rules.lane(name).protected
        )
        self.protected = Pool(self, "held:protected", protected, None)
        self.rest = Pool(self, "held:rest", rules.capacity - protected, None)
        for pool in (self.protected, self.rest):
            pool.fall_back(0, replicas)

    def adopt(self, account: Account, wall_s: float) -> None:
        """Share the quotas of an account that is new or has other limits."""
        limits = account.limits
        for window, quota, length_s in (
            (account.hour, limits.hourly, HOUR_S),
            (account.day, limits.daily, DAY_S),
        ):
            name = f"{_digest(account.name)}:{length_s}:{'s' if quota and quota.sliding else 'c'}"
            if window.pool is not None and (quota is None or window.pool.name != name):
                self._part_with(window.pool)
                window.share(None)
            if quota is not None:
                self._share(window, quota, name, length_s, wall_s)

    def forget(self, account: Account) -> None:
        """Give up the room of an account that is forgotten; what it used stays told."""
        for window in (account.hour, account.day):
            if window.pool is not None:
                self._part_with(window.pool)

    def held(self, lane: Lane) -> Pool:
        """The pool of what a lane holds."""
        return self.protected if lane.rule.protected else self.rest

    def pools(self, ticket: Ticket) -> list[Pool]:
        """The pools that a request draws on."""
        windows = (ticket.account.hour, ticket.account.day)
        return [self.held(ticket.lane), *(window.pool for window in windows if window.pool is not None)]

    def missed(self, ticket: Ticket, reason: Reason) -> None:
        """Note that a request was refused, if it was for want of room."""
        if reason == "tenant_quota":
            for pool in self.pools(ticket)[1:]:
                pool.missed(ticket.tokens)
        elif reason in ROOM:
            self.held(ticket.lane).missed(ticket.tokens)

    def lacks(self, ticket: Ticket, gate: Gate, now_s: float) -> list[Pool]:
        """Those of a request's pools that have no room for it."""
        wall_s = now_s + gate.wall_offset_s
        return [pool for pool in self.pools(ticket) if self._room(pool, gate, wall_s) < ticket.tokens]

    def _room(self, pool: Pool, gate: Gate, wall_s: float) -> int:
        if pool.window is not None:
            return pool.ceiling_tokens - pool.window.used_tokens(wall_s) - sum(pool.pending)
        held = gate.ledger.held_tokens
        room = self.protected.ceiling_tokens + self.rest.ceiling_tokens - held
        if pool is self.rest:
            room = min(room, pool.ceiling_tokens - gate.lanes.shared_held_tokens)
        return room - sum(pool.pending)

    def asks(self, gate: Gate, now_s: float, *, all_of_them: bool) -> list[Ask]:
        """What to tell the store now: of what is held, and of the quotas that changed, or of all."""
        protected, rest = self.protected, self.rest
        held_rest = gate.lanes.shared_held_tokens
        held_protected = gate.ledger.held_tokens - held_rest
        own = min(held_protected, max(0, protected.ceiling_tokens))
        borrowed = held_protected - own
        waiting: dict[bool, list[int]] = {True: [], False: []}
        for queue in gate.waiting.by_lane.values():
            if len(queue):  # by their mean: what fits one of them is of use
                waiting[queue.lane.rule.protected] += [queue.tokens // len(queue)] * len(queue)
        asks = [
            protected.ask(own, waiting=waiting[True], owed=borrowed, carries=True),
            rest.ask(held_rest + borrowed, waiting=waiting[False]),
        ]
        for _ in range(min(REFRESHED, len(self.by_name))):
            name = next(iter(self.by_name))
            self.by_name.move_to_end(name)
            self.by_name[name].touch()
        touched = {**self.by_name, **self.touched} if all_of_them else self.touched
        self._asked, self.touched = [protected, rest], {}
        wall_s = now_s + gate.wall_offset_s
        for pool in touched.values():
            if pool.window is None:
                continue
            used = pool.window.used_tokens(wall_s)
            period = 0 if pool.sliding else int(wall_s // pool.length_s)
            self._asked.append(pool)
            asks.append(pool.ask(used, period))
        gate.resize(now_s)
        return asks

    def granted(self, gate: Gate, now_s: float, grants: Sequence[Grant], live: int) -> None:
        """Take the store's answers to the last asks."""
        if self.lost:
            self.lost = False
            for pool in (self.protected, self.rest, *self.by_name.values()):
                pool.floor_tokens = 0
        self.replicas = max(self.configured_replicas, live)
        for pool, grant in zip(self._asked, grants, strict=True):
            pool.granted(grant)
            if pool.short:
                pool.touch()  # until it is not: others hold back for it
        self.held_elsewhere_tokens = sum(grant.elsewhere_tokens for grant in grants[:2])
        gate.resize(now_s)

    def untold(self) -> None:
        """The last asks had no answer: tell of the same pools next time."""
        for pool in self._asked:
            pool.touch()

    def recalled(self, names: Sequence[str]) -> None:
        """Others are short of what these pools may hold in vain: tell of them next."""
        for name in names:
            if name in self.by_name:
                self.by_name[name].contended = True
                self.by_name[name].touch()

    def lose(self, gate: Gate, now_s: float) -> None:
        """The store has not answered for as long as its grants hold."""
        self.lost = True
        self.held_elsewhere_tokens = 0
        wall_s = now_s + gate.wall_offset_s
        for pool in (self.protected, self.rest, *self.by_name.values()):
            used = 0 if pool.window is None else pool.window.used_tokens(wall_s)
            pool.fall_back(used, self.replicas)
        gate.resize(now_s)

    @property
    def hungry(self) -> bool:
        """Some pool is short, and others hold what would do."""
        pools = {self.protected, self.rest, *self.touched.values()}
        return any(pool.may_get_more for pool in pools)

    def _share(self, window: Window, quota: Quota, name: str, length_s: int, wall_s: float) -> None:
        pool = window.pool
        if pool is None:
            pool = Pool(self, name, quota.tokens, window)
            used = window.used_tokens(wall_s)
            pool.ceiling_tokens = used + quota.tokens // (UNSEEN_PARTS * self.replicas)
            pool.length_s, pool.sliding = length_s, quota.sliding
            if self.lost:
                pool.fall_back(used, self.replicas)
            self.by_name[name] = pool
            window.share(pool)
        pool.limit_tokens, pool.burst_tokens = quota.tokens, quota.burst_tokens
        pool.touch()

    def _part_with(self, pool: Pool) -> None:
        self.by_name.pop(pool.name, None)
        pool.parted = True
        pool.touch()


def _digest(tenant: str | None) -> str:
    """A key's name for a tenant: the store sees no names, and none of them can reach outside its key.

    >>> _digest("acme"), _digest(None) == _digest("")
    ('74b5f287c77205a4715d', False)
    """
    told = b"\x00" if tenant is None else b"\x01" + tenant.encode("utf-8", "surrogatepass")
    return hashlib.sha256(told).hexdigest()[:20]


def _nothing() -> None:
    """Wake nobody."""
