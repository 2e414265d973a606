"""Scenarios of the coming minute: what is due, drawn many times over, and how often the sum is a burst.

A mean hides what a burst is made of: a fan-out that comes at some moment of the minute, with a chance of 0.8,
looks like a small load all through it. So each run that is due and each usual follow-up gets a time, a load
and a "comes or not" in every scenario, all of them add to the usual load, and the slots count the scenarios
whose load first crosses the burst's line there.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from features.ticks import SLOT_S, SLOTS

SCENARIOS = 128
FIELDS = 2 * SLOTS + 2
MOST_SOURCES = 24
"""Scheduled runs, and follow-ups, that take part; the heaviest ones."""
USUAL_SPREAD = 0.2
"""Spread of the load with nothing due, as a share of the baseline."""
LOGISTIC = 0.55
"""Scale of a logistic distribution over its standard deviation, about."""

RISE_S, FADE_FROM_S, GONE_S = 6.0, 12.0, 22.0
"""A run's ten-second load: up within 6 s, falling from 12 s on, gone after 22 s."""
PEAK_WITHIN_S = 8.0

_AT_S = np.arange(5.0, SLOTS * SLOT_S + 1.0, 5.0)
_STEPS = len(_AT_S) // SLOTS


def _draws() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Evenly spread numbers in (0, 1), shuffled: (2 * MOST_SOURCES, 3, SCENARIOS) and (SCENARIOS,).

    The same in every run: a feature is a function of what was known. NumPy keeps this generator's stream.
    """
    random = np.random.RandomState(7)
    even = (np.arange(SCENARIOS) + 0.5) / SCENARIOS
    sources = [[random.permutation(even) for _ in range(3)] for _ in range(2 * MOST_SOURCES)]
    return np.array(sources), random.permutation(even)


_SOURCES, _USUAL = _draws()


@dataclass(frozen=True, slots=True)
class Level:
    """Loads that a tick knows, tokens/s: the baseline, what is usual now, and the line that makes a burst."""

    baseline: float
    usual: float
    line: float


@dataclass(frozen=True, slots=True)
class Due:
    """Scheduled runs around a tick; n runs.

    Attributes:
        after_s: when each should start, from the tick, (n,).
        spread_s: standard deviation of that, (n,).
        chance: that it comes at all, (n,).
        loads: what the sender's last runs reached, tokens/s, the known ones first, then NaN, (n, runs).

    """

    after_s: NDArray[np.float64]
    spread_s: NDArray[np.float64]
    chance: NDArray[np.float64]
    loads: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Followed:
    """What may still follow one run: when it would peak, from the tick, and how high; n remembered outcomes.

    An outcome without a follow-up has load 0.
    """

    after_s: NDArray[np.float64]
    load: NDArray[np.float64]


def crossings(due: Due, followed: list[Followed], level: Level) -> NDArray[np.float64]:
    """Shares of the scenarios, and how high they get, (FIELDS,).

    First the share whose load first crosses the line in each 10 s slot of the coming minute; then the same
    with follow-ups alone; then the median and the 90 % quantile of the highest load, over the line.
    """
    spread = USUAL_SPREAD * level.baseline * LOGISTIC * _logit(_USUAL)
    calm = np.broadcast_to((level.usual + spread)[:, None], (SCENARIOS, len(_AT_S)))
    after = calm + _follow_ups(followed)
    total = after + _runs(due)
    highest = np.quantile(total.max(axis=1), (0.5, 0.9)) / level.line
    return np.concatenate([_first(total > level.line), _first(after > level.line), highest])


def _runs(due: Due) -> NDArray[np.float64]:
    """Load of the scheduled runs, (SCENARIOS, steps)."""
    if not len(due.after_s):
        return np.zeros((SCENARIOS, len(_AT_S)))
    known = np.sum(np.isfinite(due.loads), axis=1)
    weight = np.nansum(due.loads, axis=1) / np.maximum(known, 1) * due.chance
    order = np.argsort(-weight, kind="stable")[:MOST_SOURCES]
    early, which, comes = np.moveaxis(_SOURCES[: len(order)], 1, 0)
    start_s = due.after_s[order, None] + LOGISTIC * due.spread_s[order, None] * _logit(early)
    pick = (which * np.maximum(known[order, None], 1)).astype(np.int64)
    load = np.nan_to_num(np.take_along_axis(due.loads[order], pick, axis=1))
    # What should have started by now and hasn't been seen doesn't come in this scenario.
    load = np.where((comes < due.chance[order, None]) & (start_s > -2.0), load, 0.0)
    return np.asarray(np.sum(load[:, :, None] * _shape(_AT_S - start_s[:, :, None]), axis=0))


def _follow_ups(followed: list[Followed]) -> NDArray[np.float64]:
    """Load of what follows, (SCENARIOS, steps)."""
    if not followed:
        return np.zeros((SCENARIOS, len(_AT_S)))
    followed = followed[-MOST_SOURCES:]
    which, early, _ = np.moveaxis(_SOURCES[MOST_SOURCES : MOST_SOURCES + len(followed)], 1, 0)
    picks = [(one, (row * len(one.load)).astype(np.int64)) for one, row in zip(followed, which, strict=True)]
    load = np.stack([one.load[pick] for one, pick in picks])
    start_s = np.stack([one.after_s[pick] for one, pick in picks]) + PEAK_WITHIN_S * (early - 0.5)
    return np.asarray(np.sum(load[:, :, None] * _shape(_AT_S - start_s[:, :, None]), axis=0))


def _shape(since_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """A run's ten-second load since its start, as a share of its highest."""
    up = np.minimum(np.maximum(since_s / RISE_S, 0.0), 1.0)
    return np.asarray(up * np.minimum(np.maximum((GONE_S - since_s) / (GONE_S - FADE_FROM_S), 0.0), 1.0))


def _first(over: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Share of the scenarios that are first over in each slot, (SLOTS,)."""
    first = np.where(over.any(axis=1), over.argmax(axis=1) // _STEPS, SLOTS)
    return np.bincount(first, minlength=SLOTS + 1)[:SLOTS] / SCENARIOS


def _logit(u: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.log(u / (1.0 - u)))
