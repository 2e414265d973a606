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
    tenant = flows.tenant[flows.flow]
    known = tenant >= 0
    if not known.any():
        return told
    key, at = np.unique(tenant[known] * flows.seconds + flows.second[known], return_inverse=True)
    tokens = np.minimum(np.bincount(at, weights=flows.work[known]).astype(np.int64), MOST)
    tenant, second = np.divmod(key, flows.seconds)
    _, first = np.unique(tenant, return_index=True)
    starts = np.sort(second[first])
    told[-1] = np.searchsorted(starts, t_s) - np.searchsorted(starts, t_s - NEW_S)
    order = np.argsort(second, kind="stable")
    for ticks, sums in _minutes(tenant[order], second[order] // TICK_S, tokens[order], len(t_s)):
        heaviest = -np.partition(-sums, HEAVIEST - 1, axis=0)[:HEAVIEST]
        told[:4, ticks] = sums.sum(0), heaviest.max(0), heaviest.sum(0), np.square(sums).sum(0)
    return told


def _minutes(
    tenant: NDArray[np.int64], tick: NDArray[np.int64], tokens: NDArray[np.int64], ticks: int
) -> Iterator[tuple[slice, NDArray[np.int64]]]:
    """Each tenant's sums over the minute before each tick, (tenants, ticks), a stretch of ticks at a time.

    The arrays are in order of time; work of the tick interval k is first seen by tick k + 1.
    """
    step = max(_CELLS // (int(tenant.max()) + 1), 8 * _WINDOW_TICKS)
    for start in range(0, ticks, step):
        stop = min(start + step, ticks)
        first = start - _WINDOW_TICKS
        few = slice(*np.searchsorted(tick, (first, stop)))
        active, row = np.unique(tenant[few], return_inverse=True)
        width = stop - first
        sums = np.zeros((max(len(active), HEAVIEST), width), np.int64)
        np.add.at(sums, (row, tick[few] - first), tokens[few])
        total = np.concatenate([np.zeros((len(sums), 1), np.int64), np.cumsum(sums, axis=1)], axis=1)
        yield slice(start, stop), total[:, _WINDOW_TICKS:-1] - total[:, : -_WINDOW_TICKS - 1]
