"""LightGBM on lags and seasons: what a practitioner would try first, and what has to be beaten."""

from collections.abc import Callable

import lightgbm
import numpy as np
import polars as pl
from numpy.typing import NDArray

from features.bursts import load
from models.baselines.known import KnownLoad, before, level, mean
from models.baselines.simple import SEASON_S


def lag_features(known: KnownLoad, t_s: NDArray[np.int64]) -> NDArray[np.float32]:
    """One hundred lag and season features, (n, 100): what a practitioner would give a boosted model first."""
    work = known.work
    base = level(known, t_s)
    columns = [mean(work, t_s - 10 * lag, 10) / base for lag in range(60)]
    columns += [
        mean(work, t_s, window) / base for window in (5, 20, 30, 60, 120, 180, 300, 600, 1200, 1800, 3600)
    ]
    spread = pl.Series(load(work))
    for window in (60, 300, 600):
        columns.append(
            before(spread.rolling_std(window, min_samples=2).fill_null(0.0).to_numpy(), t_s) / base
        )
        columns.append(before(spread.rolling_max(window, min_samples=1).to_numpy(), t_s) / base)
    columns += [mean(work, t_s - SEASON_S + ahead, 10) / base for ahead in range(10, 71, 10)]
    columns.append(np.log(base))
    unix_s = known.origin_us / 1e6 + t_s
    for period_s in (60, 300, 600, 900, 1800, 3600, 86_400):
        phase = 2.0 * np.pi * np.mod(unix_s, period_s) / period_s
        columns += [np.sin(phase), np.cos(phase)]
    columns.append(np.mod(unix_s, 3600.0))
    return np.stack(columns, axis=1).astype(np.float32)


def boost(
    features: NDArray[np.float32], onset_soon: NDArray[np.bool_], seed: int
) -> Callable[[NDArray[np.float32]], NDArray[np.float64]]:
    """Train boosted trees on ticks' features, (n, any), and on whether an onset came within 60 s of each.

    What comes back scores the features of any ticks, in log-odds. The last sixth of the training ticks, by
    time, decides when to stop.
    """
    label = onset_soon.astype(np.float64)
    cut = len(label) - len(label) // 6
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

    def score(features: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.asarray(model.predict(features, raw_score=True), dtype=np.float64)

    return score
