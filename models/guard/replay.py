"""The guard over a span of past ticks, told each outcome no earlier than live operation would be."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from features.ticks import HORIZON_S, Ticks
from models.guard.guard import Guard

OUTPUTS_S = 60
"""From the end of a tick's horizon until the outputs are in and its outcome is known."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """What the guard did at each tick; arrays of shape (ticks,).

    Attributes:
        alarm: the gate was tightened.
        threshold: on the scale of the score, NaN while advisory.
        denied: number of ticks at which the budget refused an alarm.

    """

    alarm: NDArray[np.bool_]
    threshold: NDArray[np.float64]
    denied: int


def replay(guard: Guard, score: NDArray[np.float64], ticks: Ticks) -> Guarded:
    """Run a guard over consecutive ticks and their scores, (ticks,); NaN is an unknown score."""
    alarm = np.zeros(len(ticks), dtype=np.bool_)
    threshold = np.full(len(ticks), np.nan)
    denied = 0
    negative, t_s = ticks.negative.tolist(), ticks.t_s.tolist()
    settled = 0
    for tick, now_s in enumerate(t_s):
        while t_s[settled] + HORIZON_S[1] + OUTPUTS_S <= now_s:
            guard.settle(t_s[settled], negative[settled])
            settled += 1
        verdict = guard.decide(now_s, float(score[tick]))
        alarm[tick] = verdict.alarm
        denied += verdict.denied
        if verdict.threshold is not None:
            threshold[tick] = verdict.threshold
    return Guarded(alarm, threshold, denied)
