"""What is due: scheduled runs and usual follow-ups, kept one second at a time."""

import numpy as np
from numpy.typing import NDArray

from features import followups, periods
from features.followups import FollowUps
from features.periods import Schedules
from features.runs import RunDetector

EXPECTATIONS = 2 * periods.SLOTS + followups.SLOTS


class Recurrence:
    """Learns from each second's flows and tells the load that is due around a tick."""

    def __init__(self) -> None:
        self._detector = RunDetector()
        self._schedules = Schedules()
        self._followups = FollowUps()

    def observe(self, second: int, flow: int, tenant: int, work: int) -> None:
        """Take in what a flow sent in a second; seconds in order, flows of a second in order of number."""
        if tenant >= 0:
            self._followups.observe(tenant, second, work)
        if self._detector.observe(flow, second, work):
            self._schedules.run_started(flow, second, self._detector.previous(flow))
            if tenant >= 0:
                self._followups.run_started(flow, tenant, second)

    def expected(self, t_s: int) -> NDArray[np.float64]:
        """Loads due around a tick, tokens/s: scheduled (sum, largest), then follow-ups; (EXPECTATIONS,)."""
        self._followups.mature(t_s)
        return np.concatenate([self._schedules.expected(t_s).ravel(), self._followups.expected(t_s)])
