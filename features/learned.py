"""What is learned in order of time: how requests of each flow end, how heavy they are, what is due."""

import math
from collections.abc import Iterable, Mapping

from features.flows import MAX_SIZE
from features.recurrence import Recurrence
from features.returns import Returns
from features.tenants import TenantLoad
from features.windows import day_before

EVERYONE = -1
"""Stands for all flows together."""

Totals = tuple[int, int, int, int]
_NONE: Totals = (0, 0, 0, 0)
Endings = tuple[int, int, int, int, int, int]
"""Finished requests, their prompt, cached and output tokens, their work and the squares of it."""
_NO_ENDINGS: Endings = (0, 0, 0, 0, 0, 0)


def sum_up(requests: Iterable[tuple[int, int, int, int]], sums: dict[int, Endings]) -> None:
    """Add finished requests, as flow, prompt, cached and output tokens, to the sums of their flows.

    >>> sums = {7: (1, 10, 0, 2, 12, 144)}
    >>> sum_up([(7, 100, 30, 5), (8, 1, 0, 0)], sums)
    >>> sums
    {7: (2, 110, 30, 7, 87, 5769), 8: (1, 1, 0, 0, 1, 1)}

    """
    for flow, prompt, cached, output in requests:
        size = min(max(prompt - cached + output, 0), MAX_SIZE)
        n, a, b, c, work, squares = sums.get(flow, _NO_ENDINGS)
        sums[flow] = n + 1, a + prompt, b + cached, c + output, work + size, squares + size * size


class Learned:
    """Grows second by second; a copy costs little, for what stands in its tables is replaced, not changed.

    Attributes:
        ended: how many requests ended, their work in tokens and its squares.
        ended_by_hour: the same at the start of each hour of the last day.
        recurrence: what is due.
        tenants: who sends the load.
        returns: sessions whose next turn is due.

    """

    def __init__(self) -> None:
        self.ended = (0, 0, 0)
        self.ended_by_hour = {0: self.ended}
        self.recurrence = Recurrence()
        self.tenants = TenantLoad()
        self.returns = Returns()
        self._totals: dict[int, Totals] = {}  # finished requests, prompt, cached and output tokens by flow

    def copy(self) -> "Learned":
        """The same knowledge, to go on by itself; to be asked for between two seconds."""
        twin = Learned()
        twin.ended, twin.ended_by_hour = self.ended, self.ended_by_hour.copy()
        twin.recurrence = self.recurrence.copy()
        twin.tenants, twin.returns = self.tenants.copy(), self.returns.copy()
        twin._totals = self._totals.copy()
        return twin

    def expected_work(self, flow: int, requests: int, prompt_tokens: int) -> int:
        """Work to expect of a flow's requests, by its finished ones, or everyone's while it has none."""
        known = self._totals.get(flow) or self._totals.get(EVERYONE, _NONE)
        finished, prompt, cached, output = known
        uncached = prompt_tokens - prompt_tokens * (cached / max(prompt, 1))
        return math.floor(uncached + requests * (output / max(finished, 1)) + 0.5)

    def finished(self, endings: Mapping[int, Endings]) -> None:
        """Take in what finished in a second, by flow."""
        totals = self._totals
        everyone, ended = totals.get(EVERYONE, _NONE), self.ended
        for flow, (requests, prompt, cached, output, work, squares) in endings.items():
            a, b, c, d = totals.get(flow, _NONE)
            totals[flow] = a + requests, b + prompt, c + cached, d + output
            a, b, c, d = everyone
            everyone = a + requests, b + prompt, c + cached, d + output
            a, b, c = ended
            ended = a + requests, b + work, c + squares
        totals[EVERYONE], self.ended = everyone, ended

    def hour(self, t_s: int) -> None:
        """An hour starts."""
        self.ended_by_hour[t_s] = self.ended
        self.ended_by_hour.pop(day_before(t_s) - 3600, None)
