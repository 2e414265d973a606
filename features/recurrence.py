"""What is due: scheduled runs and usual follow-ups, kept one second at a time."""

import numpy as np
from numpy.typing import NDArray

from features import followups, periods
from features.followups import FollowUps
from features.periods import Scheduled, Schedules
from features.runs import RunDetector
from features.scenarios import Followed, Level, crossings

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
        self._runs, self._schedules, self._followups = RunDetector(), Schedules(), FollowUps()

    def observe(self, second: int, flow: int, caller: int, tenant: int, work: int) -> None:
        """Take in what a flow sent in a second; seconds in order, flows of a second in order of number."""
        if tenant >= 0:
            self._followups.observe(tenant, second, work)
        runs, schedules, sender = self._runs, self._schedules, ~caller  # a number that no flow has
        if runs.observe(sender, second, work):
            schedules.run_started(sender, second, runs.previous(sender))
        if runs.observe(flow, second, work):
            if tenant >= 0:
                self._followups.run_started(flow, tenant, second)
            if schedules.periodic(sender):
                schedules.forget(flow)
            else:
                schedules.run_started(flow, second, runs.previous(flow))

    def copy(self) -> "Recurrence":
        """A recurrence that knows the same and goes on by itself."""
        twin = Recurrence()
        twin._runs, twin._schedules = self._runs.copy(), self._schedules.copy()
        twin._followups = self._followups.copy()
        return twin

    def around(self, t_s: int, level: Level) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What is due around a tick, as `told` says of one."""
        return told(self._schedules.around(t_s), self._followups.around(t_s, MATTERS * level.baseline), level)


def told(
    scheduled: Scheduled, followed: Followed, level: Level
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Load due around ticks, (EXPECTATIONS, POINTS, ticks), and how likely it makes a burst, (FIELDS, ticks).

    Mean, tokens/s, and variance of what schedules make due, then of what usually follows the latest runs;
    the chances are those of `features.scenarios.crossings`.
    """
    ticks = len(level.baseline)
    due = np.concatenate([periods.expected(scheduled, ticks), followups.expected(followed, ticks)])
    return due, crossings(periods.due(scheduled, MATTERS_DUE * level.baseline), followed, level)
