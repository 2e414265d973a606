"""Who sends the load: how much of the last minute the heaviest tenants sent, and how many tenants are new."""

from collections import deque
from collections.abc import Iterator, Mapping
from heapq import nlargest

import numpy as np
from numpy.typing import NDArray

from features.flows import FlowSeconds
from features.ticks import TICK_S

WINDOW_S = 60
NEW_S = 600
"""A tenant is new for this long after its first request."""
HEAVIEST = 3
FIELDS = ("work", "heaviest", f"heaviest_{HEAVIEST}", "squares", "new")
"""Work of the tenants that are known, tokens; of the heaviest one and few; sum of squares; new tenants."""
MOST = 1 << 24
"""Tokens of one tenant in one second that count: the squares of a minute's sums stay whole numbers."""

_WINDOW_TICKS = WINDOW_S // TICK_S
_CELLS = 2_000_000
"""Sums of one tenant at one tick that are held at a time."""


class TenantLoad:
    """Grows second by second; equal to `tenants_before` on the same seconds.

    >>> load = TenantLoad()
    >>> load.close(0, {1: 300, 2: 100}), load.close(1, {1: 100})
    (None, None)
    >>> load.tell(2).tolist()
    [500, 400, 500, 170000, 2]
    """

    def __init__(self) -> None:
        self._work: dict[int, int] = {}
        self._squares = 0
        self._seconds: deque[tuple[int, Mapping[int, int]]] = deque()
        self._known: set[int] = set()
        self._new: deque[tuple[int, int]] = deque()

    def close(self, second: int, work: Mapping[int, int]) -> None:
        """Take in what each tenant sent in a second, tokens; every second in order. Under 0 is unknown."""
        sent = {tenant: min(tokens, MOST) for tenant, tokens in work.items() if tenant >= 0}
        if sent:
            self._seconds.append((second, sent))
            for tenant, tokens in sent.items():
                self._add(tenant, tokens)
            if fresh := sent.keys() - self._known:
                self._known |= fresh
                self._new.append((second, len(fresh)))
        while self._seconds and self._seconds[0][0] <= second - WINDOW_S:
            for tenant, tokens in self._seconds.popleft()[1].items():
                self._add(tenant, -tokens)

    def tell(self, t_s: int) -> NDArray[np.int64]:
        """What is known before a tick, (len(FIELDS),), once the second before it is closed."""
        heaviest = nlargest(HEAVIEST, self._work.values())
        while self._new and self._new[0][0] < t_s - NEW_S:
            self._new.popleft()
        new = sum(count for _, count in self._new)
        return np.array(
            [sum(self._work.values()), max(heaviest, default=0), sum(heaviest), self._squares, new], np.int64
        )

    def copy(self) -> "TenantLoad":
        """The same knowledge, to go on by itself."""
        twin = TenantLoad()
        twin._work, twin._squares = self._work.copy(), self._squares
        twin._seconds, twin._known, twin._new = self._seconds.copy(), self._known.copy(), self._new.copy()
        return twin

    def _add(self, tenant: int, tokens: int) -> None:
        before = self._work.get(tenant, 0)
        after = before + tokens
        self._squares += after * after - before * before
        if after:
            self._work[tenant] = after
        else:
            self._work.pop(tenant, None)


def tenants_before(flows: FlowSeconds, t_s: NDArray[np.int64]) -> NDArray[np.int64]:
    """What `TenantLoad` tells before each of the ticks 0, 5, ..., int64, (len(FIELDS), n)."""
    told = np.zeros((len(FIELDS), len(t_s)), np.int64)
    tenant = flows.tenant.astype(np.int32)[flows.flow]
    known = tenant >= 0
    if not known.any():
        return told
    tenant, second, tokens = tenant[known], flows.second[known], flows.work[known]
    if np.bincount(second, tokens).max() > MOST:  # else no tenant alone has sent that much
        tenant, second, tokens = _capped(tenant, second, tokens)
    first_s = np.full(int(tenant.max()) + 1, flows.seconds)
    np.minimum.at(first_s, tenant, second)
    first_s.sort()
    told[-1] = np.searchsorted(first_s, t_s) - np.searchsorted(first_s, t_s - NEW_S)
    for ticks, sums in _minutes(tenant, second // TICK_S, tokens, len(t_s)):
        heaviest = -np.partition(-sums, HEAVIEST - 1, axis=0)[:HEAVIEST]
        told[:4, ticks] = sums.sum(0), heaviest.max(0), heaviest.sum(0), np.square(sums).sum(0)
    return told


def _capped(
    tenant: NDArray[np.int32], second: NDArray[np.int32], tokens: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
    """One entry for each tenant in each second, in order of time, of `MOST` tokens at most."""
    both, at = np.unique(np.stack([second, tenant]), axis=1, return_inverse=True)
    # float64 sums of whole tokens are exact up to 2^53.
    return both[1], both[0], np.minimum(np.bincount(at, weights=tokens), MOST).astype(np.int64)


def _minutes(
    tenant: NDArray[np.int32], tick: NDArray[np.int32], tokens: NDArray[np.int64], ticks: int
) -> Iterator[tuple[slice, NDArray[np.int64]]]:
    """Each tenant's sums over the minute before each tick, (tenants, ticks), a stretch of ticks at a time.

    The arrays are in order of time; work of the tick interval k is first seen by tick k + 1.
    """
    tenants = int(tenant.max()) + 1
    step = max(_CELLS // tenants, 8 * _WINDOW_TICKS)
    for start in range(0, ticks, step):
        stop = min(start + step, ticks)
        first = start - _WINDOW_TICKS
        few = slice(*np.searchsorted(tick, (first, stop)))
        active = np.bincount(tenant[few], minlength=tenants) > 0
        row = (np.cumsum(active) - 1)[tenant[few]]
        rows, width = max(int(np.count_nonzero(active)), HEAVIEST), stop - first
        place = row * width + (tick[few] - first)
        sums = np.bincount(place, tokens[few], rows * width).astype(np.int64).reshape(rows, width)
        total = np.concatenate([np.zeros((len(sums), 1), np.int64), np.cumsum(sums, axis=1)], axis=1)
        yield slice(start, stop), total[:, _WINDOW_TICKS:-1] - total[:, : -_WINDOW_TICKS - 1]
