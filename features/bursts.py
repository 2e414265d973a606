"""Load, its baseline, and the burst events that the forecaster predicts."""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from features.bins import WorkBins, trailing_sum

LOAD_WINDOW_S = 10
MEDIAN_WINDOW_S = 600
MEAN_WINDOW_S = 3600
BASELINE_LAG_S = 10
"""The baseline ends this long before the second it is compared with, so a burst doesn't raise its own bar."""
MIN_HISTORY_S = 60
RATIO = 2.0
CAPACITY_SHARE = 0.7
NOISE_SIGMAS = 5.0
MERGE_GAP_S = 30
MIN_EVENT_S = 5


@dataclass(frozen=True, slots=True)
class Events:
    """Burst events in order of time: first and last burst second of each, int64, shape (events,)."""

    onset_s: NDArray[np.int64]
    last_s: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.onset_s)


def load(work: NDArray[np.int64]) -> NDArray[np.float64]:
    """L(s), tokens/s: mean of work over the 10 s ending at s; the first seconds average what there is."""
    seconds = np.minimum(np.arange(1, len(work) + 1), LOAD_WINDOW_S)
    return trailing_sum(work, LOAD_WINDOW_S) / seconds


def baseline(work: NDArray[np.int64]) -> NDArray[np.float64]:
    """b(s), tokens/s: max(median of L over 600 s, mean of work over 3600 s), both ending at s-10.

    The mean keeps on/off traffic from having a baseline of zero. NaN until 60 s of history.
    """
    median = (
        pl.Series(load(work)).rolling_median(MEDIAN_WINDOW_S, min_samples=MIN_HISTORY_S).fill_null(np.nan)
    ).to_numpy()
    seconds = np.minimum(np.arange(1, len(work) + 1), MEAN_WINDOW_S)
    level = np.maximum(median, trailing_sum(work, MEAN_WINDOW_S) / seconds)
    lagged = np.full(len(work), np.nan)
    lagged[BASELINE_LAG_S:] = level[:-BASELINE_LAG_S]
    return lagged


def burst_line(
    base: NDArray[np.float64],
    mean_work: float | NDArray[np.float64],
    mean_square_work: float | NDArray[np.float64],
) -> NDArray[np.float64]:
    """Load over which a second is in burst, tokens/s: twice the baseline, and 5 sigma of noise over it.

    The noise is compound-Poisson at the baseline rate, from the mean, over 0, and mean square of the work per
    request.
    """
    expected_requests = np.maximum(base * LOAD_WINDOW_S / mean_work, 1.0)
    noise = np.sqrt(expected_requests * mean_square_work)
    return np.asarray(np.maximum(RATIO * base, base + NOISE_SIGMAS * noise / LOAD_WINDOW_S))


def burst_seconds(bins: WorkBins, capacity_tokens_per_s: float | None = None) -> NDArray[np.bool_]:
    """Seconds in burst, bool, shape (seconds,).

    The load is over `burst_line`, and over 70 % of the engine's capacity where that is known. No work, no
    burst.
    """
    if bins.mean_work == 0.0:
        return np.zeros(len(bins.work), dtype=np.bool_)
    level = load(bins.work)
    burst = level > burst_line(baseline(bins.work), bins.mean_work, bins.mean_square_work)
    if capacity_tokens_per_s is not None:
        burst &= level > CAPACITY_SHARE * capacity_tokens_per_s
    return burst


def events(burst: NDArray[np.bool_]) -> Events:
    """Merge burst seconds with gaps of at most 30 s into events; drop those under 5 s.

    >>> seconds = np.zeros(100, dtype=bool)
    >>> seconds[10:14] = seconds[40] = True
    >>> events(seconds)
    Events(onset_s=array([10]), last_s=array([40]))
    """
    seconds = np.flatnonzero(burst)
    if not len(seconds):
        return Events(seconds, seconds)
    # A gap of 30 quiet seconds lies between burst seconds that are 31 apart.
    breaks = np.flatnonzero(np.diff(seconds) > MERGE_GAP_S + 1)
    onset = seconds[np.r_[0, breaks + 1]]
    last = seconds[np.r_[breaks, len(seconds) - 1]]
    long_enough = last - onset + 1 >= MIN_EVENT_S
    return Events(onset[long_enough], last[long_enough])


def find_events(bins: WorkBins, capacity_tokens_per_s: float | None = None) -> Events:
    """Burst events of a whole trace."""
    return events(burst_seconds(bins, capacity_tokens_per_s))
