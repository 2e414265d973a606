"""The guard over a span of past ticks, told each outcome no earlier than live operation would be."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from features.ticks import HORIZON_S, Ticks
from models.guard.guard import Guard
from models.guard.ledger import Ledger

OUTPUTS_S = 60
"""From the end of a tick's horizon until the outputs are in and its outcome is known."""
SETTLED_AFTER_S = HORIZON_S[1] + OUTPUTS_S
"""From a tick until its outcome is known."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """What the guard did at each tick; arrays of shape (ticks,).

    Attributes:
        alarm: the gate was tightened.
        threshold: on the scale of the score, NaN where calibration gave none.
        denied: number of ticks at which the budget refused an alarm.
        would: threshold and budget would have let an alarm stand, advisory or not; None without a guard.
        advisory: a missing threshold, skill gate or trip wire kept forecasts from tightening; None likewise.
        reason: why skill gate or trip wire do so at the end of the span, for people; None where they don't.

    """

    alarm: NDArray[np.bool_]
    threshold: NDArray[np.float64]
    denied: int
    would: NDArray[np.bool_] | None = None
    advisory: NDArray[np.bool_] | None = None
    reason: str | None = None


def joined(parts: Sequence[Guarded]) -> Guarded:
    """Adjacent spans as one; the reason is the last one's."""
    would, advisory = ([getattr(part, name) for part in parts] for name in ("would", "advisory"))
    return Guarded(
        np.concatenate([part.alarm for part in parts]),
        np.concatenate([part.threshold for part in parts]),
        sum(part.denied for part in parts),
        None if any(part is None for part in would) else np.concatenate(would),
        None if any(part is None for part in advisory) else np.concatenate(advisory),
        parts[-1].reason,
    )


def warmed(ticks: Ticks, until_s: int) -> Ledger:
    """A ledger that has seen these ticks go by without an alarm, as live operation warms up.

    Outcomes are settled that are known at second ``until_s``.
    """
    ledger = Ledger()
    for t_s, negative in zip(ticks.t_s.tolist(), ticks.negative.tolist(), strict=True):
        if t_s + SETTLED_AFTER_S <= until_s:
            ledger.settle(t_s, negative)
    return ledger


def replay(guard: Guard, score: NDArray[np.float64], ticks: Ticks) -> Guarded:
    """Run a guard over consecutive ticks and their scores, (ticks,); NaN is an unknown score."""
    alarm, would, advisory = (np.zeros(len(ticks), dtype=np.bool_) for _ in range(3))
    threshold = np.full(len(ticks), np.nan)
    denied = 0
    negative, late, t_s = ticks.negative.tolist(), ticks.late.tolist(), ticks.t_s.tolist()
    soon = ticks.onset_within(0, HORIZON_S[1])
    onset_s = [
        onset if near else None
        for onset, near in zip(ticks.next_onset_s.tolist(), soon.tolist(), strict=True)
    ]
    settled = 0
    for tick, now_s in enumerate(t_s):
        while t_s[settled] + SETTLED_AFTER_S <= now_s:
            guard.settle(t_s[settled], negative[settled], late=late[settled], onset_s=onset_s[settled])
            settled += 1
        advisory[tick] = guard.advisory
        verdict = guard.decide(now_s, float(score[tick]))
        alarm[tick], would[tick] = verdict.alarm, verdict.would
        denied += verdict.denied
        if verdict.threshold is not None:
            threshold[tick] = verdict.threshold
    return Guarded(alarm, threshold, denied, would, advisory, guard.reason)
