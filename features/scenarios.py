"""Scenarios of the coming minute: what is due, drawn many times over, and how often the sum is a burst.

A mean hides what a burst is made of: a fan-out that comes at some moment of the minute, with a chance of 0.8,
looks like a small load all through it. So each run that is due and each usual follow-up gets a time, a load
and a "comes or not" in every scenario, all of them add to the usual load, and the slots count the scenarios
whose load first crosses the burst's line there.

Many ticks are told at once, or one; sums are taken source by source, so that both have the same bits.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from features.runs import spans
from features.ticks import SLOT_S, SLOTS

SCENARIOS = 128
FIELDS = 2 * SLOTS + 2
MOST_SOURCES = 24
"""Scheduled runs, and follow-ups, that take part: the heaviest of the ones, the latest of the others."""
USUAL_SPREAD = 0.2
"""Spread of the load with nothing due, as a share of the baseline."""
LOGISTIC = 0.55
"""Scale of a logistic distribution over its standard deviation, about."""

RISE_S, FADE_FROM_S, GONE_S = 6.0, 12.0, 22.0
"""A run's ten-second load: up within 6 s, falling from 12 s on, gone after 22 s."""
PEAK_WITHIN_S = 8
OVERDUE_S = -2.0
"""What should have started before and hasn't been seen doesn't come in that scenario."""

_AT_S = np.arange(5.0, SLOTS * SLOT_S + 1.0, 5.0)
_STEPS = len(_AT_S) // SLOTS
_PER_S = SCENARIOS // PEAK_WITHIN_S
"""Starts are told in cells of 1/16 s; spread evenly over PEAK_WITHIN_S, each scenario has its own."""
_FIRST_CELL = -int(GONE_S * _PER_S) - 1
_MEDIAN, _HIGH = 0.5 * (SCENARIOS - 1), 0.9 * (SCENARIOS - 1)

Loads = NDArray[np.float32]


def _shape(since_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """A run's ten-second load since its start, as a share of its highest."""
    up = np.clip(since_s / RISE_S, 0.0, 1.0)
    return np.asarray(up * np.clip((GONE_S - since_s) / (GONE_S - FADE_FROM_S), 0.0, 1.0))


def _shapes() -> Loads:
    """Load at each step of the minute by the cell that a run starts in; none in the first and the last."""
    cells = np.arange(_FIRST_CELL, int(_AT_S[-1] * _PER_S) + 1)
    return _shape(_AT_S - (cells[:, None] + 0.5) / _PER_S).astype(np.float32)


def _draws() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Numbers below SCENARIOS, shuffled: (2 * MOST_SOURCES, 3, SCENARIOS) and (SCENARIOS,).

    The same in every run: a feature is a function of what was known. NumPy keeps this generator's stream.
    """
    random = np.random.RandomState(7)
    sources = [[random.permutation(SCENARIOS) for _ in range(3)] for _ in range(2 * MOST_SOURCES)]
    return np.array(sources, dtype=np.int64), random.permutation(SCENARIOS)


def _even(draws: NDArray[np.int64]) -> NDArray[np.float64]:
    """The draws as numbers spread evenly over (0, 1)."""
    return np.asarray((draws + 0.5) / SCENARIOS)


def _logit(u: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.log(u / (1.0 - u)))


_SHAPES = _shapes()
_SOURCES, _USUAL = _draws()
_EARLY, _WHICH_RUN, _COMES = np.moveaxis(_even(_SOURCES[:MOST_SOURCES]), 1, 0)
_EARLY = LOGISTIC * _logit(_EARLY)
_WHICH_OUTCOME = _even(_SOURCES[MOST_SOURCES:, 0])
_PEAKS = _SOURCES[MOST_SOURCES:, 1] - SCENARIOS // 2 - _FIRST_CELL
_CALM = (USUAL_SPREAD * LOGISTIC * _logit(_even(_USUAL))).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Level:
    """Loads that ticks know, tokens/s, float64, (ticks,): the baseline, what is usual now, a burst's line."""

    baseline: NDArray[np.float64]
    usual: NDArray[np.float64]
    line: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Due:
    """Scheduled runs around ticks; n runs, tick by tick.

    Attributes:
        tick: which of the ticks, int64, (n,).
        after_s: when each should start, from its tick, (n,).
        spread_s: standard deviation of that, (n,).
        chance: that it comes at all, (n,).
        loads: what the sender's last runs reached, tokens/s, the known ones first, then NaN, (n, runs).

    """

    tick: NDArray[np.int64]
    after_s: NDArray[np.float64]
    spread_s: NDArray[np.float64]
    chance: NDArray[np.float64]
    loads: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Followed:
    """Runs that something may still follow; n runs, tick by tick, and m rows of remembered outcomes.

    Attributes:
        tick: which of the ticks, int64, (n,).
        age_s: seconds since the run started, int64, (n,).
        outcomes: how many of its outcomes can still come, those that are no follow-up too, int64, (n,).
        heavy: how many of them are follow-ups: the last ones of its row; at least 1, int64, (n,).
        row: its outcomes, int64, (n,).
        peak_s: when each follow-up peaked after its run's start, seconds in order, int64, (m, outcomes).
        load: how high, tokens/s, (m, outcomes).

    """

    tick: NDArray[np.int64]
    age_s: NDArray[np.int64]
    outcomes: NDArray[np.int64]
    heavy: NDArray[np.int64]
    row: NDArray[np.int64]
    peak_s: NDArray[np.int64]
    load: NDArray[np.float64]


def crossings(due: Due, followed: Followed, level: Level) -> NDArray[np.float64]:
    """Shares of the scenarios, and how high they get, (FIELDS, ticks).

    First the share whose load first crosses the line in each 10 s slot of the coming minute; then the same
    with follow-ups alone; then the median and the 90 % quantile of the highest load, over the line.
    """
    baseline, usual, line = (loads.astype(np.float32) for loads in (level.baseline, level.usual, level.line))
    calm = usual[:, None] + baseline[:, None] * _CALM
    loads = np.repeat(calm[:, :, None], len(_AT_S), axis=2)
    _follow_ups(loads, followed)
    after, _ = _first(loads, line)
    _runs(loads, due)
    total, highest = _first(loads, line)
    highest = np.sort(highest, axis=1)
    quantiles = [_between(highest, at) / level.line for at in (_MEDIAN, _HIGH)]
    return np.concatenate([total, after, quantiles])


def _runs(loads: Loads, due: Due) -> None:
    """Add the scheduled runs to ``loads``, (ticks, SCENARIOS, steps)."""
    finite = np.isfinite(due.loads)
    reached, known = np.where(finite, due.loads, 0.0), np.maximum(finite.sum(axis=1), 1)
    weight = reached.sum(axis=1) / known * due.chance
    heaviest = np.lexsort((-weight, due.tick))
    _, rank = spans(np.bincount(due.tick))
    order, rank = _first_of_each(rank)
    run = heaviest[order]
    chance = due.chance[run, None]
    start_s = due.spread_s[run, None] * _EARLY[rank]
    start_s += due.after_s[run, None]
    pick = (_WHICH_RUN[rank] * known[run, None]).astype(np.int64)
    pick += run[:, None] * due.loads.shape[1]
    load = reached.astype(np.float32).ravel()[pick]
    load *= (_COMES[rank] < chance) & (start_s > OVERDUE_S)
    # Held back first: a start far away would not fit an integer.
    cell = np.floor(np.minimum(start_s, 2.0 * _AT_S[-1]) * _PER_S).astype(np.int64) - _FIRST_CELL
    _add(loads, due.tick[run], rank, cell, load)


def _follow_ups(loads: Loads, followed: Followed) -> None:
    """Add what follows to ``loads``, (ticks, SCENARIOS, steps)."""
    count = np.bincount(followed.tick, minlength=len(loads))
    tick, rank = spans(count)
    rank -= np.maximum(count - MOST_SOURCES, 0)[tick]
    run, rank = _first_of_each(rank)
    pick = (_WHICH_OUTCOME[rank] * followed.outcomes[run, None]).astype(np.int64)
    comes = pick < followed.heavy[run, None]
    entry = np.subtract(((followed.row[run] + 1) * followed.load.shape[1] - 1)[:, None], pick, out=pick)
    load = followed.load.astype(np.float32).ravel()[entry]
    load *= comes
    cell = (_PER_S * followed.peak_s).ravel()[entry]
    cell += _PEAKS[rank]
    cell -= _PER_S * followed.age_s[run, None]
    _add(loads, followed.tick[run], rank, cell, load)


def _first_of_each(rank: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sources of the ranks from 0 up to MOST_SOURCES in order of rank, and these ranks; each (sources,)."""
    narrow = np.where(rank < MOST_SOURCES, rank, -1).astype(np.int16)  # sorted by radix
    order = np.argsort(narrow, kind="stable")[np.count_nonzero(narrow < 0) :]
    return order, rank[order]


def _add(
    loads: Loads, tick: NDArray[np.int64], rank: NDArray[np.int64], cell: NDArray[np.int64], load: Loads
) -> None:
    """Add sources in order of rank to the loads of their ticks: of each tick one at a time."""
    if len(loads) == 1:
        shapes = np.concatenate([loads, np.take(_SHAPES, cell, axis=0, mode="clip")])
        shapes[1:] *= load[:, :, None]
        np.add.reduce(shapes, axis=0, out=loads[0])  # one after the other as well
        return
    bounds = np.cumsum(np.bincount(rank)).tolist()
    for first, until in pairwise([0, *bounds]):
        shapes = np.take(_SHAPES, cell[first:until], axis=0, mode="clip")
        shapes *= load[first:until, :, None]
        if until - first == len(loads):
            loads += shapes
        else:
            loads[tick[first:until]] += shapes


def _first(loads: Loads, line: Loads) -> tuple[NDArray[np.float64], Loads]:
    """Share of scenarios that first cross the line in each slot, (SLOTS, ticks), and their highest load."""
    steps = np.ascontiguousarray(loads.transpose(2, 0, 1)).reshape(SLOTS, _STEPS, *loads.shape[:2])
    highest = steps.max(axis=1)
    for slot in range(1, SLOTS):  # many times as fast as to accumulate
        np.maximum(highest[slot], highest[slot - 1], out=highest[slot])
    crossed = (highest > line[:, None]).sum(axis=2) / SCENARIOS
    return np.concatenate([crossed[:1], crossed[1:] - crossed[:-1]]), highest[-1]


def _between(ordered: Loads, at: float) -> NDArray[np.float64]:
    """Value ``at`` that place of each row, on the line between its neighbours."""
    below = int(at)
    low, high = ordered[:, below].astype(np.float64), ordered[:, below + 1].astype(np.float64)
    return np.asarray(low + (at - below) * (high - low))
