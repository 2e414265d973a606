"""The feature list: one definition of every feature, from exact integer sums, for batch and online alike.

Both executions bring the same whole-number window sums to ``assemble``; sums of integers have no rounding,
so features agree to the last bit whichever way the sums were kept.
"""

import hashlib
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from data.schema import LANES
from features import engine_state, tenants
from features.bursts import BASELINE_LAG_S, MEAN_WINDOW_S, MIN_HISTORY_S, RATIO, burst_line
from features.periods import POINTS_S
from features.returns import CLASSES
from features.scenarios import USUAL_SPREAD
from features.ticks import HORIZON_S, SLOT_S, SLOTS, TICK_S

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

SEASONS_S = (300, 600, 900, 1200, 1800, 3600, 86400)
"""Periods at which cron-like jobs and people come back."""
CYCLES = (6, 6, 6, 6, 6, 6, 2)
"""How many cycles of each season are looked back on."""
HALVES = 2
"""The coming minute is looked at in halves: (t, t+30] and (t+30, t+60]."""
HALF_TICKS = HORIZON_S[1] // TICK_S // HALVES

_LOAD_WINDOWS = (5, 20, 30, 60, 120, 300, 600, 1800)
_RATE_WINDOWS = (5, 10, 30, 60, 300, 1800)
_EVERY_OTHER = slice(0, None, 2)

_WINDOWS = np.array(WINDOWS_S)
_LANES = np.array([[CHANNELS.index(f"{lane}_work")] for lane in LANES])
_SEASON_STARTS = np.cumsum((0, *CYCLES[:-1]))
_WAVES = np.array([*DAY_WAVES, *HOUR_WAVES])[:, None]
_PERIODS_S = np.repeat([86400.0, 3600.0], [len(DAY_WAVES), len(HOUR_WAVES)])[:, None]
_LARGEST = np.finfo(np.float64).max

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
    f"heaviest_tenant_{tenants.WINDOW_S}_s",
    f"heaviest_{tenants.HEAVIEST}_tenants_{tenants.WINDOW_S}_s",
    f"tenant_concentration_{tenants.WINDOW_S}_s",
    f"new_tenants_{tenants.NEW_S}_s",
    *(f"sessions_waiting_{low}_{high}_s" for low, high in CLASSES),
    *(f"engine_{reading}" for reading in engine_state.READINGS),
    *(f"engine_{reading}_known" for reading in engine_state.READINGS),
    *(f"scheduled_{at:.0f}_s" for at in POINTS_S[_EVERY_OTHER]),
    *(f"following_{at:.0f}_s" for at in POINTS_S[_EVERY_OTHER]),
    *(f"excess_{at:.0f}_s" for at in POINTS_S),
    "line",
    *(f"crossing_{SLOT_S * slot}_s" for slot in range(SLOTS)),
    "crossing_minute",
    *(f"crossing_after_{SLOT_S * slot}_s" for slot in range(SLOTS)),
    "crossing_after_minute",
    "highest_p50",
    "highest_p90",
    *(
        f"season_{season}_s_{kind}_{half}"
        for season in SEASONS_S
        for kind in ("peak", "bursts")
        for half in range(HALVES)
    ),
    *(f"{wave}_day_{k}" for k in DAY_WAVES for wave in ("sin", "cos")),
    *(f"{wave}_hour_{k}" for k in HOUR_WAVES for wave in ("sin", "cos")),
)
"""Every feature in the order of its column."""
_LOAD, _LINE = NAMES.index("load_lag_0_s"), NAMES.index("line")

SPEC_HASH = hashlib.sha256(("2\n" + "\n".join(NAMES)).encode()).hexdigest()[:16]
"""Names this list; the number in front changes when a definition does and its name does not."""


@dataclass(frozen=True, slots=True)
class Known:
    """What was known before each tick; n ticks.

    Attributes:
        t_s: seconds from the first request, int64, (n,).
        unix_s: the same instant, seconds since the Unix epoch, float64, (n,).
        sums: whole-number sums of each channel over each window that ends before the tick, int64,
            (channels, windows, n).
        lags: work in ten-second windows that end 0, 10, ... s before the tick, int64, (LAGS, n).
        level: `baseline_of` the tick, tokens/s, float64, (2, n).
        due: mean and variance of the load due around the tick (features.recurrence), float64,
            (EXPECTATIONS, POINTS, n).
        line: load over which a second would be a burst, tokens/s, float64, (n,).
        crossings: how likely what is due makes a burst (features.scenarios), float64, (FIELDS, n).
        seasons: highest load over baseline in each half of the minute that the coming one repeats, one row a
            season, cycle and half, NaN before the first request, float64, (sum(CYCLES), HALVES, n).
        tenants: who sends the load (features.tenants), int64, (FIELDS, n).
        waiting: sessions that wait for their next turn (features.returns), int64, (CLASSES, n).
        engines: what they said (features.engine_state), NaN where unknown, float64, (READINGS, n).

    """

    t_s: NDArray[np.int64]
    unix_s: NDArray[np.float64]
    sums: NDArray[np.int64]
    lags: NDArray[np.int64]
    level: NDArray[np.float64]
    due: NDArray[np.float64]
    line: NDArray[np.float64]
    crossings: NDArray[np.float64]
    seasons: NDArray[np.float64]
    tenants: NDArray[np.int64]
    waiting: NDArray[np.int64]
    engines: NDArray[np.float64]


def baseline_of(
    median: NDArray[np.float64], hour_work: NDArray[np.int64], t_s: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Baseline known at each tick and the median in it, tokens/s, (2, n); + 1 keeps ratios finite.

    Args:
        median: median load over the baseline's window, NaN without history.
        hour_work: work over the baseline's hour.
        t_s: seconds from the first request.

    """
    hour = hour_work / np.minimum(np.maximum(t_s - BASELINE_LAG_S, 1), MEAN_WINDOW_S)
    return np.stack([np.fmax(median, hour), np.fmax(median, 0.0)]) + 1.0


def usual_of(
    level: NDArray[np.float64], sums: NDArray[np.int64], t_s: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Load without anything due, tokens/s, (n,): the median, or the last two minutes' mean if higher."""
    window_s = 120
    work = sums[CHANNELS.index("work"), WINDOWS_S.index(window_s)]
    return np.asarray(np.maximum(level[1], work / np.minimum(np.maximum(t_s, 1), window_s)))


def line_of(baseline: NDArray[np.float64], ended: NDArray[np.int64]) -> NDArray[np.float64]:
    """Load over which a second would be a burst, tokens/s, (n,).

    Args:
        baseline: known at each tick, tokens/s, (n,).
        ended: how many requests ended in the day before, their work and its squares, (3, n).

    """
    requests = np.maximum(ended[0], 1)
    mean = np.maximum(ended[1] / requests, 1.0)
    return burst_line(baseline, mean, ended[2] / requests)


def day_before(t_s: int) -> int:
    """Start of the day that tells how heavy requests are: 24 whole hours and the one under way."""
    return max(t_s // 3600 - 24, 0) * 3600


def cycle_ticks() -> NDArray[np.int64]:
    """How many ticks ago each cycle of each season was, int64, (sum(CYCLES),)."""
    ticks = [
        season // TICK_S * cycle
        for season, cycles in zip(SEASONS_S, CYCLES, strict=True)
        for cycle in range(1, cycles + 1)
    ]
    return np.array(ticks)


def assemble(known: Known) -> NDArray[np.float32]:
    """Features of n ticks, shape (n, len(NAMES)); NaN in every column until 60 s of history.

    Loads enter as logarithms of their ratio to the baseline, so that a model sees a quiet night and a busy
    noon alike.
    """
    # Columns that are computed alike stand side by side: a tick alone is told in few calls.
    baseline, median = known.level
    sums = known.sums.astype(np.float64)
    means = sums / np.minimum(np.maximum(known.t_s, 1), _WINDOWS[:, None])

    loads = np.concatenate([known.lags / LAG_S, means[_at("work", *_LOAD_WINDOWS)]]) / baseline + 0.02
    hour_rate = means[_at("requests", 3600)] + 0.01
    rates = means[_at("requests", *_RATE_WINDOWS)] / hour_rate + 0.02
    hour_density = (sums[_at("prompt", 3600)] + 1.0) / (sums[_at("requests", 3600)] + 1.0)
    density = (sums[_at("prompt", 10, 60, 600)] + hour_density) / (sums[_at("requests", 10, 60, 600)] + 1.0)
    levels = [hour_rate, baseline[None], (median / baseline)[None]]
    blocks = [np.log(np.concatenate([loads, rates, *levels, density / hour_density]))]
    blocks.append(np.log1p(sums[_at("long_prompts", 30, 60, 120)]))
    lanes = sums[_LANES, _at("work", 30, 600)[1]] + 1.0
    blocks.append((lanes / (sums[_at("work", 30, 600)] + len(LANES))).reshape(-1, len(baseline)))
    rate = means[_at("requests", 60, 300)]
    blocks.append(np.log((means[_at("squares", 60, 300)] - rate * rate + 0.1) / (rate + 0.1) + 0.02))
    blocks.append(np.log1p(sums[_at("refusals", 20, 60)]))
    blocks.append(_tenant_columns(known.tenants))
    # A value beside a flag: what is unknown has no value to learn from, and 0 is one.
    told = ~np.isnan(known.engines)
    engines = np.where(told, np.minimum(known.engines, _LARGEST), 0.0)
    blocks += [np.log1p(np.concatenate([known.waiting, engines])), told]
    blocks += _due_columns(known.due, baseline, usual_of(known.level, known.sums, known.t_s))
    blocks.append(np.log(known.line / baseline)[None])
    blocks += _crossing_columns(known.crossings)
    blocks.append(_season_columns(known.seasons))
    phase = 2.0 * np.pi * np.mod(known.unix_s, _PERIODS_S) / _PERIODS_S * _WAVES
    blocks.append(np.stack([np.sin(phase), np.cos(phase)], axis=1).reshape(-1, len(baseline)))
    features = np.concatenate(blocks).T.astype(np.float32, order="C")
    features[known.t_s < MIN_HISTORY_S + BASELINE_LAG_S] = np.nan
    return features


@cache
def _at(channel: str, *windows_s: int) -> tuple[int, NDArray[np.int64]]:
    """Where the sums of a channel over some windows stand."""
    return CHANNELS.index(channel), np.array([WINDOWS_S.index(window_s) for window_s in windows_s])


def _tenant_columns(told: NDArray[np.int64]) -> NDArray[np.float64]:
    """Shares of the heaviest tenants, the Herfindahl index of all, and how many are new."""
    work, heaviest, few, squares, new = told.astype(np.float64)
    some = np.maximum(work, 1.0)
    return np.stack([heaviest / some, few / some, squares / np.square(some), np.log1p(new)])


def over_line(features: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Whether the load of the last 10 s, as far as it is known, is a burst's already, (n,); no where NaN."""
    return np.asarray(features[:, _LOAD] > features[:, _LINE])


def _due_columns(
    due: NDArray[np.float64], baseline: NDArray[np.float64], usual: NDArray[np.float64]
) -> list[NDArray[np.float64]]:
    """Load due by schedule and by what usually follows, and how far both push the load past the burst's line.

    The excess counts standard deviations from the line, twice the baseline; ``usual`` is the load without
    anything due.
    """
    scheduled, scheduled_variance, following, following_variance = due
    deviation = np.sqrt(scheduled_variance + following_variance + np.square(USUAL_SPREAD * baseline))
    excess = (usual + scheduled + following - RATIO * baseline) / deviation
    soon = np.log1p(4.0 * due[::2, _EVERY_OTHER] / baseline)
    return [*soon, np.tanh(excess / 2.0)]


def _crossing_columns(crossings: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Chances as square roots, which spread the small ones; then the highest load over the line."""
    chances = crossings[: 2 * SLOTS].reshape(2, SLOTS, -1)
    both = np.concatenate([chances, chances.sum(axis=1, keepdims=True)], axis=1)
    return [*np.sqrt(both), crossings[2 * SLOTS :]]


def _season_columns(seasons: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean log peak and share of bursts by season and half of the coming minute; 0 when none is known."""
    seen = ~np.isnan(seasons)
    logs = np.where(seen, np.log(np.where(seen, seasons, 1.0) + 0.1), 0.0)
    told = np.stack([logs, seasons > RATIO, seen], axis=1)
    logs, bursts, known = np.add.reduceat(told, _SEASON_STARTS).swapaxes(0, 1)
    both = np.stack([logs, bursts], axis=1) / np.maximum(known, 1.0)[:, None]
    return np.asarray(both.reshape(-1, both.shape[-1]))
