"""Learned periods: flows whose runs come back on a schedule, and when each is due next."""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from features.runs import Run

SLOT_S = 10
SLOT_EDGES_S = np.array([-30, -10, *range(0, 91, SLOT_S)], dtype=np.float64)
"""Edges, relative to the tick, of the slots that expected work falls into; the first two are overdue."""
SLOTS = len(SLOT_EDGES_S) - 1
HISTORY_RUNS = 16
MIN_RUNS = 4
MAX_JITTER = 0.08
"""Largest typical deviation from the schedule, as a share of the period."""
MIN_SPREAD_S = 1.5
FORGET_MISSES = 6
"""A schedule that missed this many runs in a row is no longer believed."""


class Schedules:
    """Periodic flows, their phase, period, jitter, load and how often a run is skipped.

    Runs may be skipped, so a gap counts as the nearest whole number of median gaps; the phase is a
    least-squares line through the last runs, which averages their jitter out. State is one row a flow in a
    few arrays, so that a tick's expectation is a handful of vector operations.
    """

    def __init__(self) -> None:
        self._runs: dict[int, deque[Run]] = {}
        self._rows: dict[int, int] = {}
        self._table = np.zeros((5, 64))  # fitted last start, period, spread, load, presence
        self._table[1] = np.inf

    def run_started(self, flow: int, start_s: int, previous: Run | None) -> None:
        """Learn from a flow's new run; ``previous`` is its last complete one."""
        if previous is None:
            return
        runs = self._runs.setdefault(flow, deque(maxlen=HISTORY_RUNS))
        runs.append(previous)
        fit = _fit([run.start_s for run in runs] + [start_s]) if len(runs) >= MIN_RUNS - 1 else None
        row = self._rows.get(flow)
        if fit is None:
            if row is not None:
                self._table[4, row] = 0.0
            return
        if row is None:
            row = self._rows[flow] = len(self._rows)
            if row == self._table.shape[1]:
                self._table = np.concatenate([self._table, np.zeros_like(self._table)], axis=1)
                self._table[1, row:] = np.inf
        phase_s, period_s, spread_s, presence = fit
        self._table[:, row] = phase_s, period_s, spread_s, sum(run.load for run in runs) / len(runs), presence

    def expected(self, t_s: int) -> NDArray[np.float64]:
        """Load due from scheduled runs in the slots around a tick: sum and largest, tokens/s, (2, SLOTS)."""
        last, period, spread, load, presence = self._table[:, : len(self._rows)]
        grace = 3.0 * spread + 10.0
        ahead = np.maximum(np.ceil((t_s - grace - last) / period), 1.0)
        due = last + ahead * period - t_s
        weight = np.where(ahead <= FORGET_MISSES, presence / ahead, 0.0) * load
        near = (weight > 0.0) & (due < SLOT_EDGES_S[-1] + 30.0)
        if not near.any():
            return np.zeros((2, SLOTS))
        steps = (SLOT_EDGES_S[:, None] - due[near]) / (0.55 * spread[near])
        share = np.diff(1.0 / (1.0 + np.exp(-np.clip(steps, -50.0, 50.0))), axis=0)
        slots = share * weight[near]
        return np.stack([slots.sum(axis=1), slots.max(axis=1)])


def _fit(starts: list[int]) -> tuple[float, float, float, float] | None:
    """Fit (last start on the schedule, period, spread, share of runs that came), None for no schedule."""
    start = np.array(starts, dtype=np.float64)
    gaps = np.diff(start)
    # Whole periods between runs: a skipped run makes a gap of two.
    steps = np.maximum(np.round(gaps / np.median(gaps)), 1.0)
    index = np.concatenate([[0.0], np.cumsum(steps)])
    centred = index - index.mean()
    period = float(centred @ start / (centred @ centred))
    residual = start - start.mean() - period * centred
    jitter = 1.4826 * float(np.median(np.abs(residual)))
    if period <= 0.0 or jitter > MAX_JITTER * period:
        return None
    last = float(start.mean() + period * centred[-1])
    return last, period, max(jitter, MIN_SPREAD_S), len(gaps) / float(steps.sum())
