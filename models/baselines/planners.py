"""Load predictors as serving planners use them: forecast the load, and ask how surely it crosses the line.

A planner forecasts load to size a fleet. Here each one forecasts the load of 10 s, as a multiple of its
baseline, 30 to 60 s ahead, with the variance of that forecast. The score is the largest number of standard
deviations by which a forecast lies over the burst line of twice the baseline: in the order of the probability
of crossing it, and without the ties that probabilities near 0 have.
"""

import numpy as np
from numpy.typing import NDArray

from features.bursts import LOAD_WINDOW_S, baseline
from features.ticks import HORIZON_S, TICK_S
from models.baselines.known import KnownLoad, Score, before, mean

BURST = 2.0
"""A burst is a load of more than this many baselines."""
STEPS = np.arange(HORIZON_S[0], HORIZON_S[1] + 1, LOAD_WINDOW_S) // LOAD_WINDOW_S
"""Steps ahead that are forecast, each of 10 s."""
PHASES = LOAD_WINDOW_S // TICK_S
"""Ticks within a step: every series of 10 s loads has so many neighbours that start a tick later."""
SMALLEST_SD = 1e-3
MEMORY_S = 3600
"""The spread of forecast errors is that of the trailing hour."""
ORDER = 6
FIT_S = 6 * 3600
REFIT_S = 600
RIDGE = 1e-6
"""So that loads that never change can be fitted."""
LEVEL_NOISE, TREND_NOISE = 0.1, 0.01
"""Variance by which level and trend drift in a step, as a share of the noise of one load."""


def constant(known: KnownLoad, t_s: NDArray[np.int64]) -> NDArray[np.float64]:
    """The load stays as it is, as surely as it did over such a time in the past hour."""
    ratio = _ratios(known)
    scores = []
    for step in STEPS.tolist():
        change = ratio - _back(ratio, step)
        total = np.concatenate([[0.0], np.cumsum(change**2)])
        end = np.arange(1, len(total))
        start = np.maximum(end - MEMORY_S // TICK_S, 0)
        scores.append(_over(ratio, (total[end] - total[start]) / (end - start)))
    return _at(np.max(scores, axis=0), t_s)


def autoregressive(known: KnownLoad, t_s: NDArray[np.int64]) -> NDArray[np.float64]:
    """ARIMA(6, 0, 0) by least squares on the 10 s loads of six hours, fitted anew every ten minutes.

    Until ten minutes are known the load is taken to stay as it is.
    """
    ratio = _ratios(known)
    lags = np.stack([np.ones(len(ratio)), *(_back(ratio, lag) for lag in range(ORDER))], axis=1)
    scores = np.empty(len(ratio))
    for first in range(0, len(ratio), REFIT_S // TICK_S):
        # A load is compared with the lags of a step before it; every second tick repeats no second.
        seen = np.arange(first, max(first - FIT_S // TICK_S, PHASES * ORDER), -PHASES)
        weights, variance = np.eye(ORDER + 1)[1], 0.0
        if first and len(seen) > 2 * ORDER:
            past, came = lags[seen - PHASES], ratio[seen]
            weights = np.linalg.solve(past.T @ past + RIDGE * np.eye(ORDER + 1), past.T @ came)
            variance = float(np.mean((came - past @ weights) ** 2))
        block = slice(first, first + REFIT_S // TICK_S)
        scores[block] = _autoregress(lags[block], weights, variance)
    return _at(scores, t_s)


def kalman(known: KnownLoad, t_s: NDArray[np.int64]) -> NDArray[np.float64]:
    """Local level and trend, filtered from the 10 s loads with fixed ratios of noise."""
    ratio = _ratios(known)
    move = np.array([[1.0, 1.0], [0.0, 1.0]])
    drift = np.diag([LEVEL_NOISE, TREND_NOISE])
    seen = np.array([1.0, 0.0])
    spread = np.eye(2)
    for _ in range(500):  # to the steady state, which is all that fixed noises have
        ahead = move @ spread @ move.T + drift
        gain = ahead @ seen / (ahead[0, 0] + 1.0)
        spread = ahead - np.outer(gain, ahead[0])
    fade = 0.5 ** (LOAD_WINDOW_S / MEMORY_S)
    series = np.append(ratio, np.repeat(ratio[-1:], -len(ratio) % PHASES)).reshape(-1, PHASES)
    state, noise = np.array([series[0], np.zeros(PHASES)]), np.zeros(PHASES)
    states, noises = np.empty((len(series), 2, PHASES)), np.empty(series.shape)
    for step, came in enumerate(series):
        state = move @ state
        surprise = came - state[0]
        noise = fade * noise + (1.0 - fade) * surprise**2 / (ahead[0, 0] + 1.0)
        state = state + gain[:, None] * surprise
        states[step], noises[step] = state, noise
    scores = np.full(series.shape, -np.inf)
    for step in range(1, STEPS[-1] + 1):
        spread = move @ spread @ move.T + drift
        if step in STEPS:
            forecast = states[:, 0] + step * states[:, 1]
            scores = np.maximum(scores, _over(forecast, noises * (spread[0, 0] + 1.0)))
    return _at(scores.reshape(-1), t_s)


PLANNERS: dict[str, tuple[str, Score]] = {
    "constant": ("Constant load predictor", constant),
    "arima": ("ARIMA load predictor", autoregressive),
    "kalman": ("Kalman load predictor", kalman),
}
"""Load predictors, by name: (title, score)."""


def _ratios(known: KnownLoad) -> NDArray[np.float64]:
    """Load of the 10 s before every tick of the trace over the baseline known then; before, 1; (ticks,)."""
    every = np.arange(0, len(known.work) + TICK_S, TICK_S)
    base = before(baseline(known.work), np.minimum(every, len(known.work)))
    # A made-up baseline of the first minute would be a surprise that outweighs hours of loads.
    return np.where(np.isnan(base), 1.0, mean(known.work, every, LOAD_WINDOW_S) / (base + 1.0))


def _back(ratio: NDArray[np.float64], steps: int) -> NDArray[np.float64]:
    """The ratio that many steps earlier; before the first one, the first."""
    return np.concatenate([np.repeat(ratio[:1], PHASES * steps), ratio])[: len(ratio)]


def _over(forecast: NDArray[np.float64], variance: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """How many standard deviations a forecast lies over the burst line."""
    return np.asarray((forecast - BURST) / (np.sqrt(variance) + SMALLEST_SD))


def _autoregress(
    lags: NDArray[np.float64], weights: NDArray[np.float64], variance: float
) -> NDArray[np.float64]:
    """Highest score over the steps ahead of ticks whose lags are given, (n, 1 + ORDER) with a leading one."""
    companion = np.eye(ORDER + 1, k=-1)
    companion[0, 0], companion[1] = 1.0, weights
    power, response, scores = np.eye(ORDER + 1), 0.0, []
    for step in range(1, STEPS[-1] + 1):
        response += power[1, 1] ** 2
        power = companion @ power
        if step in STEPS:
            scores.append(_over(lags @ power[1], variance * response))
    return np.asarray(np.max(scores, axis=0))


def _at(scores: NDArray[np.float64], t_s: NDArray[np.int64]) -> NDArray[np.float64]:
    return scores[t_s // TICK_S]
