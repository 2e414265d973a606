"""Decision times, which of them count, and what they should have foreseen."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from features.bursts import Events

TICK_S = 5
HORIZON_S = (30, 60)
"""An onset in (t+30, t+60] makes a tick positive."""
SLOT_S = 10
"""The coming minute is told in slots of this length: (t, t+10], (t+10, t+20], ..."""
SLOTS = HORIZON_S[1] // SLOT_S
SETTLE_S = 60
"""Ticks this long after an event don't count: the engine still drains."""
WARMUP_S = 3600
SHORT_WARMUP_S = 600
SHORT_TRACE_S = 7200


@dataclass(frozen=True, slots=True)
class Ticks:
    """Every tick of a trace, labelled; all arrays have shape (ticks,).

    Attributes:
        t_s: seconds from the first request, int64.
        eligible: the tick counts.
        next_onset_s: first onset after t, -1 where there is none, int64.

    """

    t_s: NDArray[np.int64]
    eligible: NDArray[np.bool_]
    next_onset_s: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.t_s)

    def onset_within(self, after_s: int, until_s: int) -> NDArray[np.bool_]:
        """Tell where the next onset lies in (t + after_s, t + until_s]."""
        ahead = self.next_onset_s - self.t_s
        return (self.next_onset_s >= 0) & (ahead > after_s) & (ahead <= until_s)

    @property
    def positive(self) -> NDArray[np.bool_]:
        """Eligible, and an onset 30-60 s ahead."""
        return self.eligible & self.onset_within(*HORIZON_S)

    @property
    def late(self) -> NDArray[np.bool_]:
        """Eligible, and an onset less than 30 s ahead."""
        return self.eligible & self.onset_within(0, HORIZON_S[0])

    @property
    def negative(self) -> NDArray[np.bool_]:
        """Eligible, and no onset within 60 s."""
        return self.eligible & ~self.onset_within(0, HORIZON_S[1])

    def select(self, chosen: NDArray[np.bool_]) -> "Ticks":
        """Those ticks where ``chosen`` is true."""
        return Ticks(self.t_s[chosen], self.eligible[chosen], self.next_onset_s[chosen])


def warmup_s(seconds: int) -> int:
    """Warm-up of a trace of that many seconds: an hour, or ten minutes for a trace under two hours."""
    return WARMUP_S if seconds >= SHORT_TRACE_S else SHORT_WARMUP_S


def label_ticks(seconds: int, found: Events, gaps: Sequence[tuple[int, int]] = ()) -> Ticks:
    """Label the ticks of a trace of ``seconds`` bins.

    A tick is eligible outside every event and the 60 s after it, past warm-up, at least 60 s before the end,
    and where no telemetry gap (first, last unknown second) touches the window it looks back on or the
    horizon it looks forward to.
    """
    t = np.arange(0, seconds, TICK_S, dtype=np.int64)
    window = warmup_s(seconds)
    eligible = (t >= window) & (t + HORIZON_S[1] <= seconds - 1)
    if len(found):
        previous = np.searchsorted(found.onset_s, t, side="right") - 1
        busy_until = found.last_s[np.maximum(previous, 0)] + SETTLE_S
        eligible &= (previous < 0) | (t > busy_until)
    for first, last in gaps:
        eligible &= (t + HORIZON_S[1] < first) | (t - window > last)
    following = np.searchsorted(found.onset_s, t, side="right")
    onsets = np.append(found.onset_s, -1)
    return Ticks(t, eligible, onsets[following])
