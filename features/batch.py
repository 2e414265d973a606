"""Features of every tick of a trace at once: polars and cumulative sums over the whole of it."""

from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from features.bins import trailing_sum
from features.bursts import BASELINE_LAG_S, LOAD_WINDOW_S, MEAN_WINDOW_S, MEDIAN_WINDOW_S, MIN_HISTORY_S
from features.flows import FlowSeconds, flow_seconds
from features.recurrence import EXPECTATIONS, Recurrence
from features.windows import CHANNELS, LAG_S, LAGS, WINDOWS_S, WindowSums, assemble


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


def due_loads(flows: FlowSeconds, t_s: NDArray[np.int64]) -> NDArray[np.float64]:
    """Loads due around each tick, tokens/s, (EXPECTATIONS, ticks): the one part that is truly sequential."""
    recurrence = Recurrence()
    due = np.empty((EXPECTATIONS, len(t_s)))
    tenants = flows.tenant[flows.flow]
    ends = np.searchsorted(flows.second, t_s)
    start = 0
    for tick, end in enumerate(ends):
        for second, flow, tenant, work in zip(
            flows.second[start:end].tolist(),
            flows.flow[start:end].tolist(),
            tenants[start:end].tolist(),
            flows.work[start:end].tolist(),
            strict=True,
        ):
            recurrence.observe(second, flow, tenant, work)
        due[:, tick] = recurrence.expected(int(t_s[tick]))
        start = end
    return due


def window_sums(flows: FlowSeconds, t_s: NDArray[np.int64]) -> WindowSums:
    """What was known before each of the ticks ``t_s`` (n,): ascending, none after the trace's last second."""
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
    level = pl.Series(trailing_sum(channels[CHANNELS.index("work")], LOAD_WINDOW_S))
    medians = level.rolling_median(MEDIAN_WINDOW_S, min_samples=MIN_HISTORY_S).fill_null(np.nan).to_numpy()
    median = np.where(hour_end > 0, medians[np.maximum(hour_end - 1, 0)] / LOAD_WINDOW_S, np.nan)
    unix_s = flows.origin_us / 1e6 + t_s.astype(np.float64)
    return WindowSums(t_s, unix_s, sums, lags, median, hour, due_loads(flows, t_s))


def batch_features(requests: pl.DataFrame, t_s: NDArray[np.int64]) -> NDArray[np.float32]:
    """Features of the ticks ``t_s`` from a frame of requests sorted by arrival, (ticks, features)."""
    return assemble(window_sums(flow_seconds(requests), t_s))
