"""What the numbers of a report are held against: hindsight, other contenders, causes, outcomes."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from data.errors import InputError
from features.ticks import HORIZON_S
from models.guard.intervals import Blocks, Estimate
from pipeline.scoring import Floats, Ticks, anticipated, crest, scorable, share_of

CAUSE_S = (-90, 5)
"""A cause that starts this long before (after) an onset may explain it."""
UNEXPLAINED = "unexplained"
BIN_TICKS = 30
"""Fewest ticks that a share of onsets is read from in a reliability plot."""

Claim = Literal["better", "worse", "no difference"]


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
    return Hindsight(threshold, share_of(reached.sum(), len(reached)), float(np.mean(ranked >= threshold)))


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
    found = Blocks(a.t_s, blocks_s, resamples, seed=seed).ratio_of(x, gain, np.ones(len(x), dtype=np.bool_))
    claim: Claim = "no difference"
    if found.low is not None and found.low > 0:
        claim = "better"
    elif found.high is not None and found.high < 0:
        claim = "worse"
    return Difference(found, claim)


def recall_by_cause(ticks: Ticks, onsets: ArrayLike, causes: pl.DataFrame) -> list[dict[str, Any]]:
    """Recall of the onsets of each cause: a list of {cause, onsets, missed, recall}, most onsets first.

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
        pl.len().alias("onsets"),
        (~pl.col("hit")).sum().alias("missed"),
        pl.col("hit").mean().alias("recall"),
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
