"""What is due: scheduled runs and usual follow-ups, kept one second at a time."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from features.followups import FollowUps
from features.periods import Schedules
from features.runs import RunDetector
from features.scenarios import Due, Level, crossings

EXPECTATIONS = 4
MATTERS = 0.2
"""Follow-ups under this share of the baseline are left out."""
MATTERS_DUE = 0.05
"""Scheduled runs under this share of the baseline take no part in scenarios."""


class Recurrence:
    """Learns from each second's flows and tells what is due around a tick.

    Schedules are learned twice: for callers, since a job's prompts may straddle size classes, and for single
    flows, since a job may share its caller with traffic that never rests.
    """

    def __init__(self) -> None:
        self._flow_runs, self._caller_runs = RunDetector(), RunDetector()
        self._flow_schedules, self._caller_schedules = Schedules(), Schedules()
        self._followups = FollowUps()

    def observe(self, second: int, flow: int, caller: int, tenant: int, work: int) -> None:
        """Take in what a flow sent in a second; seconds in order, flows of a second in order of number."""
        if tenant >= 0:
            self._followups.observe(tenant, second, work)
        if self._caller_runs.observe(caller, second, work):
            self._caller_schedules.run_started(caller, second, self._caller_runs.previous(caller))
        if self._flow_runs.observe(flow, second, work):
            if tenant >= 0:
                self._followups.run_started(flow, tenant, second)
            if self._caller_schedules.periodic(caller):
                self._flow_schedules.forget(flow)
            else:
                self._flow_schedules.run_started(flow, second, self._flow_runs.previous(flow))

    def copy(self) -> "Recurrence":
        """A recurrence that knows the same and goes on by itself."""
        twin = Recurrence()
        twin._flow_runs, twin._caller_runs = self._flow_runs.copy(), self._caller_runs.copy()
        twin._flow_schedules, twin._caller_schedules = (
            self._flow_schedules.copy(),
            self._caller_schedules.copy(),
        )
        twin._followups = self._followups.copy()
        return twin

    def expected(self, t_s: int, baseline: float) -> NDArray[np.float64]:
        """Load due around a tick, (EXPECTATIONS, POINTS).

        Mean, tokens/s, and variance of what schedules make due, then of what usually follows the latest runs.
        """
        scheduled = self._caller_schedules.expected(t_s) + self._flow_schedules.expected(t_s)
        return np.concatenate([scheduled, self._followups.expected(t_s, MATTERS * baseline)])

    def crossings(self, t_s: int, level: Level) -> NDArray[np.float64]:
        """How likely what is due makes a burst, (FIELDS,); after `expected` of that tick."""
        floor = MATTERS_DUE * level.baseline
        schedules = [self._caller_schedules.due(t_s, floor), self._flow_schedules.due(t_s, floor)]
        due = Due(
            *(
                np.concatenate([getattr(part, field.name) for part in schedules])
                for field in dataclasses.fields(Due)
            )
        )
        return crossings(due, self._followups.followed(t_s, MATTERS * level.baseline), level)
