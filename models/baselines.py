"""What the forecaster must beat: simple scores on known load, and LightGBM on lags and seasons.

A score is higher where a burst seems nearer. Every contender gets the same guard and the same budget, so
only the order of its scores counts.
"""

from collections.abc import Callable
from dataclasses import dataclass

import lightgbm
import numpy as np
import polars as pl
from numpy.typing import NDArray

from features.bursts import baseline, load

SEASON_S = 3600
"""Cron-like jobs repeat within the hour, so the hour is the season that a naive forecast can use."""


@dataclass(frozen=True, slots=True)
class KnownLoad:
    """Expected work by second, as it was known when the second ended (features.flows).

    Attributes:
        origin_us: arrival of the first request, microseconds since the Unix epoch.
        work: tokens, int64, (seconds,).

    """

    origin_us: int
    work: NDArray[np.int64]


Score = Callable[[KnownLoad, NDArray[np.int64]], NDArray[np.float64]]
"""Score of the ticks t_s (n,): what was known before each, nothing later."""


def last_value(known: KnownLoad, t_s: NDArray[np.int64]) -> NDArray[np.float64]:
    """Load over baseline, now."""
    return _before(load(known.work), t_s) / _level(known, t_s)


def ewma_slope(known: KnownLoad, t_s: NDArray[np.int64]) -> NDArray[np.float64]:
    """Load 45 s ahead on the line through a fast and a slow exponential average, over baseline."""
    work = pl.Series(known.work.astype(np.float64))
    fast, slow = (_before(work.ewm_mean(half_life=half_s).to_numpy(), t_s) for half_s in (15.0, 60.0))
    # Each average lags by its mean age, half-life / ln 2: difference over difference is a slope.
    slope = (fast - slow) / ((60.0 - 15.0) / np.log(2.0))
    return np.asarray((fast + 45.0 * slope) / _level(known, t_s))


def panic_ratio(known: KnownLoad, t_s: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean load of 60 s over that of 180 s, as autoscalers tell a panic from a trend."""
    short, long = (_mean(known.work, t_s, window_s) for window_s in (60, 180))
    return (short + 1.0) / (long + 1.0)


def seasonal_naive(known: KnownLoad, t_s: NDArray[np.int64]) -> NDArray[np.float64]:
    """Highest load of the coming minute one hour ago, over today's baseline; last value in the first hour."""
    level = load(known.work)
    windows = np.lib.stride_tricks.sliding_window_view(np.concatenate([np.zeros(60), level]), 60)
    # Row s holds the 60 s that end before second s; the coming minute of an hour ago ends at t + 60 - 3600.
    then = windows[np.clip(t_s + 60 - SEASON_S, 0, len(level))].max(axis=1)
    return np.where(t_s >= SEASON_S, then, _before(level, t_s)) / _level(known, t_s)


SIMPLE: dict[str, tuple[str, Score]] = {
    "last_value": ("Last value", last_value),
    "ewma": ("EWMA slope", ewma_slope),
    "panic_ratio": ("Panic ratio, 60 s / 180 s", panic_ratio),
    "seasonal_naive": ("Seasonal naive, 1 h", seasonal_naive),
}
"""Scores that need no training, by name: (title, score)."""


def lag_features(known: KnownLoad, t_s: NDArray[np.int64]) -> NDArray[np.float32]:
    """One hundred lag and season features, (n, 100): what a practitioner would give a boosted model first."""
    work = known.work
    level = _level(known, t_s)
    columns = [_mean(work, t_s - 10 * lag, 10) / level for lag in range(60)]
    columns += [
        _mean(work, t_s, window) / level for window in (5, 20, 30, 60, 120, 180, 300, 600, 1200, 1800, 3600)
    ]
    spread = pl.Series(load(work))
    for window in (60, 300, 600):
        columns.append(
            _before(spread.rolling_std(window, min_samples=2).fill_null(0.0).to_numpy(), t_s) / level
        )
        columns.append(_before(spread.rolling_max(window, min_samples=1).to_numpy(), t_s) / level)
    columns += [_mean(work, t_s - SEASON_S + ahead, 10) / level for ahead in range(10, 71, 10)]
    columns.append(np.log(level))
    unix_s = known.origin_us / 1e6 + t_s
    for period_s in (60, 300, 600, 900, 1800, 3600, 86_400):
        phase = 2.0 * np.pi * np.mod(unix_s, period_s) / period_s
        columns += [np.sin(phase), np.cos(phase)]
    columns.append(np.mod(unix_s, 3600.0))
    return np.stack(columns, axis=1).astype(np.float32)


def train_lightgbm(
    known: KnownLoad, t_s: NDArray[np.int64], onset_soon: NDArray[np.bool_], seed: int
) -> Score:
    """Boosted trees on `lag_features`, told whether an onset came within 60 s of each training tick.

    The last sixth of the ticks, by time, decides when to stop.
    """
    features = lag_features(known, t_s)
    label = onset_soon.astype(np.float64)
    cut = len(t_s) - len(t_s) // 6
    settings = {
        "objective": "binary",
        "learning_rate": 0.03,
        "num_leaves": 31,
        "min_data_in_leaf": 60,
        "feature_fraction": 0.7,
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "seed": seed,
        "deterministic": True,
        "force_row_wise": True,
        "num_threads": 2,
        "verbosity": -1,
    }
    learn = lightgbm.Dataset(features[:cut], label[:cut])
    check = lightgbm.Dataset(features[cut:], label[cut:], reference=learn)
    stop = lightgbm.early_stopping(50, verbose=False)
    model = lightgbm.train(settings, learn, 600, valid_sets=[check], callbacks=[stop])

    def score(known: KnownLoad, t_s: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.asarray(model.predict(lag_features(known, t_s), raw_score=True), dtype=np.float64)

    return score


def _before(values: NDArray[np.float64], t_s: NDArray[np.int64]) -> NDArray[np.float64]:
    """The value of the last second before each tick."""
    return values[np.maximum(t_s - 1, 0)]


def _mean(work: NDArray[np.int64], t_s: NDArray[np.int64], window_s: int) -> NDArray[np.float64]:
    """Mean of the seconds [t - window_s, t), fewer at the start."""
    total = np.concatenate([[0], np.cumsum(work)])
    end = np.clip(t_s, 0, len(work))
    start = np.maximum(end - window_s, 0)
    return np.asarray((total[end] - total[start]) / np.maximum(end - start, 1))


def _level(known: KnownLoad, t_s: NDArray[np.int64]) -> NDArray[np.float64]:
    """Baseline known at each tick + 1 token/s, so that ratios stay finite in silence."""
    return np.nan_to_num(_before(baseline(known.work), t_s), nan=0.0) + 1.0
