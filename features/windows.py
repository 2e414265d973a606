"""The feature list: one definition of every feature, from exact integer sums, for batch and online alike.

Both executions bring the same whole-number window sums to ``assemble``; sums of integers have no rounding,
so features agree to the last bit whichever way the sums were kept.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.schema import LANES
from features import followups, periods
from features.bursts import BASELINE_LAG_S, MEAN_WINDOW_S, MIN_HISTORY_S

CHANNELS = (
    "requests",
    "work",
    "prompt",
    "long_prompts",
    *(f"{lane}_work" for lane in LANES),
    "refusals",
    "squares",
)
"""What is summed by second: counts, tokens, expected work by lane, and squared request counts."""

WINDOWS_S = (5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
LAG_S = 10
LAGS = 12
"""Windows of LAG_S that end 0, 10, ... s before the tick."""
LONGEST_WINDOW_S = MEAN_WINDOW_S + BASELINE_LAG_S

DAY_WAVES = (1, 2, 3)
HOUR_WAVES = (1, 2, 3, 4, 6, 12, 20, 30, 60)

_LOAD_WINDOWS = (5, 20, 30, 60, 120, 300, 600, 1800)
_RATE_WINDOWS = (5, 10, 30, 60, 300, 1800)

NAMES: tuple[str, ...] = (
    *(f"load_lag_{LAG_S * lag}_s" for lag in range(LAGS)),
    *(f"load_{window}_s" for window in _LOAD_WINDOWS),
    *(f"rate_{window}_s" for window in _RATE_WINDOWS),
    "rate_hour",
    "baseline",
    "median_over_mean",
    *(f"density_{window}_s" for window in (10, 60, 600)),
    *(f"long_prompts_{window}_s" for window in (30, 60, 120)),
    *(f"{lane}_share_{window}_s" for lane in LANES for window in (30, 600)),
    *(f"dispersion_{window}_s" for window in (60, 300)),
    *(f"refusals_{window}_s" for window in (20, 60)),
    *(f"due_{kind}_{slot}" for kind in ("sum", "largest") for slot in range(periods.SLOTS)),
    *(f"follow_up_{slot}" for slot in range(followups.SLOTS)),
    *(f"{wave}_day_{k}" for k in DAY_WAVES for wave in ("sin", "cos")),
    *(f"{wave}_hour_{k}" for k in HOUR_WAVES for wave in ("sin", "cos")),
)
"""Every feature in the order of its column."""

SPEC_HASH = hashlib.sha256(("1\n" + "\n".join(NAMES)).encode()).hexdigest()[:16]
"""Names this list; the number in front changes when a definition does and its name does not."""


@dataclass(frozen=True, slots=True)
class WindowSums:
    """What was known before each tick; n ticks.

    Attributes:
        t_s: seconds from the first request, int64, (n,).
        unix_s: the same instant, seconds since the Unix epoch, float64, (n,).
        sums: whole-number sums of each channel over each window that ends before the tick, int64,
            (channels, windows, n).
        lags: work in ten-second windows that end 0, 10, ... s before the tick, int64, (LAGS, n).
        median: median load over the baseline's window, tokens/s, NaN without history, float64, (n,).
        mean_work: work over the baseline's hour, int64, (n,).
        due: loads due around the tick (features.recurrence), tokens/s, float64, (EXPECTATIONS, n).

    """

    t_s: NDArray[np.int64]
    unix_s: NDArray[np.float64]
    sums: NDArray[np.int64]
    lags: NDArray[np.int64]
    median: NDArray[np.float64]
    mean_work: NDArray[np.int64]
    due: NDArray[np.float64]


def assemble(known: WindowSums) -> NDArray[np.float32]:
    """Features of n ticks, shape (n, len(NAMES)); NaN in every column until 60 s of history.

    Loads enter as logarithms of their ratio to the baseline, so that a model sees a quiet night and a busy
    noon alike.
    """
    t_s = known.t_s
    enough = t_s >= MIN_HISTORY_S + BASELINE_LAG_S
    history = np.maximum(t_s, 1)

    def total(channel: str, window_s: int) -> NDArray[np.float64]:
        return np.asarray(known.sums[CHANNELS.index(channel), WINDOWS_S.index(window_s)], dtype=np.float64)

    def mean(channel: str, window_s: int) -> NDArray[np.float64]:
        return np.asarray(total(channel, window_s) / np.minimum(history, window_s))

    hour = np.clip(history - BASELINE_LAG_S, 1, MEAN_WINDOW_S)
    hour_load = known.mean_work / hour
    baseline = np.fmax(known.median, hour_load) + 1.0

    def relative(load: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.log(load / baseline + 0.02))

    hour_rate = mean("requests", 3600) + 0.01
    columns = [relative(lag / LAG_S) for lag in known.lags]
    columns += [relative(mean("work", window)) for window in _LOAD_WINDOWS]
    columns += [np.log(mean("requests", window) / hour_rate + 0.02) for window in _RATE_WINDOWS]
    columns += [np.log(hour_rate), np.log(baseline), np.log((known.median + 1.0) / (hour_load + 1.0))]
    hour_density = (total("prompt", 3600) + 1.0) / (total("requests", 3600) + 1.0)
    for window in (10, 60, 600):
        density = (total("prompt", window) + hour_density) / (total("requests", window) + 1.0)
        columns.append(np.log(density / hour_density))
    columns += [np.log1p(total("long_prompts", window)) for window in (30, 60, 120)]
    for lane in LANES:
        for window in (30, 600):
            columns.append((total(f"{lane}_work", window) + 1.0) / (total("work", window) + len(LANES)))
    for window in (60, 300):
        rate = mean("requests", window)
        columns.append(np.log((mean("squares", window) - rate * rate + 0.1) / (rate + 0.1) + 0.02))
    columns += [np.log1p(total("refusals", window)) for window in (20, 60)]
    columns += [np.log1p(4.0 * load / baseline) for load in known.due]
    for period_s, waves in ((86400.0, DAY_WAVES), (3600.0, HOUR_WAVES)):
        phase = 2.0 * np.pi * np.mod(known.unix_s, period_s) / period_s
        for wave in waves:
            columns += [np.sin(wave * phase), np.cos(wave * phase)]
    features = np.stack(columns, axis=1).astype(np.float32)
    features[~enough] = np.nan
    return features
