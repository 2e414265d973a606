"""What the engines said of themselves before a tick: requests waiting and running, KV cache, preemptions."""

from bisect import bisect_left
from collections.abc import Iterable

import numpy as np
import polars as pl
from numpy.typing import NDArray

FRESH_S = 30
"""A reading older than this is unknown."""
READINGS = ("waiting", "running", "kv_cache_usage", "preemptions_per_s")
"""Summed over the engines, but for the cache, where the fullest one counts."""
KEPT = 16
"""Readings of an engine that are kept: a tick may be asked for after newer ones came."""

Row = tuple[int, tuple[float, ...]]


def combined(readings: Iterable[NDArray[np.float64]], n: int) -> NDArray[np.float64]:
    """The engines as one, (len(READINGS), n), from each one's, NaN where unknown; in a fixed order."""
    total = np.full((len(READINGS), n), np.nan)
    for each in readings:
        known = np.where(np.isnan(total), 0.0, total) + np.where(np.isnan(each), 0.0, each)
        known[2] = np.fmax(total[2], each[2])
        total = np.where(np.isnan(total) & np.isnan(each), np.nan, known)
    return total


class EngineState:
    """Keeps the latest readings; equal to `engine_before` when each came before the tick that asks.

    >>> state = EngineState()
    >>> state.read(0, "pod", "0", waiting=3, kv_cache_usage=0.5)
    >>> state.tell(1_000_000).tolist(), state.tell(60_000_000).tolist()
    ([3.0, nan, 0.5, nan], [nan, nan, nan, nan])
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], list[Row]] = {}

    def read(
        self,
        at_us: int,
        source: str,
        engine: str = "",
        *,
        waiting: float | None = None,
        running: float | None = None,
        kv_cache_usage: float | None = None,
        preemptions_per_s: float | None = None,
    ) -> None:
        """Take a reading at ``at_us``; None is unknown."""
        values = (waiting, running, kv_cache_usage, preemptions_per_s)
        row = (at_us, tuple(np.nan if value is None else float(value) for value in values))
        rows = self._rows.setdefault((source, engine), [])
        rows.insert(bisect_left(rows, at_us, key=lambda each: each[0]), row)
        del rows[:-KEPT]

    def tell(self, at_us: int) -> NDArray[np.float64]:
        """Readings before a moment, (len(READINGS),), NaN where unknown."""
        oldest_us = at_us - FRESH_S * 1_000_000
        for engine in [key for key, rows in self._rows.items() if rows[-1][0] < oldest_us]:
            del self._rows[engine]
        latest = []
        for engine in sorted(self._rows):
            before = [row for row in self._rows[engine] if oldest_us <= row[0] < at_us]
            if before:
                latest.append(np.array(before[-1][1])[:, None])
        return combined(latest, 1)[:, 0]


def engine_before(
    samples: pl.DataFrame | None, origin_us: int, t_s: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Readings before each tick, float64, (len(READINGS), n), NaN where unknown.

    Args:
        samples: rows of the lake's engine_samples; None where there are none.
        origin_us: what ticks count from.
        t_s: ticks, seconds, (n,).

    """
    if samples is None:
        return np.full((len(READINGS), len(t_s)), np.nan)
    at_us = origin_us + t_s * 1_000_000
    each = []
    rows = samples.filter(pl.col("state") == "ok").sort("at", maintain_order=True)
    for _, engine in sorted(rows.group_by("source", "engine"), key=lambda group: group[0]):
        read_us = engine["at"].to_physical().to_numpy()
        last = np.searchsorted(read_us, at_us) - 1
        fresh = (last >= 0) & (at_us - read_us[last] <= FRESH_S * 1_000_000)
        values = engine.select(pl.col(READINGS).cast(pl.Float64).fill_null(np.nan)).to_numpy().T
        each.append(np.where(fresh, values[:, last], np.nan))
    return combined(each, len(t_s))
