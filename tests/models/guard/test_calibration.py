import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import InputError
from models.guard.calibration import (
    MARGIN,
    MAX_LAG,
    autocorrelation,
    calibrate,
    order_statistic,
    thinning_step,
)


def ar1(phi: float, n: int, runs: int, seed: int = 0) -> np.ndarray:
    """Standard normal AR(1) scores, shape (runs, n)."""
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((n, runs))
    for i in range(1, n):
        scores[i] = phi * scores[i - 1] + math.sqrt(1 - phi * phi) * scores[i]
    return scores.T


def everywhere(scores: np.ndarray) -> np.ndarray:
    return np.ones(len(scores), dtype=bool)


@given(st.integers(0, 300), st.sampled_from([0.01, 0.05, 0.2, 0.5]), st.sampled_from([0.6, 0.9, 0.95, 0.99]))
@settings(max_examples=60, deadline=None)
def test_order_statistic_is_the_smallest_that_keeps_the_promise(n: int, rate: float, confidence: float):
    def violation(k: int) -> float:
        return sum(math.comb(n, j) * (1 - rate) ** j * rate ** (n - j) for j in range(k, n + 1))

    k = order_statistic(n, rate, confidence)
    if k is None:
        assert n == 0 or violation(n) > 1 - confidence
    else:
        assert violation(k) <= 1 - confidence + 1e-9
        assert k == 1 or violation(k - 1) > 1 - confidence - 1e-9


def test_order_statistic_stays_exact_on_many_negatives():
    # Normal approximation of Binomial(100000, 0.05) at 5 %: 5000 - 1.645 * 68.9 = 4886.6 exceedances.
    k = order_statistic(100_000, 0.05, 0.95)
    assert k is not None
    assert abs((100_000 - k) - 4886) <= 2


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=60), st.integers(1, 70))
@settings(max_examples=60, deadline=None)
def test_autocorrelation_equals_the_plain_sum(values: list[int], max_lag: int):
    x = np.array(values, dtype=np.float64)
    c = x - x.mean()
    if np.ptp(x) == 0:
        expected = np.zeros(max_lag + 1)
    else:
        plain = [
            float(np.sum(c[lag:] * c[: len(c) - lag])) if lag < len(c) else 0.0 for lag in range(max_lag + 1)
        ]
        expected = np.array(plain) / plain[0]
    np.testing.assert_allclose(autocorrelation(x, max_lag), expected, atol=1e-9)


@pytest.mark.parametrize(("phi", "low", "high"), [(0.0, 1, 1), (0.8, 4, 7), (0.95, 14, 28)])
def test_step_grows_with_the_dependence(phi: float, low: int, high: int):
    steps = [thinning_step(scores, 0.05) for scores in ar1(phi, 17_280, 10)]
    assert low <= min(steps) <= max(steps) <= high


@pytest.mark.parametrize("phi", [0.8, 0.95])
def test_step_is_how_many_times_more_the_number_of_exceedances_varies(phi: float):
    runs = ar1(phi, 4_000, 800)
    exceedances = (runs > NormalDist().inv_cdf(0.95)).sum(axis=1)
    times = exceedances.var() / (4_000 * 0.05 * 0.95)
    # With 800 runs the variance is known to 5 %; the step is rounded up and has its margin.
    steps = [thinning_step(scores, 0.05) for scores in runs[:100]]
    assert times < np.mean(steps) < 1.1 * MARGIN * times + 1.0


@given(st.integers(0, 1_000), st.sampled_from([np.exp, np.arctan, lambda x: x**3]))
@settings(max_examples=20, deadline=None)
def test_step_is_unchanged_by_a_rising_transform(seed: int, transform: Callable):
    scores = ar1(0.9, 500, 1, seed)[0]
    assert thinning_step(transform(scores), 0.05) == thinning_step(scores, 0.05)


def test_rare_plateaus_of_high_scores_count_as_dependent():
    rng = np.random.default_rng(3)
    scores = rng.random(20_000)
    for start in rng.choice(np.arange(0, 20_000, 400), 50, replace=False):
        scores[start : start + 20] += 1.0  # 5 % of the ticks, 20 at a time
    assert 18 <= thinning_step(scores, 0.05) <= 30


def test_step_is_bounded_under_slow_drift():
    drift = np.sin(np.arange(200_000) / 30_000)
    assert 0.5 * MAX_LAG < thinning_step(drift, 0.05) <= 1 + 2 * MARGIN * MAX_LAG


@pytest.mark.parametrize("phi", [0.0, 0.8, 0.95])
def test_violations_stay_within_the_promise_however_dependent_the_scores(phi: float):
    runs = 300
    thresholds = [calibrate(scores, everywhere(scores)).threshold for scores in ar1(phi, 8_000, runs)]
    rates = np.array([1 - NormalDist().cdf(t) for t in thresholds if t is not None])
    assert len(rates) > 0.95 * runs
    assert np.mean(rates > 0.05) <= 0.075  # 5 % promised, and two standard errors
    assert rates.mean() > 0.015  # and not by never alarming


def test_without_thinning_the_promise_breaks():
    thresholds = [np.sort(scores)[order_statistic(8_000, 0.05, 0.95) - 1] for scores in ar1(0.95, 8_000, 150)]
    assert np.mean([1 - NormalDist().cdf(t) > 0.05 for t in thresholds]) > 0.2


def test_threshold_of_independent_scores_is_the_order_statistic():
    scores = np.random.default_rng(0).permutation(1_000) / 1_000
    result = calibrate(scores, everywhere(scores))
    assert result.step == 1
    assert result.threshold == (order_statistic(1_000, 0.05, 0.95) - 1) / 1_000 == 0.961


def test_only_negative_ticks_count():
    scores = np.random.default_rng(0).random(2_000)
    negative = np.arange(2_000) % 2 == 0
    garbage = np.where(negative, scores, np.nan)
    assert calibrate(garbage, negative) == calibrate(scores, negative)
    assert calibrate(scores, negative) == calibrate(scores[negative], everywhere(scores[negative]))


@pytest.mark.parametrize(("n", "enough"), [(0, False), (1, False), (58, False), (59, True)])
def test_fifty_nine_effective_negatives_are_needed(n: int, enough: bool):
    result = calibrate(np.ones(n), np.ones(n, dtype=bool))
    assert (result.threshold is not None) == enough == (result.reason is None)
    assert (result.effective_negatives, result.step) == (n, 1)
    if result.reason:
        assert f"has {n} effective negatives" in result.reason
        assert "needs 59" in result.reason


def test_a_long_span_of_dependent_scores_may_still_be_too_short():
    scores = ar1(0.95, 1_200, 1)[0]
    result = calibrate(scores, everywhere(scores))
    assert result.threshold is None
    assert result.effective_negatives == 1_200 // result.step < 59
    assert f"1200 negative ticks, one in {result.step} counted" in str(result.reason)


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=59, max_size=300))
@settings(max_examples=50, deadline=None)
def test_ties_never_add_alarms(values: list[float]):
    scores = np.array(values)
    result = calibrate(scores, everywhere(scores))
    if result.step == 1 and result.threshold is not None:
        assert np.mean(scores > result.threshold) <= 0.05


def test_constant_scores_never_alarm():
    scores = np.full(500, 0.3)
    assert calibrate(scores, everywhere(scores)).threshold == 0.3


def test_a_rising_transform_moves_the_threshold_with_the_scores():
    scores = ar1(0.8, 5_000, 1)[0]
    plain, cubed = calibrate(scores, everywhere(scores)), calibrate(scores**3, everywhere(scores))
    assert (plain.step, plain.effective_negatives) == (cubed.step, cubed.effective_negatives)
    if plain.step % 2:  # an even step takes the mean of two middle values
        assert cubed.threshold == pytest.approx(plain.threshold**3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scores": np.array([0.1, np.nan])}, "must be finite; 1 of 2 are not"),
        ({"scores": np.zeros(3)}, r"got shapes \(3,\) and \(2,\)"),
        ({"scores": np.zeros((2, 1)), "negative": np.ones((2, 1), dtype=bool)}, "one score"),
        ({"rate": 0.0}, "rate must be between 0 and 1; got 0.0"),
        ({"confidence": 1.0}, "confidence must be between 0 and 1; got 1.0"),
    ],
)
def test_bad_input_is_refused(arguments: dict, message: str):
    good = {"scores": np.zeros(2), "negative": np.ones(2, dtype=bool)}
    with pytest.raises(InputError, match=message):
        calibrate(**(good | arguments))
