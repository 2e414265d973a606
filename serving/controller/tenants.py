"""Tenants: their limits, what they were charged, and a table of them that can't grow without bound.

A charge is prompt and output tokens: expected when a request is let in or starts to wait, changed to what was
really used when it is settled, given back when it was cancelled or never heard of again.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from data.errors import InputError
from data.schema import LANES
from serving.controller.quota import DAY_S, HOUR_S, Quota, Window

if TYPE_CHECKING:
    from serving.controller.shared_limits import SharedLimits

CELLS = 1 << 14
"""Cells in which what forgotten tenants were charged is kept: 2 rows, for hours and days."""


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """What one tenant may use.

    Attributes:
        hourly: quota of an hour; None is no limit.
        daily: quota of a day; None is no limit.
        weight: its share of a lane while others of the lane wait as well, against theirs.
        lane: lane of its requests that name none.
        closed: nothing of it is let in.

    """

    hourly: Quota | None = None
    daily: Quota | None = None
    weight: float = 1.0
    lane: str = "standard"
    closed: bool = False

    @property
    def limited(self) -> bool:
        """Whether anything of it may be refused."""
        return self.closed or self.hourly is not None or self.daily is not None

    def __post_init__(self) -> None:
        if not 0 < self.weight < math.inf:
            raise InputError(f"Tenant weight must be over 0 and finite; got {self.weight!r}.")
        if self.lane not in LANES:
            raise InputError(f"Tenant lane must be one of {', '.join(LANES)}; got {self.lane!r}.")


class Account:
    """One tenant's limits and charges."""

    __slots__ = ("configured", "day", "hour", "limited", "limits", "name", "open", "uncharged", "virtual")

    def __init__(self, name: str | None, limits: TenantLimits, configured: bool, wall_s: float) -> None:
        self.name = name
        self.limits = limits
        self.configured = configured
        self.hour = Window(HOUR_S, limits.hourly, wall_s)
        self.day = Window(DAY_S, limits.daily, wall_s)
        self.limited = limits.limited
        self.uncharged = Charge(self, 0, 0, 0, 0, 0)
        self.open = 0
        self.virtual: dict[str, float] = {}  # tokens over weight that each lane gave it while others waited

    def wait_s(self, tokens: int, wall_s: float) -> float:
        """Seconds until its quotas have room for ``tokens``; 0 now, infinite where they never will have."""
        limits = self.limits
        if not self.limited:
            return 0.0
        if limits.closed:
            return math.inf
        wait_s = 0.0
        if limits.hourly is not None:
            wait_s = self.hour.wait_s(tokens, wall_s)
        if limits.daily is not None:
            wait_s = max(wait_s, self.day.wait_s(tokens, wall_s))
        return wait_s


class Charge(NamedTuple):
    """Tokens charged to an account, and where in its windows they stand."""

    account: Account
    tokens: int
    hour_part: int
    hour_credit: int
    day_part: int
    day_credit: int


class Tenants:
    """Accounts of all tenants that were heard of lately.

    Configured tenants are never forgotten. Of the others the ``most`` latest stay, and those with open
    requests. What a forgotten one had used is kept by a hash of its name in a fixed number of cells, until
    its windows have passed: when it comes back it starts with at least that, so crowding the table with new
    names wins nobody a fresh quota. A new name may find such cells of others, which count against it; two
    rows make that rare. Nothing here stops a tenant from using many names: the gateway vouches for them.
    """

    def __init__(self, default: TenantLimits, configured: Mapping[str, TenantLimits], most: int) -> None:
        self.evicted = 0
        self._default = default
        self._most = most
        self._configured = configured
        self._accounts: dict[str | None, Account] = {}
        self._unconfigured = 0
        # Those to forget first, oldest first; one with open requests may stand among them and is passed over.
        self._idle: OrderedDict[str | None, Account] = OrderedDict()
        self._forgotten: dict[tuple[int, int], tuple[float, int]] = {}
        self._shared: SharedLimits | None = None

    def __len__(self) -> int:
        return len(self._accounts)

    def share(self, shared: SharedLimits, wall_s: float) -> None:
        """Share the quotas of all accounts with other replicas; configured tenants get theirs at once."""
        self._shared = shared
        for name in self._configured:
            self.account(name, wall_s)
        for account in self._accounts.values():
            shared.adopt(account, wall_s)

    def account(self, name: str | None, wall_s: float) -> Account:
        """Account of a tenant; a new one has the default limits."""
        account = self._accounts.get(name)
        return self._new(name, wall_s) if account is None else account

    def set(self, name: str, limits: TenantLimits | None, wall_s: float) -> None:
        """Change a tenant's limits, or with None return it to the default; what it was charged stays."""
        account = self.account(name, wall_s)
        self._unconfigured += (limits is None) - (not account.configured)
        account.configured = limits is not None
        account.limits = limits or self._default
        account.limited = account.limits.limited
        account.hour.set(account.limits.hourly, wall_s)
        account.day.set(account.limits.daily, wall_s)
        if self._shared is not None:
            self._shared.adopt(account, wall_s)
        self._idle.pop(name, None)
        if not account.configured and not account.open:
            self._idle[name] = account

    def charge(self, account: Account, tokens: int, wall_s: float) -> Charge:
        """Charge a request that is let in or starts to wait; one without limits is charged once settled."""
        account.open += 1
        if not account.limited:
            return account.uncharged
        return Charge(account, tokens, *account.hour.take(tokens, wall_s), *account.day.take(tokens, wall_s))

    def settle(self, charge: Charge, used_tokens: int, wall_s: float) -> None:
        """End a request that really used so many tokens; 0 gives all of it back."""
        account, change = charge.account, used_tokens - charge.tokens
        if change:
            account.hour.settle(charge.hour_part, charge.hour_credit, change, wall_s)
            account.day.settle(charge.day_part, charge.day_credit, change, wall_s)
        account.open -= 1
        if not account.open and not account.configured:
            self._idle[account.name] = account
            self._idle.move_to_end(account.name)

    def _new(self, name: str | None, wall_s: float) -> Account:
        if name is not None and name in self._configured:
            account = self._accounts[name] = Account(name, self._configured[name], True, wall_s)
            if self._shared is not None:
                self._shared.adopt(account, wall_s)
            return account
        while self._unconfigured >= self._most and self._idle:
            old, forgotten = self._idle.popitem(last=False)
            if forgotten.open:
                continue  # it comes back when it has settled
            del self._accounts[old]
            self._unconfigured -= 1
            self.evicted += 1
            self._remember(forgotten, wall_s)
            if self._shared is not None:
                self._shared.forget(forgotten)
        account = self._accounts[name] = self._idle[name] = Account(name, self._default, False, wall_s)
        self._unconfigured += 1
        for window, length_s in ((account.hour, HOUR_S), (account.day, DAY_S)):
            used = min(self._cell(cell, wall_s) for cell in _cells(name, length_s))
            if used:
                window.take(used, wall_s)
        if self._shared is not None:
            self._shared.adopt(account, wall_s)
        return account

    def _remember(self, account: Account, wall_s: float) -> None:
        for window, quota, length_s in (
            (account.hour, account.limits.hourly, HOUR_S),
            (account.day, account.limits.daily, DAY_S),
        ):
            used = window.used_tokens(wall_s)
            if not used:
                continue
            sliding = quota is not None and quota.sliding
            until_s = wall_s + length_s if sliding else (wall_s // length_s + 1) * length_s
            for cell in _cells(account.name, length_s):
                self._forgotten[cell] = (until_s, max(used, self._cell(cell, wall_s)))

    def _cell(self, cell: tuple[int, int], wall_s: float) -> int:
        until_s, used = self._forgotten.get(cell, (0.0, 0))
        return used if wall_s < until_s else 0


def _cells(name: str | None, length_s: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Cells of a name, one in each row. Python's hash of a string has a secret: nobody can aim at a cell."""
    number = hash(("tenant", name))
    return (length_s, number % CELLS), (-length_s, number // CELLS % CELLS)
