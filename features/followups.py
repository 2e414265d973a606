"""What usually follows a run: a planning call, and half a minute later the calls it fanned out to."""

from collections import deque

import numpy as np
from numpy.typing import NDArray

SLOT_S = 10
AGES = 10
"""Slots after a run's start in which its tenant's work is learned."""
SLOTS = 9
"""Slots after a tick in which follow-up load is expected."""
MIN_SEEN = 3
MEMORY_RUNS = 20
"""The mean over a flow's runs becomes an exponential one after this many."""


class FollowUps:
    """Mean work of the tenant in the 100 s after each flow's runs start, and what it implies at a tick."""

    def __init__(self) -> None:
        self._profile: dict[int, tuple[int, NDArray[np.float64]]] = {}
        self._maturing: deque[tuple[int, int, int]] = deque()
        self._work: dict[int, deque[tuple[int, int]]] = {}

    def observe(self, tenant: int, second: int, work: int) -> None:
        """Take in a tenant's work in a second."""
        recent = self._work.setdefault(tenant, deque())
        recent.append((second, work))
        while recent[0][0] < second - 2 * AGES * SLOT_S:
            recent.popleft()

    def run_started(self, flow: int, tenant: int, second: int) -> None:
        """Watch what the tenant does after a run of one of its flows."""
        self._maturing.append((second, flow, tenant))

    def mature(self, t_s: int) -> None:
        """Learn from the runs that started at least 100 s before ``t_s``."""
        while self._maturing and self._maturing[0][0] + AGES * SLOT_S <= t_s:
            start, flow, tenant = self._maturing.popleft()
            load = np.zeros(AGES)
            for second, work in self._work[tenant]:
                if 0 <= second - start < AGES * SLOT_S:
                    load[(second - start) // SLOT_S] += work / SLOT_S
            seen, profile = self._profile.get(flow, (0, np.zeros(AGES)))
            self._profile[flow] = seen + 1, profile + (load - profile) / min(seen + 1, MEMORY_RUNS)

    def expected(self, t_s: int) -> NDArray[np.float64]:
        """Load that usually follows the latest runs, in 10 s slots after a tick, tokens/s, (SLOTS,)."""
        slots = np.zeros(SLOTS + AGES + 1)
        for start, flow, _ in self._maturing:
            seen, profile = self._profile.get(flow, (0, None))
            if profile is None or seen < MIN_SEEN:
                continue
            slot, offset = divmod(t_s - start, SLOT_S)
            # A tick falls inside a slot of the profile: its own slots mix two neighbours.
            part = offset / SLOT_S
            rest = profile[slot:]
            slots[: len(rest)] += (1.0 - part) * rest
            slots[: len(rest) - 1] += part * rest[1:]
        return slots[:SLOTS]
