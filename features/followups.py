"""What usually follows a run: a planning call, and half a minute later the calls it fanned out to."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from features.bursts import LOAD_WINDOW_S
from features.periods import POINTS, POINTS_S, covers

AGE_S = 100
"""How long after a run's start its tenant is watched."""
OWN_S = 10
"""A run's own first seconds don't follow it."""
KEPT_S = 200
"""How long a tenant's work is kept: a tick may come late."""
MIN_SEEN = 4
MEMORY = 32
SPREAD_S = 4.0
LIGHT = 0.3
"""Share of the highest peak under which a run counts as one that nothing followed."""


@dataclass(slots=True)
class _Memory:
    """When the tenant's load peaked after each of a flow's last runs, and how high; one entry a run."""

    seen: int = 0
    highest: float = 0.0
    peak_s: NDArray[np.float64] = field(default_factory=lambda: np.full(MEMORY, np.nan))
    peak_load: NDArray[np.float64] = field(default_factory=lambda: np.full(MEMORY, np.nan))

    def learn(self, start_s: int, work: Iterable[tuple[int, int]]) -> None:
        by_second = np.zeros(AGE_S)
        for second, tokens in work:
            if OWN_S <= second - start_s < AGE_S:
                by_second[second - start_s] += tokens
        total = np.concatenate([[0.0], np.cumsum(by_second)])
        loads = (total[LOAD_WINDOW_S:] - total[:-LOAD_WINDOW_S]) / LOAD_WINDOW_S
        entry = self.seen % MEMORY
        self.seen += 1
        self.peak_s[entry] = at = int(np.argmax(loads))
        self.peak_load[entry] = loads[at]
        self.highest = float(np.nanmax(self.peak_load))


class FollowUps:
    """Remembers what each flow's runs were followed by, and tells what the latest runs make likely."""

    def __init__(self) -> None:
        self._memory: dict[int, _Memory] = {}
        self._watches: deque[tuple[int, int, int]] = deque()  # start_s, flow, tenant
        self._work: dict[int, deque[tuple[int, int]]] = {}  # (second, work) by tenant

    def observe(self, tenant: int, second: int, work: int) -> None:
        """Take in a tenant's work in a second."""
        recent = self._work.get(tenant)
        if recent is None:
            recent = self._work[tenant] = deque()
        recent.append((second, work))
        if recent[0][0] < second - KEPT_S:
            recent.popleft()

    def run_started(self, flow: int, tenant: int, second: int) -> None:
        """Watch what the tenant does after a run of one of its flows."""
        self._watches.append((second, flow, tenant))

    def expected(self, t_s: int, floor: float) -> NDArray[np.float64]:
        """Load that usually follows the latest runs, (2, POINTS): its mean, tokens/s, and its variance.

        Flows whose runs never brought ``floor`` tokens/s are passed over.
        """
        while self._watches and self._watches[0][0] + AGE_S <= t_s:
            start_s, flow, tenant = self._watches.popleft()
            self._memory.setdefault(flow, _Memory()).learn(start_s, self._work[tenant])
        due = np.zeros((2, POINTS))
        for start_s, flow, _ in self._watches:
            memory = self._memory.get(flow)
            if memory is None or memory.seen < MIN_SEEN or memory.highest < floor:
                continue
            known = min(memory.seen, MEMORY)
            load = memory.peak_load[:known]
            ahead = memory.peak_s[:known] - (t_s - start_s)
            # Past runs whose peak would have come by now say nothing about what is still to come of this one.
            still_open = (ahead > -SPREAD_S) | (load < LIGHT * memory.highest)
            chance = covers(POINTS_S - ahead[:, None], SPREAD_S) * still_open[:, None]
            chance /= max(float(np.sum(still_open)), 1.0)
            mean = load @ chance
            due += mean, np.maximum(np.square(load) @ chance - np.square(mean), 0.0)
        return due
