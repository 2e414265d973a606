"""Learned periods: senders whose runs come back on a schedule, when each is due, and how heavy it gets."""

from collections.abc import Hashable
from functools import lru_cache
from statistics import median

import numpy as np
from numpy.typing import NDArray

from features.bursts import LOAD_WINDOW_S
from features.runs import Run
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
FORGET_MISSES = 6
"""A schedule that missed this many runs in a row is no longer believed."""


class Schedules:
    """Periodic senders: phase, period, jitter, loads of their last runs, and how often a run is skipped.

    Runs may be skipped, so a gap counts as the nearest whole number of median gaps; the phase is a
    least-squares line through the last runs, which averages their jitter out. State is one row a sender in a
    few arrays, so that a tick takes a handful of vector operations.
    """

    def __init__(self) -> None:
        self._starts: dict[Hashable, tuple[int, ...]] = {}
        self._rows: dict[Hashable, int] = {}
        self._fits = _fresh(4, 64)  # fitted last start, period, spread, share of runs that came
        self._loads = np.full((64, HISTORY_RUNS), np.nan)

    def run_started(self, sender: Hashable, start_s: int, previous: Run | None) -> None:
        """Learn from a sender's new run; ``previous`` is its last complete one."""
        starts = self._starts[sender] = (*self._starts.get(sender, ()), start_s)[-HISTORY_RUNS - 1 :]
        row = self._row(sender)
        if previous is not None:
            loads = self._loads[row]
            loads[1:] = loads[:-1]
            loads[0] = previous.load
        fit = _fit(starts) if len(starts) >= MIN_RUNS else None
        self._fits[:, row] = fit or (0.0, np.inf, 1.0, 0.0)

    def forget(self, sender: Hashable) -> None:
        """Expect nothing of a sender until its next runs are learned."""
        if sender in self._rows:
            self._fits[3, self._rows[sender]] = 0.0

    def periodic(self, sender: Hashable) -> bool:
        """Whether the sender's last runs kept a schedule."""
        row = self._rows.get(sender)
        return row is not None and bool(self._fits[3, row] > 0.0)

    def expected(self, t_s: int) -> NDArray[np.float64]:
        """Load due from scheduled runs around a tick, (2, POINTS): its mean, tokens/s, and its variance.

        A point counts every run whose opening may cover it; runs may be skipped, come early or late, and vary
        in load, which is what makes the variance.
        """
        near, due, spread, weight = self._near(t_s)
        if not len(near):
            return np.zeros((2, POINTS))
        loads = self._loads[near]
        mean, square = np.nanmean(loads, axis=1), np.nanmean(np.square(loads), axis=1)
        chance = covers(POINTS_S - due[:, None], spread[:, None]) * weight[:, None]
        return np.stack([mean @ chance, square @ chance - np.square(mean) @ np.square(chance)])

    def due(self, t_s: int, floor: float) -> Due:
        """Runs due around a tick, but for senders whose runs never reached ``floor`` tokens/s.

        A sender with a short period comes once for each of its runs in the coming minute.
        """
        near, due, spread, weight = self._near(t_s)
        heavy = np.nanmax(self._loads[near], axis=1, initial=0.0) >= floor
        near, due, spread, weight = near[heavy], due[heavy], spread[heavy], weight[heavy]
        runs = np.maximum(np.floor((LAST_S - due) / self._fits[1, near]), 0.0).astype(np.int64) + 1
        later = np.arange(runs.sum()) - np.repeat(np.cumsum(runs) - runs, runs)
        near = np.repeat(near, runs)
        due, spread, weight = (np.repeat(values, runs) for values in (due, spread, weight))
        return Due(due + later * self._fits[1, near], spread, weight, self._loads[near])

    def copy(self) -> "Schedules":
        """Schedules that know the same and go on by themselves."""
        twin = Schedules()
        twin._starts, twin._rows = self._starts.copy(), self._rows.copy()
        twin._fits, twin._loads = self._fits.copy(), self._loads.copy()
        return twin

    def _near(
        self, t_s: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Rows with a run due around a tick: row, when from the tick, spread, chance that it comes."""
        last, period, spread, presence = self._fits[:, : len(self._rows)]
        grace = 3.0 * spread + 10.0
        ahead = np.maximum(np.ceil((t_s - grace - last) / period), 1.0)
        with np.errstate(invalid="ignore"):
            due = last + ahead * period - t_s
        weight = np.where(ahead <= FORGET_MISSES, presence / ahead, 0.0)
        near = np.flatnonzero((weight > 0.0) & (due < LAST_S + 30.0))
        return near, due[near], spread[near], weight[near]

    def _row(self, sender: Hashable) -> int:
        row = self._rows.get(sender)
        if row is None:
            row = self._rows[sender] = len(self._rows)
            if row == len(self._loads):
                self._fits = np.concatenate([self._fits, _fresh(4, row)], axis=1)
                self._loads = np.concatenate([self._loads, np.full_like(self._loads, np.nan)])
        return row


def covers(after_s: NDArray[np.float64], spread_s: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Chance that a load window covers a moment ``after_s`` past its expected, uncertain start."""
    scale = LOGISTIC * spread_s
    begun, over = (_logistic(edge / scale) for edge in (after_s, after_s - LOAD_WINDOW_S))
    return np.asarray(begun - over)


def _logistic(z: NDArray[np.float64]) -> NDArray[np.float64]:
    # np.clip costs more than both bounds: these arrays are small.
    return np.asarray(1.0 / (1.0 + np.exp(-np.minimum(np.maximum(z, -50.0), 50.0))))


def _fresh(rows: int, columns: int) -> NDArray[np.float64]:
    fits = np.zeros((rows, columns))
    fits[1], fits[2] = np.inf, 1.0
    return fits


@lru_cache(FITS)
def _fit(starts: tuple[int, ...]) -> tuple[float, float, float, float] | None:
    """Fit (last start on the schedule, period, spread, share of runs that came), None for no schedule."""
    start = np.array(starts, dtype=np.float64)
    gaps = np.diff(start)
    # Whole periods between runs: a skipped run makes a gap of two.
    steps = np.maximum(np.round(gaps / median(gaps.tolist())), 1.0)
    index = np.concatenate([[0.0], np.cumsum(steps)])
    centred = index - index.mean()
    period = float(centred @ start / (centred @ centred))
    residual = start - start.mean() - period * centred
    jitter = 1.4826 * median(np.abs(residual).tolist())
    if period <= 0.0 or jitter > MAX_JITTER * period:
        return None
    last = float(start.mean() + period * centred[-1])
    return last, period, max(jitter, MIN_SPREAD_S), len(gaps) / float(steps.sum())
