"""The numbers of a report, from ticks, alarms and onsets.

No number stands without the others: at a base rate of 5 %, recall 0.5 and 5 % false alarms still mean that
two alarm ticks of three are false. What can't be known, such as a share of nothing, is None, never zero.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from data.errors import InputError
from features import ticks as labels
from features.ticks import HORIZON_S, TICK_S
from models.guard.intervals import BLOCK_S, RESAMPLES, Blocks, Estimate

STAND_S = 10
"""An alarm anticipates an onset only if it still stands at the ticks of these last seconds."""
EPISODE_S = 75
"""An alarm episode was right when an onset follows its start within this time."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ticks:
    """Every tick of the span that is scored; all arrays have shape (n,).

    Attributes:
        t_s: seconds, int64, multiples of 5 without a gap.
        alarm: the gate is tightened by the forecast, holds included.
        eligible: the tick counts.
        next_onset_s: first onset after t, -1 where there is none, int64.

    Raises:
        InputError: when there is no tick, a tick is missing, or the arrays differ in length.

    """

    t_s: Ints
    alarm: NDArray[np.bool_]
    eligible: NDArray[np.bool_]
    next_onset_s: Ints

    def __post_init__(self) -> None:
        sizes = [len(self.t_s), len(self.alarm), len(self.eligible), len(self.next_onset_s)]
        if min(sizes) == 0 or min(sizes) != max(sizes):
            raise InputError(f"Columns of the ticks must be equally long and not empty; got lengths {sizes}.")
        if self.t_s[0] % TICK_S or np.any(np.diff(self.t_s) != TICK_S):
            raise InputError(
                f"Ticks must be multiples of {TICK_S} s without a gap, from first to last of a span. "
                "Score each span apart."
            )

    @property
    def labels(self) -> labels.Ticks:
        """The same ticks without alarms: which are positive, late and negative."""
        return labels.Ticks(self.t_s, self.eligible, self.next_onset_s)


@dataclass(frozen=True, slots=True)
class LeadTime:
    """Quantiles of the lead time over n anticipated onsets, s; None where there is none."""

    p10: float | None
    p50: float | None
    p90: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Scores:
    """All numbers of one contender over one span.

    Attributes:
        false_alarm_rate: alarms among negative ticks / negative ticks; the rate that the guard holds.
        strict_false_alarm_rate: the same over negative and late ticks.
        event_recall: share of onsets that were anticipated (`anticipated`).
        episode_precision: share of the alarm episodes starting on an eligible tick that an onset follows
            within 75 s.
        lead_time_s: onset minus start of the alarm that anticipated it.
        onsets: onsets that count, those with their last 60 s in the span.
        ticks: ticks of the span; then those that are eligible, and the three kinds among them.
        base_rate: positive / eligible ticks.
        episodes_per_hour: contiguous alarms per hour of the span.
        alarm_share: alarms among eligible ticks / eligible ticks.
        random_recall: recall of a random alarm with the same share (`random_recall`).

    """

    false_alarm_rate: Estimate
    strict_false_alarm_rate: Estimate
    event_recall: Estimate
    episode_precision: Estimate
    lead_time_s: LeadTime
    onsets: int
    ticks: int
    eligible: int
    positive: int
    late: int
    negative: int
    base_rate: float | None
    episodes_per_hour: float
    alarm_share: float | None
    random_recall: float | None


def score(
    ticks: Ticks, onsets: ArrayLike, *, blocks_s: int = BLOCK_S, resamples: int = RESAMPLES, seed: int
) -> Scores:
    """Score the alarms of a span against its onsets (seconds, any order).

    Intervals are 90 %, by a bootstrap over blocks of ``blocks_s`` (models.guard.intervals).
    """
    known, kinds = scorable(ticks, onsets), ticks.labels
    blocks = Blocks(ticks.t_s, blocks_s, resamples, seed=seed)
    strict = kinds.negative | kinds.late
    starts = _starts(ticks.alarm)
    episodes = starts & ticks.eligible
    ahead_s = np.where(ticks.next_onset_s >= 0, ticks.next_onset_s - ticks.t_s, EPISODE_S + 1)
    eligible = int(ticks.eligible.sum())
    return Scores(
        false_alarm_rate=blocks.ratio_of(ticks.t_s, ticks.alarm, kinds.negative),
        strict_false_alarm_rate=blocks.ratio_of(ticks.t_s, ticks.alarm, strict),
        event_recall=blocks.ratio_of(known, anticipated(ticks, known), np.ones(len(known), dtype=np.bool_)),
        episode_precision=blocks.ratio_of(ticks.t_s, ahead_s <= EPISODE_S, episodes),
        lead_time_s=_quantiles(lead_times(ticks, known)),
        onsets=len(known),
        ticks=len(ticks.t_s),
        eligible=eligible,
        positive=int(kinds.positive.sum()),
        late=int(kinds.late.sum()),
        negative=int(kinds.negative.sum()),
        base_rate=share_of(kinds.positive.sum(), eligible),
        episodes_per_hour=float(starts.sum() * 3600 / (len(ticks.t_s) * TICK_S)),
        alarm_share=share_of((ticks.alarm & ticks.eligible).sum(), eligible),
        random_recall=random_recall(ticks, known),
    )


def scorable(ticks: Ticks, onsets: ArrayLike) -> Ints:
    """Sorted onsets x whose [x-60, x] lies between the first and the last tick."""
    x = np.unique(np.asarray(onsets, dtype=np.int64))
    return np.asarray(x[(x - HORIZON_S[1] >= ticks.t_s[0]) & (x <= ticks.t_s[-1])])


def anticipated(ticks: Ticks, onsets: ArrayLike) -> NDArray[np.bool_]:
    """Tell for each scorable onset x: an alarm at a tick in [x-60, x-30], and at every tick in (x-10, x].

    >>> t_s = np.arange(0, 200, 5)
    >>> never = np.zeros(40, dtype=bool)
    >>> ticks = Ticks(t_s, (t_s >= 60) & (t_s <= 130), never, np.full(40, 101))
    >>> anticipated(ticks, [101, 91, 90]).tolist()
    [True, True, True]
    >>> anticipated(ticks, [89, 139, 140]).tolist()
    [False, False, False]
    """
    return crest(ticks, onsets, ticks.alarm) > 0


def crest(ticks: Ticks, onsets: ArrayLike, values: ArrayLike) -> Floats:
    """Highest threshold at which the alarm ``values >= threshold`` anticipates an onset, (scorable onsets,).

    The lower of the highest value at the ticks in [x-60, x-30] and the lowest at those in (x-10, x].
    """
    x = scorable(ticks, onsets) - ticks.t_s[0]
    value = np.asarray(values, dtype=np.float64)
    first, last = -((HORIZON_S[1] - x) // TICK_S), (x - HORIZON_S[0]) // TICK_S
    # Seven ticks where x is on the grid, else six: the last is looked at twice.
    width = (HORIZON_S[1] - HORIZON_S[0]) // TICK_S + 1
    early = value[np.minimum(first[:, None] + np.arange(width), last[:, None])].max(axis=1)
    stand = value[(x // TICK_S)[:, None] - np.arange(STAND_S // TICK_S)].min(axis=1)
    return np.asarray(np.minimum(early, stand))


def lead_times(ticks: Ticks, onsets: ArrayLike) -> Ints:
    """Onset minus start of the alarm at its last tick, s, for the anticipated onsets in order.

    An alarm that already stands at the first tick of the span counts from there.
    """
    x = scorable(ticks, onsets)
    x = x[anticipated(ticks, x)]
    position = np.arange(len(ticks.t_s))
    start = np.maximum.accumulate(np.where(_starts(ticks.alarm), position, 0))
    return np.asarray(x - ticks.t_s[start[(x - ticks.t_s[0]) // TICK_S]])


def random_recall(ticks: Ticks, onsets: ArrayLike) -> float | None:
    """Recall to expect of a random alarm with the same share; None without onsets.

    The random alarm is the contender's own, moved by a random offset around the span (its end joins its
    start): episodes keep their lengths and their distances, but know nothing of the onsets. The result is
    the exact mean over all offsets, because an onset meets each place of the alarm equally often.
    """
    x = scorable(ticks, onsets)
    if not len(x):
        return None
    alarm = ticks.alarm
    stands = alarm & np.roll(alarm, 1)
    nearest, farthest = HORIZON_S[0] // TICK_S, HORIZON_S[1] // TICK_S
    early = np.logical_or.reduce([np.roll(alarm, back) for back in range(nearest, farthest)])
    on_grid = float(np.mean(x % TICK_S == 0))
    between = float((stands & early).mean())
    exact = float((stands & (early | np.roll(alarm, farthest))).mean())
    return on_grid * exact + (1.0 - on_grid) * between


def _starts(alarm: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """First ticks of contiguous alarms."""
    return np.asarray(alarm & ~np.concatenate([[False], alarm[:-1]]))


def _quantiles(lead_s: Ints) -> LeadTime:
    if not len(lead_s):
        return LeadTime(None, None, None, 0)
    p10, p50, p90 = np.quantile(lead_s, [0.1, 0.5, 0.9]).tolist()
    return LeadTime(p10, p50, p90, len(lead_s))


def share_of(part: Any, whole: int) -> float | None:
    """Part of a whole; None of nothing."""
    return float(part / whole) if whole else None
