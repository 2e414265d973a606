"""What usually follows a run: a planning call, and half a minute later the calls it fanned out to."""

from collections import deque
from collections.abc import Iterator, Mapping
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
MIN_SEEN = 4
MEMORY = 32
SPREAD_S = 4.0
LIGHT = 0.3
"""Share of the highest peak under which a run counts as one that nothing followed."""


_NOTHING: Mapping[int, int] = {}


@dataclass(frozen=True, slots=True)
class _Memory:
    """When the tenant's load peaked after each of a flow's last runs, and how high; one entry a run.

    Replaced, not changed, so that a copy of the follow-ups may share it.
    """

    seen: int = 0
    highest: float = 0.0
    peak_s: NDArray[np.float64] = field(default_factory=lambda: np.full(MEMORY, np.nan))
    peak_load: NDArray[np.float64] = field(default_factory=lambda: np.full(MEMORY, np.nan))

    def with_run(self, by_second: NDArray[np.float64]) -> "_Memory":
        """Add a run by what the tenant sent in each of the AGE_S seconds after its start."""
        total = np.concatenate([[0.0], np.cumsum(by_second)])
        loads = (total[LOAD_WINDOW_S:] - total[:-LOAD_WINDOW_S]) / LOAD_WINDOW_S
        entry = self.seen % MEMORY
        peak_s, peak_load = self.peak_s.copy(), self.peak_load.copy()
        peak_s[entry] = at = int(np.argmax(loads))
        peak_load[entry] = loads[at]
        return _Memory(self.seen + 1, float(np.fmax.reduce(peak_load)), peak_s, peak_load)

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
        self._watches.append((second, flow, tenant))

    def expected(self, t_s: int, floor: float) -> NDArray[np.float64]:
        """Load that usually follows the latest runs, (2, POINTS): its mean, tokens/s, and its variance.

        Flows whose runs never brought ``floor`` tokens/s are passed over.
        """
        self._learn(t_s)
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

    def copy(self) -> "FollowUps":
        """Follow-ups that know the same and go on by themselves; to be asked for between two seconds."""
        twin = FollowUps()
        twin._memory, twin._watches = self._memory.copy(), self._watches.copy()
        twin._work = self._work.copy()  # a second that is over stays as it is
        return twin

    def _learn(self, t_s: int) -> None:
        """Learn from the runs whose watch is over at ``t_s``; all seconds before it were taken in."""
        while self._watches and (start_s := self._watches[0][0]) + AGE_S <= t_s:
            seconds = [self._work.get(start_s + age_s, _NOTHING) for age_s in range(OWN_S, AGE_S)]
            while self._watches and self._watches[0][0] == start_s:
                _, flow, tenant = self._watches.popleft()
                by_second = np.zeros(AGE_S)
                by_second[OWN_S:] = [by_tenant.get(tenant, 0) for by_tenant in seconds]
                self._memory[flow] = (self._memory.get(flow) or _Memory()).with_run(by_second)

    def _awaited(self, floor: float) -> Iterator[tuple[int, _Memory]]:
        """Runs under watch whose flow is known to be followed by ``floor`` tokens/s or more."""
        for start_s, flow, _ in self._watches:
            memory = self._memory.get(flow)
            if memory is not None and memory.seen >= MIN_SEEN and memory.highest >= floor:
                yield start_s, memory
