"""The numbers of a report, from ticks, alarms and onsets.

No number stands without the others: at a base rate of 5 %, recall 0.5 and 5 % false alarms still mean that
two alarm ticks of three are false. What can't be known, such as a share of nothing, is None, never zero.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from data.errors import InputError
from features import ticks as labels
from features.ticks import HORIZON_S, TICK_S

STAND_S = 10
"""An alarm anticipates an onset only if it still stands at the ticks of these last seconds."""
EPISODE_S = 75
"""An alarm episode was right when an onset follows its start within this time."""
CAUSE_S = (-90, 5)
"""A cause that starts this long before (after) an onset may explain it."""
UNEXPLAINED = "unexplained"
INTERVAL = (0.05, 0.95)
"""Quantiles of the bootstrap that bound a 90 % interval."""
BIN_TICKS = 30
"""Fewest ticks that a share of onsets is read from in a reliability plot."""
MIN_BLOCKS = 5
"""Fewer blocks than this say too little about the spread between blocks: no interval, and no claim."""

Claim = Literal["better", "worse", "no difference"]
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
class Estimate:
    """A share and its 90 % interval; None where unknown."""

    value: float | None
    low: float | None
    high: float | None


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


@dataclass(frozen=True, slots=True)
class Hindsight:
    """What a raw score could have reached, had its threshold been known: not a result, a yardstick."""

    threshold: float
    recall: float | None
    false_alarm_rate: float


@dataclass(frozen=True, slots=True)
class Difference:
    """Recall of one contender minus that of another, over the same resampled hours."""

    recall: Estimate
    claim: Claim


def score(
    ticks: Ticks, onsets: ArrayLike, *, blocks_s: int = 3600, resamples: int = 1000, seed: int
) -> Scores:
    """Score the alarms of a span against its onsets (seconds, any order).

    Intervals are 90 %, by block bootstrap: whole blocks of ``blocks_s`` are drawn with replacement, and the
    ratio is taken of the drawn sums. There is none where fewer than 5 blocks hold anything to count. Where
    all blocks agree (no false alarm at all, say) the bootstrap sees no spread and the interval has no width.
    """
    known, kinds = scorable(ticks, onsets), ticks.labels
    blocks = _Blocks(ticks.t_s, blocks_s, resamples, seed)
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
        base_rate=_share(kinds.positive.sum(), eligible),
        episodes_per_hour=float(starts.sum() * 3600 / (len(ticks.t_s) * TICK_S)),
        alarm_share=_share((ticks.alarm & ticks.eligible).sum(), eligible),
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


def hindsight(values: ArrayLike, ticks: Ticks, onsets: ArrayLike, rate: float = 0.05) -> Hindsight | None:
    """Spend a false-alarm rate fully with one threshold on a raw score, known only afterwards.

    The lowest threshold whose alarm, ``values >= threshold``, is at no more than ``rate`` of the negative
    ticks; tied scores may leave some of it unspent. A score that is NaN never alarms. None where no negative
    tick or no score is known.

    Raises:
        InputError: when ``rate`` is not in [0, 1), or there is not one score a tick.

    """
    ranked, value = _negatives(values, ticks)
    if not 0 <= rate < 1:
        raise InputError(f"Rate must be at least 0 and below 1; got {rate}.")
    known = value[np.isfinite(value)]
    if not len(ranked) or not len(known):
        return None
    threshold = max(float(_threshold(ranked, np.array([rate]))[0]), float(known.min()))
    reached = crest(ticks, onsets, value) >= threshold
    return Hindsight(threshold, _share(reached.sum(), len(reached)), float(np.mean(ranked >= threshold)))


def curve(
    values: ArrayLike, ticks: Ticks, onsets: ArrayLike, points: int = 40, highest_rate: float = 0.3
) -> list[tuple[float, float]]:
    """Recall against false-alarm rate of a raw score, at about ``points`` thresholds, in order of rate.

    Empty where no onset or no negative tick is there to count.
    """
    ranked, value = _negatives(values, ticks)
    reached = np.sort(crest(ticks, onsets, value))
    if not len(ranked) or not len(reached):
        return []
    threshold = _threshold(ranked, np.linspace(0.0, highest_rate, points))
    rate = np.searchsorted(-ranked, -threshold, side="right") / len(ranked)
    recall = 1.0 - np.searchsorted(reached, threshold, side="left") / len(reached)
    return sorted(set(zip(rate.tolist(), recall.tolist(), strict=True)))


def difference(
    a: Ticks, b: Ticks, onsets: ArrayLike, *, blocks_s: int = 3600, resamples: int = 1000, seed: int
) -> Difference:
    """Recall of ``a`` minus recall of ``b`` with its 90 % interval, both over the same drawn hours.

    "better" or "worse" only where the interval excludes 0; where it is unknown there is no difference to
    claim.

    Raises:
        InputError: when the two don't cover the same ticks.

    """
    if not np.array_equal(a.t_s, b.t_s):
        raise InputError("Contenders must be compared over the same ticks; score them over one span.")
    x = scorable(a, onsets)
    gain = anticipated(a, x).astype(np.int64) - anticipated(b, x)
    found = _Blocks(a.t_s, blocks_s, resamples, seed).ratio_of(x, gain, np.ones(len(x), dtype=np.bool_))
    claim: Claim = "no difference"
    if found.low is not None and found.low > 0:
        claim = "better"
    elif found.high is not None and found.high < 0:
        claim = "worse"
    return Difference(found, claim)


def recall_by_cause(ticks: Ticks, onsets: ArrayLike, causes: pl.DataFrame) -> list[dict[str, Any]]:
    """Recall of the onsets of each cause: a list of {cause, onsets, recall}, most onsets first.

    Args:
        ticks: the span with its alarms.
        onsets: seconds, any order.
        causes: a row a cause, with columns t_s (when it starts, in seconds like the ticks) and cause (name).

    An onset belongs to the latest cause that starts in [x-90, x+5], else to "unexplained", which comes last.

    """
    x = scorable(ticks, onsets)
    started = causes.select(pl.col("t_s").cast(pl.Float64), pl.col("cause").cast(pl.String))
    found = pl.DataFrame(
        {"until_s": x.astype(np.float64) + CAUSE_S[1], "hit": anticipated(ticks, x)}
    ).join_asof(
        started.sort("t_s", maintain_order=True),
        left_on="until_s",
        right_on="t_s",
        strategy="backward",
        tolerance=float(CAUSE_S[1] - CAUSE_S[0]),
    )
    by_cause = found.group_by(pl.col("cause").fill_null(UNEXPLAINED)).agg(
        pl.len().alias("onsets"), pl.col("hit").mean().alias("recall")
    )
    order = [pl.col("cause") == UNEXPLAINED, -pl.col("onsets").cast(pl.Int64), pl.col("cause")]
    return by_cause.sort(order).to_dicts()


def reliability(p_onset: ArrayLike, ticks: Ticks) -> list[dict[str, Any]]:
    """Forecast probability of an onset in (t, t+60] against how often one came, over eligible ticks.

    High probabilities are rare, so each bin holds half of the ticks that are left: 50 %, 25 %, 12.5 % and so
    on, the last about 30. A list of {p_low, p_high, predicted, observed, ticks} in order of probability;
    empty where none is known.
    """
    p = np.asarray(p_onset, dtype=np.float64)
    counts = ticks.eligible & ~np.isnan(p)
    if not counts.any():
        return []
    p, came = p[counts], ticks.labels.onset_within(0, HORIZON_S[1])[counts]
    halvings = int(np.log2(max(len(p) / BIN_TICKS, 1.0)))
    edges = np.unique(np.quantile(p, 1.0 - 0.5 ** np.arange(halvings + 1)))
    place = np.searchsorted(edges, p, side="right") - 1
    rows = []
    for k in range(len(edges)):
        inside = place == k
        rows.append(
            {
                "p_low": float(p[inside].min()),
                "p_high": float(p[inside].max()),
                "predicted": float(np.clip(p[inside].mean(), p[inside].min(), p[inside].max())),
                "observed": float(came[inside].mean()),
                "ticks": int(inside.sum()),
            }
        )
    return rows


class _Blocks:
    """Blocks of a span and how often each resample draws each of them, (resamples, blocks)."""

    def __init__(self, t_s: Ints, blocks_s: int, resamples: int, seed: int) -> None:
        self._first_s, self._blocks_s = int(t_s[0]), blocks_s
        self._count = int(t_s[-1] - t_s[0]) // blocks_s + 1
        even = np.full(self._count, 1.0 / self._count)
        self._draws = np.random.default_rng(seed).multinomial(self._count, even, resamples)

    def ratio_of(self, at_s: Ints, part: ArrayLike, whole: NDArray[np.bool_]) -> Estimate:
        """Sum of ``part`` where ``whole`` / count of ``whole``; each item lies in the block of ``at_s``."""
        block = (at_s - self._first_s) // self._blocks_s
        parts = np.bincount(block, np.where(whole, part, 0), self._count)
        wholes = np.bincount(block, whole, self._count)
        if not wholes.any():
            return Estimate(None, None, None)
        value = float(parts.sum() / wholes.sum())
        if np.count_nonzero(wholes) < MIN_BLOCKS:
            return Estimate(value, None, None)
        drawn, drawn_whole = self._draws @ parts, self._draws @ wholes
        counts = drawn_whole > 0
        low, high = np.quantile(drawn[counts] / drawn_whole[counts], INTERVAL)
        return Estimate(value, float(low), float(high))


def _negatives(values: ArrayLike, ticks: Ticks) -> tuple[Floats, Floats]:
    """Scores of the negative ticks from high to low, and of all ticks; an unknown one below all others."""
    value = np.asarray(values, dtype=np.float64)
    if value.shape != ticks.t_s.shape:
        raise InputError(f"There must be one score a tick, {len(ticks.t_s)}; got shape {value.shape}.")
    value = np.where(np.isnan(value), -np.inf, value)
    return -np.sort(-value[ticks.labels.negative]), value


def _threshold(ranked: Floats, rate: Floats) -> Floats:
    """Lowest threshold that each rate affords: just over the first negative score that is too many."""
    affordable = np.floor(rate * len(ranked) + 1e-9).astype(np.int64)
    return np.asarray(np.nextafter(ranked[affordable], np.inf))


def _starts(alarm: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """First ticks of contiguous alarms."""
    return np.asarray(alarm & ~np.concatenate([[False], alarm[:-1]]))


def _quantiles(lead_s: Ints) -> LeadTime:
    if not len(lead_s):
        return LeadTime(None, None, None, 0)
    p10, p50, p90 = np.quantile(lead_s, [0.1, 0.5, 0.9]).tolist()
    return LeadTime(p10, p50, p90, len(lead_s))


def _share(part: Any, whole: int) -> float | None:
    return float(part / whole) if whole else None
