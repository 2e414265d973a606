"""Learned periods: senders whose runs come back on a schedule, when each is due, and how heavy it gets."""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import mul
from statistics import median

import numpy as np
from numpy.typing import NDArray

from features.bursts import LOAD_WINDOW_S
from features.runs import Run, spans
from features.scenarios import LOGISTIC, Due

POINTS_S = np.arange(-20.0, 76.0, 5.0)
"""Moments, relative to the tick, for which due load is told; the first ones are overdue."""
POINTS = len(POINTS_S)
LAST_S = float(POINTS_S[-1])
HISTORY_RUNS = 16
MIN_RUNS = 4
MAX_JITTER = 0.08
"""Largest typical deviation from the schedule, as a share of the period."""
MIN_SPREAD_S = 1.5
FITS = 4096
"""Fits remembered: a caller of one flow starts when its flow does, and seconds that close anew ask again."""
NO_SCHEDULE = 0.0, math.inf, 1.0, 0.0
FORGET_MISSES = 6
"""A schedule that missed this many runs in a row is no longer believed."""


@dataclass(frozen=True, slots=True)
class Fits:
    """Schedules and what their runs reached; n senders.

    Attributes:
        schedule: last start on the schedule, period and spread in seconds, share of the runs that came (0 for
            no schedule), float64, (4, n).
        loads: loads of the last runs, tokens/s, the latest first, NaN where there were fewer,
            (n, HISTORY_RUNS).

    """

    schedule: NDArray[np.float64]
    loads: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The next run of schedules around ticks; n runs, tick by tick.

    Attributes:
        tick: which of the ticks, int64, (n,).
        after_s: when it is due, from the tick, (n,).
        period_s, spread_s: of its schedule, (n,).
        chance: that it comes, (n,).
        loads: of the schedule's last runs, as in `Fits`, (n, HISTORY_RUNS).

    """

    tick: NDArray[np.int64]
    after_s: NDArray[np.float64]
    period_s: NDArray[np.float64]
    spread_s: NDArray[np.float64]
    chance: NDArray[np.float64]
    loads: NDArray[np.float64]


class Schedules:
    """Periodic senders: phase, period, jitter, loads of their last runs, and how often a run is skipped.

    State is one row a sender in a few arrays, in order of the first run, so that a tick takes a handful of
    vector operations.
    """

    def __init__(self) -> None:
        self._starts: dict[Hashable, tuple[int, ...]] = {}
        self._rows: dict[Hashable, int] = {}
        self._schedule = _none(64)
        self._loads = np.full((64, HISTORY_RUNS), np.nan)

    def run_started(self, sender: Hashable, start_s: int, previous: Run | None) -> None:
        """Learn from a sender's new run; ``previous`` is its last complete one."""
        starts = self._starts[sender] = (start_s, *self._starts.get(sender, ()))[: HISTORY_RUNS + 1]
        row = self._row(sender)
        if previous is not None:
            loads = self._loads[row]
            loads[1:] = loads[:-1]
            loads[0] = previous.load
        self._schedule[:, row] = fit_one(starts)

    def forget(self, sender: Hashable) -> None:
        """Expect nothing of a sender until its next runs are learned."""
        if sender in self._rows:
            self._schedule[3, self._rows[sender]] = 0.0

    def periodic(self, sender: Hashable) -> bool:
        """Whether the sender's last runs kept a schedule."""
        row = self._rows.get(sender)
        return row is not None and bool(self._schedule[3, row] > 0.0)

    def around(self, t_s: int) -> Scheduled:
        """What is due around a tick."""
        senders = len(self._rows)
        fits = Fits(self._schedule[:, :senders], self._loads[:senders])
        return around(fits, np.arange(senders), np.zeros(senders, np.int64), np.full(senders, t_s))

    def copy(self) -> "Schedules":
        """Schedules that know the same and go on by themselves."""
        twin = Schedules()
        twin._starts, twin._rows = self._starts.copy(), self._rows.copy()
        twin._schedule, twin._loads = self._schedule.copy(), self._loads.copy()
        return twin

    def _row(self, sender: Hashable) -> int:
        row = self._rows.get(sender)
        if row is None:
            row = self._rows[sender] = len(self._rows)
            if row == len(self._loads):
                self._schedule = np.concatenate([self._schedule, _none(row)], axis=1)
                self._loads = np.concatenate([self._loads, np.full_like(self._loads, np.nan)])
        return row


def around(fits: Fits, row: NDArray[np.int64], tick: NDArray[np.int64], t_s: NDArray[np.int64]) -> Scheduled:
    """Those of some pairs of a row of ``fits`` and a tick at ``t_s``, (n,), whose run is due around the tick.

    After each run that did not come, the schedule is believed less.
    """
    last, period, spread, presence = fits.schedule[:, row]
    ahead = np.maximum(np.ceil((t_s - (3.0 * spread + 10.0) - last) / period), 1.0)
    with np.errstate(invalid="ignore"):  # no schedule: an infinite period
        after_s = last + ahead * period - t_s
    near = np.flatnonzero((presence > 0.0) & (ahead <= FORGET_MISSES) & (after_s < LAST_S + 30.0))
    chance = presence[near] / ahead[near]
    return Scheduled(tick[near], after_s[near], period[near], spread[near], chance, fits.loads[row[near]])


def expected(scheduled: Scheduled, ticks: int) -> NDArray[np.float64]:
    """Load due from scheduled runs around ticks, (2, POINTS, ticks): its mean, tokens/s, and its variance.

    A point counts every run whose opening may cover it; runs may be skipped, come early or late, and vary
    in load, which is what makes the variance.
    """
    finite = np.isfinite(scheduled.loads)
    known, reached = finite.sum(axis=1), np.where(finite, scheduled.loads, 0.0)
    mean, square = (loads.sum(axis=1) / known for loads in (reached, reached * reached))
    chance = covers(POINTS_S - scheduled.after_s[:, None], scheduled.spread_s[:, None])
    chance *= scheduled.chance[:, None]
    loads = mean[:, None] * chance
    return by_tick(scheduled.tick, loads, square[:, None] * chance - loads * loads, ticks)


def by_tick(
    tick: NDArray[np.int64], mean: NDArray[np.float64], variance: NDArray[np.float64], ticks: int
) -> NDArray[np.float64]:
    """Sums over the sources of each tick, (2, POINTS, ticks), in their order; both (n, POINTS)."""
    place = (tick[:, None] * POINTS + np.arange(POINTS)).ravel()
    sums = [np.bincount(place, part.ravel(), ticks * POINTS) for part in (mean, variance)]
    return np.asarray(np.stack(sums).reshape(2, ticks, POINTS).swapaxes(1, 2), dtype=np.float64)


def due(scheduled: Scheduled, floor: NDArray[np.float64]) -> Due:
    """Runs due around ticks, but for senders whose runs never reached ``floor`` tokens/s, (ticks,).

    A sender with a short period comes once for each of its runs in the coming minute.
    """
    runs = np.maximum(np.floor((LAST_S - scheduled.after_s) / scheduled.period_s), 0.0).astype(np.int64) + 1
    runs[np.fmax.reduce(scheduled.loads, axis=1) < floor[scheduled.tick]] = 0
    row, later = spans(runs)
    return Due(
        scheduled.tick[row],
        scheduled.after_s[row] + later * scheduled.period_s[row],
        scheduled.spread_s[row],
        scheduled.chance[row],
        scheduled.loads[row],
    )


def covers(after_s: NDArray[np.float64], spread_s: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Chance that a load window covers a moment ``after_s`` past its expected, uncertain start."""
    scale = LOGISTIC * spread_s
    begun, over = (_logistic(edge / scale) for edge in (after_s, after_s - LOAD_WINDOW_S))
    return np.asarray(begun - over)


def fit(starts_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Fit schedules to the last starts of senders, as `Fits` has them, (4, n).

    Runs may be skipped, so a gap counts as the nearest whole number of median gaps; the phase is a
    least-squares line through the last runs, which averages their jitter out. Starts are whole seconds and
    their sums exact, so a sender's fit is the same alone and among others.

    Args:
        starts_s: the latest start first, NaN where there were fewer, (n, at least MIN_RUNS).

    >>> fit(np.array([[3_000.0, 2_400.0, 1_200.0, 600.0, 0.0, np.nan]])).tolist()  # every 600 s, one skipped
    [[3000.0], [600.0], [1.5], [0.8]]

    """
    known = np.isfinite(starts_s)
    runs = np.count_nonzero(known, axis=1)
    gaps = starts_s[:, :-1] - starts_s[:, 1:]
    typical = _median(gaps, runs - 1)
    # Whole periods between runs, counted back from the latest: a skipped run makes a gap of two.
    steps = np.maximum(np.round(gaps / typical[:, None]), 1.0)
    index = np.zeros_like(starts_s)
    index[:, 1:] = -np.cumsum(np.where(known[:, 1:], steps, 0.0), axis=1)
    periods = -index[:, -1]
    index *= known
    start = np.where(known, starts_s - starts_s[:, :1], 0.0)
    index_sum, start_sum = index.sum(axis=1), start.sum(axis=1)
    across = runs * (index * start).sum(axis=1) - index_sum * start_sum
    period = across / np.maximum(runs * (index * index).sum(axis=1) - index_sum * index_sum, 1.0)
    first = start_sum / runs - period * (index_sum / runs)
    residual = np.abs(start - first[:, None] - period[:, None] * index)
    jitter = 1.4826 * _median(np.where(known, residual, np.nan), runs)
    last = starts_s[:, 0] + first
    fits = np.stack([last, period, np.maximum(jitter, MIN_SPREAD_S), (runs - 1) / np.maximum(periods, 1.0)])
    regular = (runs >= MIN_RUNS) & (period > 0.0) & (jitter <= MAX_JITTER * period)
    return np.where(regular, fits, _none(1))


@lru_cache(FITS)
def fit_one(starts_s: tuple[int, ...]) -> tuple[float, float, float, float]:
    """Fit a schedule to one sender's last starts, the latest first: `fit` step by step, ten times as fast.

    >>> fit_one((3_000, 2_400, 1_200, 600, 0))
    (3000.0, 600.0, 1.5, 0.8)
    """
    runs = len(starts_s)
    if runs < MIN_RUNS:
        return NO_SCHEDULE
    gaps = [late - early for late, early in pairwise(starts_s)]
    typical = median(gaps)
    steps = [max(round(gap / typical), 1) for gap in gaps]
    index = [-before for before in accumulate(steps, initial=0)]
    start = [start_s - starts_s[0] for start_s in starts_s]
    index_sum, start_sum = sum(index), sum(start)
    across = runs * sum(map(mul, index, start)) - index_sum * start_sum
    period = across / (runs * sum(map(mul, index, index)) - index_sum * index_sum)
    first = start_sum / runs - period * (index_sum / runs)
    residual = [abs(at - first - period * place) for at, place in zip(start, index, strict=True)]
    jitter = 1.4826 * median(residual)
    if period <= 0.0 or jitter > MAX_JITTER * period:
        return NO_SCHEDULE
    return starts_s[0] + first, period, max(jitter, MIN_SPREAD_S), (runs - 1) / -index[-1]


def _median(values: NDArray[np.float64], known: NDArray[np.int64]) -> NDArray[np.float64]:
    """Median of each row's ``known`` values, (n,); the others are NaN."""
    ordered, row = np.sort(values, axis=1), np.arange(len(values))
    return np.asarray((ordered[row, (known - 1) // 2] + ordered[row, known // 2]) / 2.0)


def _logistic(z: NDArray[np.float64]) -> NDArray[np.float64]:
    # np.clip costs more than both bounds: these arrays are small.
    return np.asarray(1.0 / (1.0 + np.exp(-np.minimum(np.maximum(z, -50.0), 50.0))))


def _none(senders: int) -> NDArray[np.float64]:
    """No schedule, (4, senders)."""
    return np.repeat(np.array(NO_SCHEDULE)[:, None], senders, axis=1)
