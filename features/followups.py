"""What usually follows a run: a planning call, and half a minute later the calls it fanned out to."""

from collections import deque
from collections.abc import Mapping
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


@dataclass(frozen=True, slots=True)
class _Outcomes:
    """Past outcomes of the runs under watch: loads, when they would peak from now, and which can still come.

    One row a run and one column a remembered outcome, (runs, MEMORY); what is not remembered can't come.
    """

    load: NDArray[np.float64]
    ahead_s: NDArray[np.float64]
    light: NDArray[np.bool_]
    still_open: NDArray[np.bool_]


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
        outcomes = self._outcomes(t_s, floor)
        if outcomes is None:
            return np.zeros((2, POINTS))
        still_open = outcomes.still_open[:, :, None]
        chance = np.where(still_open, covers(POINTS_S - outcomes.ahead_s[:, :, None], SPREAD_S), 0.0)
        chance /= np.maximum(np.sum(still_open, axis=1, keepdims=True), 1)
        load = np.where(outcomes.still_open, outcomes.load, 0.0)[:, :, None]
        mean = np.sum(load * chance, axis=1)
        variance = np.maximum(np.sum(np.square(load) * chance, axis=1) - np.square(mean), 0.0)
        return np.stack([mean.sum(axis=0), variance.sum(axis=0)])

    def followed(self, t_s: int, floor: float) -> list[Followed]:
        """What may still follow the latest runs, as outcomes to draw from; after `expected` of that tick."""
        outcomes = self._outcomes(t_s, floor)
        if outcomes is None:
            return []
        load = np.where(outcomes.light, 0.0, outcomes.load)
        return [
            Followed(after_s[can], load[can])
            for after_s, load, can in zip(outcomes.ahead_s, load, outcomes.still_open, strict=True)
            if can.any()
        ]

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

    def _outcomes(self, t_s: int, floor: float) -> _Outcomes | None:
        """Outcomes of the watched runs whose flow is known to be followed by ``floor`` tokens/s or more.

        Past runs whose peak would have come by now say nothing about what is still to come of this one.
        """
        found = [
            (start_s, memory)
            for start_s, flow, _ in self._watches
            if (memory := self._memory.get(flow)) is not None
            and memory.seen >= MIN_SEEN
            and memory.highest >= floor
        ]
        if not found:
            return None
        age_s = np.array([t_s - start_s for start_s, _ in found])
        load = np.stack([memory.peak_load for _, memory in found])
        ahead_s = np.stack([memory.peak_s for _, memory in found]) - age_s[:, None]
        light = load < LIGHT * np.array([memory.highest for _, memory in found])[:, None]
        return _Outcomes(load, ahead_s, light, (ahead_s > -SPREAD_S) | light)
