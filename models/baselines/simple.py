"""Scores on known load that need no training: higher where a burst seems nearer."""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from features.bursts import load
from models.baselines.known import KnownLoad, Score, before, level, mean

SEASON_S = 3600
"""Cron-like jobs repeat within the hour, so the hour is the season that a naive forecast can use."""


def last_value(known: KnownLoad, t_s: NDArray[np.int64]) -> NDArray[np.float64]:
    """Load over baseline, now."""
    return before(load(known.work), t_s) / level(known, t_s)


def ewma_slope(known: KnownLoad, t_s: NDArray[np.int64]) -> NDArray[np.float64]:
    """Load 45 s ahead on the line through a fast and a slow exponential average, over baseline."""
    work = pl.Series(known.work.astype(np.float64))
    fast, slow = (before(work.ewm_mean(half_life=half_s).to_numpy(), t_s) for half_s in (15.0, 60.0))
    # Each average lags by its mean age, half-life / ln 2: difference over difference is a slope.
    slope = (fast - slow) / ((60.0 - 15.0) / np.log(2.0))
    return np.asarray((fast + 45.0 * slope) / level(known, t_s))


def panic_ratio(known: KnownLoad, t_s: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean load of 60 s over that of 180 s, as autoscalers tell a panic from a trend."""
    short, long = (mean(known.work, t_s, window_s) for window_s in (60, 180))
    return (short + 1.0) / (long + 1.0)


def seasonal_naive(known: KnownLoad, t_s: NDArray[np.int64]) -> NDArray[np.float64]:
    """Highest load of the coming minute one hour ago, over today's baseline; last value in the first hour."""
    loads = load(known.work)
    windows = np.lib.stride_tricks.sliding_window_view(np.concatenate([np.zeros(60), loads]), 60)
    # Row s holds the 60 s that end before second s; the coming minute of an hour ago ends at t + 60 - 3600.
    then = windows[np.clip(t_s + 60 - SEASON_S, 0, len(loads))].max(axis=1)
    return np.where(t_s >= SEASON_S, then, before(loads, t_s)) / level(known, t_s)


SIMPLE: dict[str, tuple[str, Score]] = {
    "last_value": ("Last value", last_value),
    "ewma": ("EWMA slope", ewma_slope),
    "panic_ratio": ("Panic ratio, 60 s / 180 s", panic_ratio),
    "seasonal_naive": ("Seasonal naive, 1 h", seasonal_naive),
}
"""Scores that need no training, by name: (title, score)."""
