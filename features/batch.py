"""Features of every tick of a trace at once: polars and cumulative sums over the whole of it."""

from itertools import pairwise

import numpy as np
import polars as pl
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from features.bins import trailing_sum
from features.bursts import BASELINE_LAG_S, LOAD_WINDOW_S, MEAN_WINDOW_S, MEDIAN_WINDOW_S, MIN_HISTORY_S
from features.due import due_around
from features.engine_state import engine_before
from features.flows import FlowSeconds, flow_seconds
from features.returns import waiting_before
from features.scenarios import Level
from features.tenants import tenants_before
from features.ticks import HORIZON_S, TICK_S
from features.windows import (
    CHANNELS,
    HALVES,
    LAG_S,
    LAGS,
    WINDOWS_S,
    Known,
    assemble,
    baseline_of,
    cycle_ticks,
    day_before,
    line_of,
    usual_of,
)


def channel_seconds(flows: FlowSeconds) -> NDArray[np.int64]:
    """Every channel by second, int64, (channels, seconds)."""

    def by_second(
        values: NDArray[np.int64], chosen: NDArray[np.bool_] | slice = slice(None)
    ) -> NDArray[np.int64]:
        # float64 sums of whole tokens are exact up to 2^53.
        sums = np.bincount(flows.second[chosen], weights=values[chosen], minlength=flows.seconds)
        return sums.astype(np.int64)

    requests = by_second(flows.requests)
    lane = flows.lane[flows.flow]
    return np.stack(
        [
            requests,
            by_second(flows.work),
            by_second(flows.prompt),
            by_second(flows.requests, flows.long_prompt[flows.flow]),
            *(by_second(flows.work, lane == index) for index in range(3)),
            flows.refusals,
            requests * requests,
        ]
    )


def known_before(flows: FlowSeconds, engines: pl.DataFrame | None = None) -> Known:
    """What was known before each tick of a trace; ``engines`` are rows of engine_samples, if any."""
    t_s = np.arange(0, flows.seconds, TICK_S)
    channels = channel_seconds(flows)
    # cumulative[:, t] sums the seconds before t.
    cumulative = np.concatenate([np.zeros((len(CHANNELS), 1), np.int64), np.cumsum(channels, axis=1)], axis=1)
    sums = np.stack(
        [cumulative[:, t_s] - cumulative[:, np.maximum(t_s - window, 0)] for window in WINDOWS_S], axis=1
    )
    work = cumulative[CHANNELS.index("work")]
    edges = [work[np.maximum(t_s - LAG_S * lag, 0)] for lag in range(LAGS + 1)]
    lags = np.stack([late - early for late, early in pairwise(edges)])
    hour_end = np.maximum(t_s - BASELINE_LAG_S, 0)
    hour = work[hour_end] - work[np.maximum(hour_end - MEAN_WINDOW_S, 0)]
    # The median of whole-number sums is exact, whatever way it interpolates.
    loads = trailing_sum(channels[CHANNELS.index("work")], LOAD_WINDOW_S)
    medians = pl.Series(loads).rolling_median(MEDIAN_WINDOW_S, min_samples=MIN_HISTORY_S)
    median = medians.fill_null(np.nan).to_numpy()[np.maximum(hour_end - 1, 0)] / LOAD_WINDOW_S
    level = baseline_of(np.where(hour_end > 0, median, np.nan), hour, t_s)
    latest = sliding_window_view(np.concatenate([np.zeros(TICK_S, np.int64), loads]), TICK_S)[t_s]
    ratio = latest.max(axis=1) / LOAD_WINDOW_S / level[0]
    ratio[0] = np.nan  # nothing was known before the first request
    seasons = season_peaks(ratio)
    unix_s = flows.origin_us / 1e6 + t_s.astype(np.float64)
    ended = np.concatenate([np.zeros((3, 1), np.int64), np.cumsum(flows.ended, axis=1)], axis=1)
    day = np.array([day_before(t) for t in range(0, flows.seconds, 3600)])  # the same for a whole hour
    line = line_of(level[0], ended[:, t_s] - ended[:, day[t_s // 3600]])
    due, chances = due_around(flows, t_s, Level(level[0], usual_of(level, sums, t_s), line))
    return Known(
        t_s,
        unix_s,
        sums,
        lags,
        level,
        due,
        line,
        chances,
        seasons,
        tenants_before(flows, t_s),
        waiting_before(flows.waits, flows.seconds, t_s),
        engine_before(engines, flows.origin_us, t_s),
    )


def season_peaks(ratio: NDArray[np.float64]) -> NDArray[np.float64]:
    """Peaks of earlier cycles, (sum(CYCLES), HALVES, ticks), from each tick's highest load over baseline."""
    half = HORIZON_S[1] // TICK_S // HALVES
    cycles = cycle_ticks()
    before = int(cycles.max())
    padded = np.concatenate([np.full(before, np.nan), ratio, np.full(HALVES * half, np.nan)])
    peaks = sliding_window_view(padded, half).max(axis=1)
    then = before + np.arange(len(ratio)) - cycles[:, None]
    return np.stack([peaks[then + 1 + index * half] for index in range(HALVES)], axis=1)


def batch_features(requests: pl.DataFrame, engines: pl.DataFrame | None = None) -> NDArray[np.float32]:
    """Features of every tick of a non-empty frame of requests sorted by arrival, (ticks, features).

    ``engines`` are rows of engine_samples; without them the engines' state is unknown.
    """
    return assemble(known_before(flow_seconds(requests), engines))
