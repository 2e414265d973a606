"""Live outcomes: ticks and onsets judged once they have matured."""

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from features.bursts import BASELINE_LAG_S, MEAN_WINDOW_S, MERGE_GAP_S, burst_seconds, events
from features.ticks import HORIZON_S, TICK_S, WARMUP_S, label_ticks
from serving.forecast.live_work import KEEP_S, LiveWork
from serving.forecast.tally import Outcomes, Tally, count

OUTPUT_DELAY_S = 60
"""Outputs have this long to arrive after a tick's horizon has passed."""
MATURE_S = HORIZON_S[1] + OUTPUT_DELAY_S
WINDOW_S = KEEP_S - MATURE_S
"""Seconds looked back on when ticks are judged."""
KNOWN_AFTER_S = MEAN_WINDOW_S + BASELINE_LAG_S
"""In a window that starts in the middle of the traffic, burst seconds are known from this one on."""
REPORT_S = 86_400


@dataclass(frozen=True, slots=True)
class Matured:
    """A tick whose outcome is known.

    Attributes:
        t_s: seconds from the first request.
        alarm: the guard let the forecast tighten the gate.
        tightened: the gate stood tightened, by this alarm or still on its way back from one before.
        eligible: the tick counts.
        next_onset_s: the onset within 60 s, None where there is none.

    """

    t_s: int
    alarm: bool
    tightened: bool
    eligible: bool
    next_onset_s: int | None

    @property
    def negative(self) -> bool:
        """Eligible, and no onset within 60 s."""
        return self.eligible and self.next_onset_s is None

    @property
    def late(self) -> bool:
        """Eligible, and an onset less than 30 s ahead."""
        return (
            self.eligible and self.next_onset_s is not None and self.next_onset_s - self.t_s <= HORIZON_S[0]
        )

    @property
    def positive(self) -> bool:
        """Eligible, and an onset 30 to 60 s ahead."""
        return self.eligible and self.next_onset_s is not None and not self.late


class Meter:
    """Judges each tick a minute after its horizon has passed, by the definitions that labels use.

    A tick is eligible as in a trace: outside every event and the 60 s after it, past an hour of traffic, and
    with no hole in the telemetry from an hour before to a minute after it. What matured is kept a day.
    """

    def __init__(self, capacity_tokens_per_s: float | None = None) -> None:
        self.capacity_tokens_per_s = capacity_tokens_per_s
        self._waiting: deque[tuple[int, bool, bool]] = deque()
        self._holes: deque[tuple[int, int]] = deque()
        self._past = Outcomes.none()
        self._onsets: deque[int] = deque()
        self._tally: Tally | None = None
        self._settled_until_s = WARMUP_S  # onsets up to here are counted or left out for good

    def tick(self, t_s: int, alarm: bool, tightened: bool | None = None) -> None:
        """Note a tick, whether it had an alarm, and whether the gate stood tightened (as the alarm says)."""
        self._waiting.append((t_s, alarm, alarm if tightened is None else tightened))

    def hole(self, first_s: int, last_s: int) -> None:
        """Note seconds in which nothing was heard, so that nobody knows what arrived."""
        self._holes.append((first_s, last_s))

    def touched(self, t_s: int, ahead_s: int = 0) -> bool:
        """Tell whether a hole lies in the hour before a tick or in the ``ahead_s`` seconds after it."""
        return any(last >= t_s - KNOWN_AFTER_S and first <= t_s + ahead_s for first, last in self._holes)

    def mature(self, now_s: int, work: LiveWork) -> list[Matured]:
        """Judge the ticks that have matured by second ``now_s``, in order of time."""
        if not self._waiting or self._waiting[0][0] + MATURE_S > now_s:
            return []
        start_s = max(0, now_s - WINDOW_S) // TICK_S * TICK_S
        bins = work.bins(start_s, now_s)
        burst = np.zeros(len(bins.work), dtype=np.bool_)
        if np.isfinite(bins.mean_work) and bins.mean_work > 0:
            burst = burst_seconds(bins, self.capacity_tokens_per_s)
        if start_s > 0:
            burst[:KNOWN_AFTER_S] = False
        found = events(burst)
        labels = label_ticks(len(burst), found)
        matured = []
        while self._waiting and self._waiting[0][0] + MATURE_S <= now_s:
            t_s, alarm, tightened = self._waiting.popleft()
            index = (t_s - start_s) // TICK_S
            if index < 0 or (start_s > 0 and t_s < start_s + KNOWN_AFTER_S):
                matured.append(
                    Matured(t_s, alarm, tightened, False, None)
                )  # waited so long that its past is gone
                continue
            ahead_s = int(labels.next_onset_s[index]) + start_s - t_s
            within = labels.next_onset_s[index] >= 0 and ahead_s <= HORIZON_S[1]
            eligible = bool(labels.eligible[index]) and t_s >= WARMUP_S
            eligible = eligible and not self.touched(t_s, HORIZON_S[1])
            matured.append(Matured(t_s, alarm, tightened, eligible, t_s + ahead_s if within else None))
        self._past = self._past.then(_outcomes(matured))
        self._tally = None
        self._count_onsets(found.onset_s + start_s, matured[-1].t_s + HORIZON_S[1])
        self._forget(now_s)
        return matured

    def tally(self) -> Tally:
        """Count what matured over the last day; counted anew when more has."""
        if self._tally is None:
            onset_s = np.array(self._onsets, dtype=np.int64)
            self._tally = count(self._past, onset_s, self._settled_until_s)
        return self._tally

    def _count_onsets(self, onset_s: NDArray[np.int64], until_s: int) -> None:
        """Count the onsets up to ``until_s`` for good."""
        for x in onset_s[(onset_s > self._settled_until_s) & (onset_s <= until_s)].tolist():
            # Two events are over 30 s apart: anything nearer is the same onset, moved by a late output.
            if (not self._onsets or x - self._onsets[-1] > MERGE_GAP_S) and not self.touched(x):
                self._onsets.append(x)
        self._settled_until_s = max(self._settled_until_s, until_s)

    def _forget(self, now_s: int) -> None:
        self._past = self._past.after(now_s - REPORT_S)
        while self._onsets and self._onsets[0] <= now_s - REPORT_S:
            self._onsets.popleft()
        while self._holes and self._holes[0][1] < now_s - WINDOW_S:
            self._holes.popleft()


def _outcomes(matured: list[Matured]) -> Outcomes:
    onset_s = [-1 if tick.next_onset_s is None else tick.next_onset_s for tick in matured]
    return Outcomes(
        np.array([tick.t_s for tick in matured], dtype=np.int64),
        np.array([tick.eligible for tick in matured], dtype=np.bool_),
        np.array(onset_s, dtype=np.int64),
        np.array([tick.alarm for tick in matured], dtype=np.bool_),
        np.array([tick.tightened for tick in matured], dtype=np.bool_),
    )
