"""The score that the guard compares with its threshold: how surely an alarm meets an onset.

Only a tick without an onset in the next 60 s costs budget, so everything is told as odds against "none". An
alarm is worth starting for an onset 30 to 60 s ahead, and worth holding for one within 30 s: it must still
stand when the onset comes. So the score starts high on the first and sustains what it was on the second.
"""

import math

import numpy as np
from numpy.typing import NDArray

from features.ticks import HORIZON_S, SLOT_S

HOLD = 2.0
"""How much less an onset within 30 s counts to hold an alarm than one 30 to 60 s ahead to start it, in nats
that are given away: a started alarm has been paid for in part."""
SMALLEST_P = 1e-7
"""Probabilities nearer to 0 or 1 than this score alike."""

_NEAR = HORIZON_S[0] // SLOT_S


def sustained_scores(p_slots: NDArray[np.floating]) -> NDArray[np.float64]:
    """Scores of consecutive ticks, (n,), from the chances of each slot, (n, SLOTS); NaN where unknown.

    A threshold that stays where it is alarms exactly when the start of an alarm was over it and every tick
    since held it: with start s, hold h and score a, a(t) = max(s(t), min(a(t-1), h(t) + HOLD)).
    """
    scores = np.full(len(p_slots), np.nan)
    before: float | None = None
    for tick, slots in enumerate(np.asarray(p_slots, dtype=np.float64)):
        before = next_score(before, slots)
        scores[tick] = np.nan if before is None else before
    return scores


def next_score(before: float | None, p_slots: NDArray[np.floating]) -> float | None:
    """Score of the next tick, from the one before and the chances of each slot, (SLOTS,); None: unknown.

    >>> round(next_score(None, np.array([0, 0, 0, 0.2, 0.2, 0.2])), 2)  # 0.6 against 0.4: start
    0.41
    >>> round(next_score(0.41, np.array([0.1, 0, 0, 0, 0, 0])), 2)  # it comes nearer: hold
    -0.2
    >>> round(next_score(-9.0, np.array([0.1, 0, 0, 0, 0, 0])), 2)  # too late to start
    -9.0
    """
    near, early = float(np.sum(p_slots[:_NEAR])), float(np.sum(p_slots[_NEAR:]))
    if not math.isfinite(near + early):
        return None
    none = max(1.0 - near - early, SMALLEST_P)
    start = math.log(max(early, SMALLEST_P) / none)
    if before is None:
        return start
    return max(start, min(before, math.log(max(near, SMALLEST_P) / none) + HOLD))
