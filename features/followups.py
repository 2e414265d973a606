"""What usually follows a run: a planning call, and half a minute later the calls it fanned out to."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from features.bursts import LOAD_WINDOW_S
from features.periods import POINTS_S, by_tick, covers
from features.runs import spans
from features.scenarios import Followed

AGE_S = 100
"""How long after a run's start its tenant is watched."""
OWN_S = 10
"""A run's own first seconds don't follow it."""
MIN_SEEN = 4
MEMORY = 32
SPREAD_S = 4
LIGHT = 0.3
"""Share of the highest peak under which a run counts as one that nothing followed."""
NOTHING = -1
"""Stands for an outcome that is not remembered."""

_WORK_BITS = 40
_MOST_WORK = (1 << _WORK_BITS) - 1
_NO_WORK: Mapping[int, int] = {}
_COVERED = covers(POINTS_S - np.arange(1 - SPREAD_S, AGE_S)[:, None], SPREAD_S)
"""Chance that a follow-up covers each point, by the whole seconds to its peak, from 1 - SPREAD_S on."""


@dataclass(frozen=True, slots=True)
class Memories:
    """What followed the last runs of flows, sorted; m flows.

    Attributes:
        seen: how many outcomes are remembered, int64, (m,).
        light: how many of them are no follow-ups, int64, (m,).
        highest: the highest peak, tokens/s, (m,).
        peak_s: when each follow-up peaked after its run's start, in order, at the end of the row; what stands
            before is no follow-up and long ago, int64, (m, MEMORY).
        load: how high, tokens/s, (m, MEMORY).

    """

    seen: NDArray[np.int64]
    light: NDArray[np.int64]
    highest: NDArray[np.float64]
    peak_s: NDArray[np.int64]
    load: NDArray[np.float64]


class FollowUps:
    """Remembers what each flow's runs were followed by, and tells what the latest runs make likely.

    State is one row a flow of its last outcomes, in order of the first run.
    """

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}
        self._seen: list[int] = []
        self._outcomes = np.full((64, MEMORY), NOTHING)
        self._watches: deque[tuple[int, int, int]] = deque()  # start_s, row, tenant
        self._work: dict[int, dict[int, int]] = {}  # by second in order, then tenant

    def observe(self, tenant: int, second: int, work: int) -> None:
        """Take in a tenant's work in a second; seconds in order."""
        by_tenant = self._work.get(second)
        if by_tenant is None:
            self._learn(second)
            by_tenant = self._work[second] = {}
            while (oldest := next(iter(self._work))) < second - AGE_S:
                del self._work[oldest]
        by_tenant[tenant] = by_tenant.get(tenant, 0) + work

    def run_started(self, flow: int, tenant: int, second: int) -> None:
        """Watch what the tenant does after a run of one of its flows."""
        row = self._rows.get(flow)
        if row is None:
            row = self._rows[flow] = len(self._rows)
            self._seen.append(0)
            if row == len(self._outcomes):
                self._outcomes = np.concatenate([self._outcomes, np.full_like(self._outcomes, NOTHING)])
        self._watches.append((second, row, tenant))

    def around(self, t_s: int, floor: NDArray[np.float64]) -> Followed:
        """What may follow the latest runs at a tick; ``floor`` as in `around`, (1,)."""
        self._learn(t_s)
        watches = np.array(self._watches, dtype=np.int64).reshape(-1, 3)
        memories = remembered(self._outcomes[watches[:, 1]])
        row = np.arange(len(watches))
        return around(memories, row, np.zeros_like(row), t_s - watches[:, 0], floor)

    def copy(self) -> "FollowUps":
        """Follow-ups that know the same and go on by themselves; to be asked for between two seconds."""
        twin = FollowUps()
        twin._rows, twin._seen, twin._outcomes = self._rows.copy(), self._seen.copy(), self._outcomes.copy()
        twin._watches = self._watches.copy()
        twin._work = self._work.copy()  # a second that is over stays as it is
        return twin

    def _learn(self, t_s: int) -> None:
        """Learn from the runs whose watch is over at ``t_s``; all seconds before it were taken in."""
        while self._watches and (start_s := self._watches[0][0]) + AGE_S <= t_s:
            over = []
            while self._watches and self._watches[0][0] == start_s:
                over.append(self._watches.popleft())
            seconds = [self._work.get(start_s + age_s, _NO_WORK) for age_s in range(OWN_S, AGE_S)]
            work = [[by_tenant.get(tenant, 0) for by_tenant in seconds] for _, _, tenant in over]
            for (_, row, _), outcome in zip(over, outcomes(np.array(work)).tolist(), strict=True):
                self._outcomes[row, self._seen[row] % MEMORY] = outcome
                self._seen[row] += 1


def outcomes(work: NDArray[np.int64]) -> NDArray[np.int64]:
    """When a tenant's ten-second load first peaked after each of n runs, and how high, in one number, (n,).

    Args:
        work: what the tenant sent in each second from OWN_S to AGE_S after the run's start, tokens,
            (n, AGE_S - OWN_S).

    >>> work = np.zeros((1, 90), dtype=np.int64)
    >>> work[0, 30:35] = 200  # 40 s after the start: at 35 s the ten seconds ahead hold all of it
    >>> divmod(int(outcomes(work)[0]), 1 << 40)
    (35, 1000)

    """
    total = np.zeros((len(work), AGE_S + 1), dtype=np.int64)
    np.cumsum(work, axis=1, out=total[:, OWN_S + 1 :])
    loads = total[:, LOAD_WINDOW_S:] - total[:, :-LOAD_WINDOW_S]
    peak_s = loads.argmax(axis=1)
    highest = np.minimum(loads[np.arange(len(work)), peak_s], _MOST_WORK)
    return np.asarray((peak_s << _WORK_BITS) + highest)


def remembered(outcome: NDArray[np.int64]) -> Memories:
    """Memories of the last outcomes of flows, (m, MEMORY), in any order, NOTHING where there were fewer."""
    known = outcome != NOTHING
    load = (outcome & _MOST_WORK) * known / LOAD_WINDOW_S
    highest = load.max(axis=1)
    heavy = (load > 0.0) & (load >= LIGHT * highest[:, None])
    ordered = np.sort(np.where(heavy, outcome, NOTHING), axis=1)
    follow_up = ordered != NOTHING
    seen = known.sum(axis=1)
    return Memories(
        seen,
        seen - heavy.sum(axis=1),
        highest,
        np.where(follow_up, ordered >> _WORK_BITS, -AGE_S),
        (ordered & _MOST_WORK) * follow_up / LOAD_WINDOW_S,
    )


def around(
    memories: Memories,
    row: NDArray[np.int64],
    tick: NDArray[np.int64],
    age_s: NDArray[np.int64],
    floor: NDArray[np.float64],
) -> Followed:
    """What may still follow runs of that row of ``memories``, at that tick, started so long ago; each (n,).

    Past runs whose peak would have come by now say nothing about what is still to come of this one. Passed
    over are runs whose flow was seen too rarely, or was never followed by ``floor`` tokens/s, (ticks,).
    """
    told = (memories.seen[row] >= MIN_SEEN) & (memories.highest[row] >= floor[tick])
    row, tick, age_s = row[told], tick[told], age_s[told]
    heavy = (memories.peak_s[row] > age_s[:, None] - SPREAD_S).sum(axis=1)
    some = np.flatnonzero(heavy)
    row, heavy = row[some], heavy[some]
    can_come = heavy + memories.light[row]
    return Followed(tick[some], age_s[some], can_come, heavy, row, memories.peak_s, memories.load)


def expected(followed: Followed, ticks: int) -> NDArray[np.float64]:
    """Load that usually follows the latest runs, (2, POINTS, ticks): its mean, tokens/s, and its variance."""
    run, back = spans(followed.heavy)
    entry = (followed.row[run] + 1) * MEMORY - 1 - back
    load = followed.load.ravel()[entry]
    ahead_s = followed.peak_s.ravel()[entry] - followed.age_s[run]
    chance = np.take(_COVERED, ahead_s - (1 - SPREAD_S), axis=0)
    chance *= (load / followed.outcomes[run])[:, None]
    first = np.cumsum(followed.heavy) - followed.heavy
    if not len(first):
        return np.zeros((2, chance.shape[1], ticks))
    mean = np.add.reduceat(chance, first, axis=0)
    chance *= load[:, None]
    square = np.add.reduceat(chance, first, axis=0)
    return by_tick(followed.tick, mean, np.maximum(square - mean * mean, 0.0), ticks)
