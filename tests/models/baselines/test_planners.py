import numpy as np
import pytest

from features.bursts import baseline
from models.baselines.known import KnownLoad
from models.baselines.planners import LEVEL_NOISE, PLANNERS, TREND_NOISE, autoregressive, constant, kalman


def steady(seconds: int = 7_200, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).poisson(20, seconds) * 100


def at(work: np.ndarray, name: str, *t_s: int) -> np.ndarray:
    return PLANNERS[name][1](KnownLoad(0, work.astype(np.int64)), np.array(t_s))


def ratio(work: np.ndarray, t: int) -> float:
    """Load of the 10 s before t over the baseline known then, in plain words; 1 where none is known."""
    base = baseline(work.astype(np.int64))[t - 1] if t else np.nan
    return 1.0 if np.isnan(base) else float(work[t - 10 : t].mean() / (base + 1.0))


@pytest.mark.parametrize("name", PLANNERS)
def test_a_burst_is_surer_while_load_climbs_than_in_calm(name: str) -> None:
    work = steady()
    for start in range(700, 7_001, 900):
        work[start : start + 120] += np.linspace(0, 6_000, 120).astype(np.int64)
    calm, climbing = at(work, name, 6_995, 7_060)
    assert climbing > calm
    assert calm < 0.0  # a forecast under the line


def test_constant_is_the_distance_to_the_line_in_spreads_of_past_changes() -> None:
    work = steady(4_500)
    t = 4_400
    changes = {
        step: [ratio(work, at) - ratio(work, at - 10 * step) for at in range(t - 3_595, t + 1, 5)]
        for step in (3, 4, 5, 6)
    }
    plain = max(
        (ratio(work, t) - 2.0) / (np.sqrt(np.mean(np.square(one))) + 1e-3) for one in changes.values()
    )
    assert at(work, "constant", t)[0] == pytest.approx(plain, rel=1e-6)


def test_arima_finds_the_law_that_made_the_load() -> None:
    """Loads swing every four minutes: only a model of their past tells a trough from a crest to come."""
    seconds = np.arange(21_600)
    swing = 10_000 * (1.2 + np.sin(2 * np.pi * seconds / 240)) + np.random.default_rng(1).normal(
        0, 300, 21_600
    )
    known = KnownLoad(0, swing.astype(np.int64))
    t_s = np.arange(14_400, 21_000, 5)
    score = autoregressive(known, t_s)
    total = np.concatenate([[0], np.cumsum(known.work)])
    coming = np.max(
        [(total[t_s + ahead] - total[t_s + ahead - 10]) / 10 for ahead in (30, 40, 50, 60)], axis=0
    )
    assert np.corrcoef(score, coming)[0, 1] > 0.8
    assert np.corrcoef(constant(known, t_s), coming)[0, 1] < 0.5


def test_kalman_equals_the_filter_that_carries_its_covariance() -> None:
    work = steady(6_000, seed=3)
    work[5_000:5_200] += 1_500
    t_s = np.arange(10, 5_991, 10)
    move, drift = np.array([[1.0, 1.0], [0.0, 1.0]]), np.diag([LEVEL_NOISE, TREND_NOISE])
    seen = np.array([[1.0, 0.0]])
    ratios = [ratio(work, t) for t in (0, *t_s)]
    state, spread, noise, plain = np.array([ratios[0], 0.0]), np.eye(2) * 10.0, 0.0, []
    fade = 0.5 ** (10 / 3600)
    for came in ratios:
        state, spread = move @ state, move @ spread @ move.T + drift
        surprise, width = came - state[0], float((seen @ spread @ seen.T)[0, 0] + 1.0)
        noise = fade * noise + (1 - fade) * surprise**2 / width
        gain = (spread @ seen.T)[:, 0] / width
        state, spread = state + gain * surprise, spread - np.outer(gain, seen @ spread)
        best, ahead, wide = -np.inf, state, spread
        for step in range(1, 7):
            ahead, wide = move @ ahead, move @ wide @ move.T + drift
            if step >= 3:
                best = max(best, (ahead[0] - 2.0) / (np.sqrt(noise * (wide[0, 0] + 1.0)) + 1e-3))
        plain.append(best)
    found = kalman(KnownLoad(0, work.astype(np.int64)), t_s)
    # The fixed gain is the one that the covariance settles to; the start has faded after an hour.
    np.testing.assert_allclose(found[480:], plain[481:], rtol=0.02, atol=0.02)
