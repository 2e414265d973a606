"""What usually follows a run: a planning call, and half a minute later the calls it fanned out to."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from features.bursts import LOAD_WINDOW_S
from features.periods import POINTS, POINTS_S, covers
from features.scenarios import Followed

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

    def open_outcomes(self, age_s: int) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
        """Loads of past outcomes, when they would peak from now, and which can still come of a run that old.

        Past runs whose peak would have come by now say nothing about what is still to come of this one.
        """
        known = min(self.seen, MEMORY)
        load = self.peak_load[:known]
        ahead = self.peak_s[:known] - age_s
        return load, ahead, (ahead > -SPREAD_S) | (load < LIGHT * self.highest)


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
        for start_s, memory in self._awaited(floor):
            load, ahead, still_open = memory.open_outcomes(t_s - start_s)
            chance = covers(POINTS_S - ahead[:, None], SPREAD_S) * still_open[:, None]
            chance /= max(float(np.sum(still_open)), 1.0)
            mean = load @ chance
            due += mean, np.maximum(np.square(load) @ chance - np.square(mean), 0.0)
        return due

    def followed(self, t_s: int, floor: float) -> list[Followed]:
        """What may still follow the latest runs, as outcomes to draw from; after `expected` of that tick."""
        found = []
        for start_s, memory in self._awaited(floor):
            load, ahead, still_open = memory.open_outcomes(t_s - start_s)
            if still_open.any():
                light = load < LIGHT * memory.highest
                found.append(Followed(ahead[still_open], np.where(light, 0.0, load)[still_open]))
        return found

    def _awaited(self, floor: float) -> Iterator[tuple[int, _Memory]]:
        """Runs under watch whose flow is known to be followed by ``floor`` tokens/s or more."""
        for start_s, flow, _ in self._watches:
            memory = self._memory.get(flow)
            if memory is not None and memory.seen >= MIN_SEEN and memory.highest >= floor:
                yield start_s, memory
