"""Features that know the future: when causes start. A yardstick learns from them, never a contender."""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from features.bursts import LOAD_WINDOW_S
from models.baselines.known import KnownLoad, level

FARTHEST_S = 600
"""A cause farther away than this is as good as none."""
LIGHT = 0.5
"""A cause whose whole work would not lift a 10 s load by this share of its baseline starts no burst."""
SLOTS_S = 120
"""How many start is also told in steps of 10 s up to this far ahead."""


def told_features(known: KnownLoad, causes: pl.DataFrame, t_s: NDArray[np.int64]) -> NDArray[np.float32]:
    """Time to the next start of each kind of cause and since the last one, and starts by step, (n, many).

    Start times alone: how heavy a cause will be is not told, but for the light ones, which are left out.

    Args:
        known: the load, whose baseline is the measure of what is light.
        causes: what sends bursts of work: t_s, cause, and where known work_tokens.
        t_s: ticks.

    """
    if "work_tokens" not in causes.columns:
        causes = causes.with_columns(work_tokens=pl.lit(None, pl.Float64))
    at_s = causes["t_s"].to_numpy().astype(np.float64)
    base = level(known, np.clip(at_s, 0, len(known.work)).astype(np.int64))
    size = causes["work_tokens"].cast(pl.Float64).fill_null(np.nan).to_numpy() / (LOAD_WINDOW_S * base)
    heavy = causes.filter(~(size < LIGHT)).sort("t_s", maintain_order=True)
    at_s, names = heavy["t_s"].to_numpy().astype(np.float64), heavy["cause"].to_numpy()
    columns = []
    for name in causes["cause"].unique().sort().to_list():
        columns += _neighbours(at_s[names == name], t_s)
    for ahead_s in range(0, SLOTS_S, LOAD_WINDOW_S):
        first, last = (
            np.searchsorted(at_s, t_s + edge_s, side="right") for edge_s in (ahead_s, ahead_s + LOAD_WINDOW_S)
        )
        columns.append((last - first).astype(np.float64))
    return np.stack(columns, axis=1).astype(np.float32)


def _neighbours(at_s: NDArray[np.float64], t_s: NDArray[np.int64]) -> list[NDArray[np.float64]]:
    """Seconds to the next start and since the last one, each (n,)."""
    at_s = np.concatenate([[-np.inf], at_s, [np.inf]])
    following = np.searchsorted(at_s[1:-1], t_s, side="right") + 1
    away = at_s[following] - t_s, t_s - at_s[following - 1]
    return [np.minimum(away_s, FARTHEST_S) for away_s in away]
