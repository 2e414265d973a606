"""What is due around every tick of a trace: what `features.recurrence` tells tick by tick, for all at once.

A schedule changes only when a run of its sender starts, and what is remembered of a flow only when a watch
ends. So all runs are found first, then the schedule that each of them makes known, and then, one stretch of
ticks after the other, the pairs of a tick and what is due around it.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features import followups, periods
from features.flows import FlowSeconds
from features.followups import AGE_S, MEMORY, NOTHING, OWN_S, outcomes, remembered
from features.periods import FORGET_MISSES, HISTORY_RUNS, MIN_RUNS, POINTS, Fits, Scheduled
from features.recurrence import EXPECTATIONS, MATTERS, told
from features.runs import Runs, find_runs, ranks, spans
from features.scenarios import FIELDS, Followed, Level

TICKS = 256
"""Ticks told at once: their scenarios stay in the processor's cache."""
THREADS = 4
"""At most; more would wait for each other between vector operations."""
BLOCK = 16_384
"""Runs looked at together."""
_FOREVER_S = 1 << 40


@dataclass(frozen=True, slots=True)
class Recurring:
    """All schedules of a trace and all runs whose tenant is watched."""

    schedules: "KnownSchedules"
    watches: "Watches"

    def around(self, t_s: NDArray[np.int64], level: Level) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Load due around ticks in a row, (EXPECTATIONS, POINTS, ticks), and its chances, (FIELDS, ticks).

        Equal to `features.recurrence.Recurrence.around` at each tick, to the last bit.
        """
        due = np.empty((EXPECTATIONS, POINTS, len(t_s)))
        chances = np.empty((FIELDS, len(t_s)))

        def tell(first: int) -> None:
            some = slice(first, first + TICKS)
            part = Level(level.baseline[some], level.usual[some], level.line[some])
            scheduled = self.schedules.around(t_s[some])
            followed = self.watches.around(t_s[some], MATTERS * part.baseline)
            due[:, :, some], chances[:, some] = told(scheduled, followed, part)

        # NumPy lets other threads go on while it computes.
        with ThreadPoolExecutor(min(os.cpu_count() or 1, THREADS)) as pool:
            for _ in pool.map(tell, range(0, len(t_s), TICKS)):
                pass
        return due, chances


def find_recurring(flows: FlowSeconds) -> Recurring:
    """Find what recurs in a trace."""
    callers = find_runs(flows.caller[flows.flow], flows.second, flows.work)
    runs = find_runs(flows.flow, flows.second, flows.work)
    return Recurring(find_schedules(callers, runs, flows), find_watches(runs, flows))


@dataclass(frozen=True, slots=True)
class KnownSchedules:
    """Every schedule of a trace and when it was believed, in the order in which `Schedules` has its senders.

    Attributes:
        fits: the schedules; n of them.
        from_s, until_s: ticks after the one, up to the other, know it, (n,).

    """

    fits: Fits
    from_s: NDArray[np.int64]
    until_s: NDArray[np.int64]

    def around(self, t_s: NDArray[np.int64]) -> Scheduled:
        """What is due around some ticks in a row."""
        some = np.flatnonzero((self.from_s < t_s[-1]) & (self.until_s >= t_s[0]))
        first, until = (
            np.searchsorted(t_s, edge[some], side="right") for edge in (self.from_s, self.until_s)
        )
        row, later = spans(until - first)
        tick = first[row] + later
        order = np.argsort(tick.astype(np.int16), kind="stable")
        tick = tick[order]
        return periods.around(self.fits, some[row[order]], tick, t_s[tick])


def find_schedules(callers: Runs, runs: Runs, flows: FlowSeconds) -> KnownSchedules:
    """Find the schedules of a trace from the runs of its callers and of its flows.

    While a caller keeps a schedule, runs of its flows teach nothing.
    """
    everyone = np.ones(len(callers.sender), dtype=np.bool_)
    by_caller = _schedules(callers, everyone)
    key = callers.sender * len(flows.second) + callers.entry
    caller = flows.caller[runs.sender]
    latest = np.searchsorted(key, caller * len(flows.second) + runs.entry, side="right") - 1
    by_flow = _schedules(runs, ~by_caller.periodic[latest])
    # A sender stands where its first run put it; its caller, if that started too, before it.
    place = np.concatenate([2 * by_caller.place, 2 * by_flow.place + 1])
    order = np.argsort(place, kind="stable")
    return KnownSchedules(
        Fits(
            np.concatenate([by_caller.fits.schedule, by_flow.fits.schedule], axis=1)[:, order],
            np.concatenate([by_caller.fits.loads, by_flow.fits.loads])[order],
        ),
        np.concatenate([by_caller.from_s, by_flow.from_s])[order],
        np.concatenate([by_caller.until_s, by_flow.until_s])[order],
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """Schedules as in `KnownSchedules`, where their senders stand, and which of all runs kept a schedule."""

    fits: Fits
    from_s: NDArray[np.int64]
    until_s: NDArray[np.int64]
    place: NDArray[np.int64]
    periodic: NDArray[np.bool_]


def _schedules(runs: Runs, learned: NDArray[np.bool_]) -> _Part:
    """Schedules that are known after each of the runs that teach something."""
    taught = np.flatnonzero(learned)
    until_s = np.append(runs.start_s[1:], _FOREVER_S)
    until_s[np.append(runs.rank[1:] == 0, True)] = _FOREVER_S
    previous = np.where(runs.rank > 0, np.append(np.nan, runs.load[:-1]), np.nan)[taught]
    start_s = runs.start_s[taught].astype(np.float64)
    rank = ranks(runs.sender[taught])
    place = runs.entry[taught][np.arange(len(taught)) - rank]
    schedule, loads, which = [np.zeros((4, 0))], [np.zeros((0, HISTORY_RUNS))], [np.zeros(0, np.int64)]
    enough = np.flatnonzero(rank >= MIN_RUNS - 1)
    for some in _blocks(enough):
        fitted = periods.fit(_last(start_s, some, rank, HISTORY_RUNS + 1, np.nan))
        kept = fitted[3] > 0.0
        schedule.append(fitted[:, kept])
        loads.append(_last(previous, some[kept], rank, HISTORY_RUNS, np.nan))
        which.append(some[kept])
    found = np.concatenate(which)
    fits = Fits(np.concatenate(schedule, axis=1), np.concatenate(loads))
    last, period, spread, _ = fits.schedule
    # Later than this no run is waited for; a second more makes up for rounding.
    over_s = np.ceil(last + FORGET_MISSES * period + 3.0 * spread + 11.0).astype(np.int64)
    periodic = np.zeros(len(runs.sender), dtype=np.bool_)
    periodic[taught[found]] = True
    return _Part(
        fits, runs.start_s[taught[found]], np.minimum(until_s[taught[found]], over_s), place[found], periodic
    )


@dataclass(frozen=True, slots=True)
class Watches:
    """Every run of a trace whose tenant is watched afterwards; n runs, flow by flow.

    Attributes:
        rank: how many runs of the same flow came before, int64, (n,).
        start_s: when it started, (n,).
        outcome: what followed it, as `features.followups.outcomes` has it, (n,).
        order: the runs in order of time, (n,).
        ordered_s: when each of these started, (n,).

    """

    rank: NDArray[np.int64]
    start_s: NDArray[np.int64]
    outcome: NDArray[np.int64]
    order: NDArray[np.int64]
    ordered_s: NDArray[np.int64]

    def around(self, t_s: NDArray[np.int64], floor: NDArray[np.float64]) -> Followed:
        """What may follow the latest runs at some ticks in a row; ``floor`` as `followups.around` has it."""
        first = np.searchsorted(self.ordered_s, t_s - AGE_S, side="right")
        until = np.searchsorted(self.ordered_s, t_s)
        watch, start_s = self.order[first[0] : until[-1]], self.ordered_s[first[0] : until[-1]]
        # A run that started while its flow's last one was still watched knew one outcome less at first.
        known = [_last(self.outcome, watch, self.rank, MEMORY, NOTHING, late) for late in (1, 2)]
        memories = remembered(np.concatenate(known))
        tick, later = spans(until - first)
        row = (first - first[0])[tick] + later
        before_s = np.where(self.rank[watch] > 0, self.start_s[watch - 1], -AGE_S)
        unknown = before_s[row] + AGE_S > t_s[tick]
        return followups.around(memories, row + len(watch) * unknown, tick, t_s[tick] - start_s[row], floor)


def find_watches(runs: Runs, flows: FlowSeconds) -> Watches:
    """Find what followed each run of a flow whose tenant is known."""
    tenant = flows.tenant[flows.flow]
    by_tenant = np.flatnonzero(tenant >= 0)
    by_tenant = by_tenant[np.argsort(tenant[by_tenant], kind="stable")]
    key = tenant[by_tenant] * flows.seconds + flows.second[by_tenant]
    second, work = flows.second[by_tenant], flows.work[by_tenant]
    watched = np.flatnonzero(flows.tenant[runs.sender] >= 0)
    start_s, entry = runs.start_s[watched], runs.entry[watched]
    found = [np.zeros(0, np.int64)]
    for some in _blocks(np.arange(len(watched))):
        base = tenant[entry[some]] * flows.seconds
        edges_s = (np.minimum(start_s[some] + age_s, flows.seconds) for age_s in (OWN_S, AGE_S))
        first, until = (np.searchsorted(key, base + edge_s) for edge_s in edges_s)
        row, later = spans(until - first)
        at = first[row] + later
        place = row * (AGE_S - OWN_S) + second[at] - start_s[some][row] - OWN_S
        # float64 sums of whole tokens are exact up to 2^53.
        by_second = np.bincount(place, work[at], len(some) * (AGE_S - OWN_S))
        found.append(outcomes(by_second.astype(np.int64).reshape(len(some), -1)))
    order = np.argsort(entry)
    return Watches(runs.rank[watched], start_s, np.concatenate(found), order, start_s[order])


def _last(
    values: NDArray[Any],
    at: NDArray[np.int64],
    rank: NDArray[np.int64],
    many: int,
    none: float,
    skip: int = 0,
) -> NDArray[Any]:
    """Values at some entries and before them in their group, but for the last ``skip``: the latest first.

    Returns (entries, many), with ``none`` where the group had begun by then.
    """
    back = np.arange(skip, skip + many)
    return np.where(back <= rank[at, None], values[np.maximum(at[:, None] - back, 0)], none)


def _blocks(entries: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for first in range(0, len(entries), BLOCK):
        yield entries[first : first + BLOCK]
