"""Features of every tick of a trace: cumulative sums over the whole of it, a stretch of ticks at a time."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from data.schema import LANES
from features.bursts import BASELINE_LAG_S, LOAD_WINDOW_S, MEAN_WINDOW_S, MEDIAN_WINDOW_S, MIN_HISTORY_S
from features.due import find_recurring
from features.engine_state import engine_before
from features.flows import FlowSeconds, flow_seconds
from features.returns import waiting_before
from features.scenarios import Level
from features.tenants import tenants_before
from features.ticks import TICK_S
from features.windows import (
    CHANNELS,
    HALF_TICKS,
    HALVES,
    LAG_S,
    LAGS,
    NAMES,
    WINDOWS_S,
    Known,
    assemble,
    baseline_of,
    cycle_ticks,
    day_before,
    line_of,
    usual_of,
)

STRETCH = 4096
"""Ticks told together: what is known of them all is many times as large as their features."""


def channel_seconds(flows: FlowSeconds) -> NDArray[np.int64]:
    """Every channel by second, int64, (channels, seconds)."""

    def by_second(
        values: NDArray[np.int64], group: NDArray[Any] | int = 0, groups: int = 1
    ) -> NDArray[np.int64]:
        # float64 sums of whole tokens are exact up to 2^53.
        place = group * flows.seconds + flows.second
        sums = np.bincount(place, weights=values, minlength=groups * flows.seconds)
        return sums.astype(np.int64).reshape(groups, flows.seconds)

    requests = by_second(flows.requests)
    return np.concatenate(
        [
            requests,
            by_second(flows.work),
            by_second(flows.prompt),
            by_second(flows.requests, flows.long_prompt[flows.flow], 2)[1:],
            by_second(flows.work, flows.lane[flows.flow], len(LANES)),
            flows.refusals[None],
            requests * requests,
        ]
    )


def sums_before(by_second: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sums of the seconds before each, (rows, seconds + 1)."""
    sums = np.zeros((len(by_second), by_second.shape[1] + 1), np.int64)
    np.cumsum(by_second, axis=1, out=sums[:, 1:])
    return sums


def known_before(flows: FlowSeconds, engines: pl.DataFrame | None = None) -> Iterator[Known]:
    """What was known before each tick of a trace, a stretch of `STRETCH` ticks after the other.

    ``engines`` are rows of engine_samples, if any.
    """
    t_s = np.arange(0, flows.seconds, TICK_S)
    channels = sums_before(channel_seconds(flows))
    work = channels[CHANNELS.index("work")]
    level, ratio = levels_before(work, t_s)
    peaks = half_peaks(ratio)
    ended = sums_before(flows.ended)
    day = np.array([day_before(t) for t in range(0, flows.seconds, 3600)])  # the same for a whole hour
    line = line_of(level[0], ended[:, t_s] - ended[:, day[t_s // 3600]])
    waiting = waiting_before(flows.waits, flows.seconds, t_s)
    told = tenants_before(flows, t_s)
    engine = engine_before(engines, flows.origin_us, t_s)
    recurring = find_recurring(flows)
    for first in range(0, len(t_s), STRETCH):
        some = slice(first, first + STRETCH)
        at_s = t_s[some]
        now = channels[:, at_s]
        sums = np.stack([now - channels[:, np.maximum(at_s - window, 0)] for window in WINDOWS_S], axis=1)
        edges = [work[np.maximum(at_s - LAG_S * lag, 0)] for lag in range(LAGS + 1)]
        usual = usual_of(level[:, some], sums, at_s)
        due, chances = recurring.around(at_s, Level(level[0, some], usual, line[some]))
        yield Known(
            at_s,
            flows.origin_us / 1e6 + at_s.astype(np.float64),
            sums,
            np.stack([late - early for late, early in pairwise(edges)]),
            level[:, some],
            due,
            line[some],
            chances,
            season_peaks(peaks, at_s // TICK_S),
            told[:, some],
            waiting[:, some],
            engine[:, some],
        )


def levels_before(
    work: NDArray[np.int64], t_s: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Baseline and median known at each tick, (2, n), and its highest load since the last one over it, (n,).

    ``work`` sums the seconds before each, (seconds + 1,).
    """
    hour_end = np.maximum(t_s - BASELINE_LAG_S, 0)
    hour = work[hour_end] - work[np.maximum(hour_end - MEAN_WINDOW_S, 0)]
    # The median of whole-number sums is exact, whatever way it interpolates.
    ends_s = np.arange(1, len(work))
    loads = work[1:] - work[np.maximum(ends_s - LOAD_WINDOW_S, 0)]
    medians = pl.Series(loads).rolling_median(MEDIAN_WINDOW_S, min_samples=MIN_HISTORY_S)
    median = medians.fill_null(np.nan).to_numpy()[np.maximum(hour_end - 1, 0)] / LOAD_WINDOW_S
    level = baseline_of(np.where(hour_end > 0, median, np.nan), hour, t_s)
    latest = sliding_window_view(np.concatenate([np.zeros(TICK_S, np.int64), loads]), TICK_S)[t_s]
    ratio = latest.max(axis=1) / LOAD_WINDOW_S / level[0]
    ratio[0] = np.nan  # nothing was known before the first request
    return level, ratio


def half_peaks(ratio: NDArray[np.float64]) -> NDArray[np.float64]:
    """Highest of the ticks of half a minute before each, (ticks + 1,), NaN where the trace had not begun."""
    padded = np.concatenate([np.full(HALF_TICKS, np.nan), ratio])
    return np.asarray(sliding_window_view(padded, HALF_TICKS).max(axis=1))


def season_peaks(peaks: NDArray[np.float64], ticks: NDArray[np.int64]) -> NDArray[np.float64]:
    """Peaks of earlier cycles at some ticks, (sum(CYCLES), HALVES, n), from `half_peaks`."""
    ends = 1 + HALF_TICKS * np.arange(1, HALVES + 1)[:, None]
    return np.asarray(peaks[np.maximum(ticks - cycle_ticks()[:, None, None] + ends, 0)])


def flow_features(flows: FlowSeconds, engines: pl.DataFrame | None = None) -> NDArray[np.float32]:
    """Features of every tick of a trace, (ticks, features); ``engines`` as `known_before` has them."""
    features = np.empty((-(-flows.seconds // TICK_S), len(NAMES)), np.float32)
    for known in known_before(flows, engines):
        features[known.t_s // TICK_S] = assemble(known)
    return features


def batch_features(
    requests: pl.DataFrame | pl.LazyFrame, engines: pl.DataFrame | None = None
) -> NDArray[np.float32]:
    """Features of every tick of a non-empty frame of requests sorted by arrival, (ticks, features).

    Two weeks of ten million requests take 1 GiB where they are scanned lazily. ``engines`` are rows of
    engine_samples; without them the engines' state is unknown.
    """
    return flow_features(flow_seconds(requests), engines)
