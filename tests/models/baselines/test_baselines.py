import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.baselines import (
    PLANNERS,
    SIMPLE,
    KnownLoad,
    Score,
    boost,
    lag_features,
    panic_ratio,
    seasonal_naive,
)

SECONDS = 6_000
UNTRAINED = SIMPLE | PLANNERS
CONTENDERS = [*UNTRAINED, "lightgbm"]


def known(seed: int, seconds: int = SECONDS, level: int = 2_000) -> KnownLoad:
    random = np.random.default_rng(seed)
    work = random.poisson(level / 500, seconds) * 500
    for start in range(500, seconds, 600):
        work[start : start + 20] += 5 * level
    return KnownLoad(1_700_000_000_000_000, work.astype(np.int64))


def ticks(seconds: int = SECONDS) -> np.ndarray:
    return np.arange(0, seconds, 5)


def train_lightgbm(load: KnownLoad, t_s: np.ndarray, soon: np.ndarray, seed: int) -> Score:
    """Trees on the lags of one load, which score the ticks of any."""
    predict = boost(lag_features(load, t_s), soon, seed)
    return lambda load, t_s: predict(lag_features(load, t_s))


@pytest.fixture(scope="session")
def boosted() -> Score:
    """LightGBM told of the bursts that come every ten minutes."""
    t_s = ticks()
    soon = (500 - t_s) % 600 <= 60
    return train_lightgbm(known(0), t_s, soon, seed=1)


@pytest.fixture(params=CONTENDERS)
def score(request: pytest.FixtureRequest, boosted: Score) -> Score:
    return boosted if request.param == "lightgbm" else UNTRAINED[request.param][1]


@pytest.mark.parametrize("seconds", [1, 9, 70, SECONDS])
def test_every_tick_has_a_finite_score(score: Score, seconds: int):
    load = known(1, seconds)
    for work in (load.work, np.zeros(seconds, np.int64)):
        scores = score(KnownLoad(load.origin_us, work), ticks(seconds))
        assert scores.shape == ticks(seconds).shape
        assert scores.dtype == np.float64
        assert np.isfinite(scores).all()


@pytest.mark.parametrize("cut", [5, 65, 1_000, 3_700, 5_995])
def test_no_score_knows_the_future(score: Score, cut: int):
    load = known(2)
    changed = load.work.copy()
    changed[cut:] = np.random.default_rng(0).integers(0, 200_000, SECONDS - cut)
    before, after = score(load, ticks()), score(KnownLoad(load.origin_us, changed), ticks())
    np.testing.assert_allclose(after[: cut // 5 + 1], before[: cut // 5 + 1], rtol=1e-9)


def test_scores_look_at_the_past_at_all(score: Score):
    scores = score(known(2), ticks())
    assert np.std(scores[200:]) > 0.0


def test_every_contender_has_a_title():
    assert len({title for title, _ in UNTRAINED.values()}) == len(UNTRAINED)


@given(st.lists(st.integers(0, 20_000), min_size=1, max_size=400))
@settings(max_examples=50, deadline=None)
def test_panic_ratio_equals_the_plain_loop(work: list[int]):
    plain = []
    for t in range(0, len(work), 5):
        short, long = work[max(0, t - 60) : t], work[max(0, t - 180) : t]
        plain.append((sum(short) / max(len(short), 1) + 1) / (sum(long) / max(len(long), 1) + 1))
    found = panic_ratio(KnownLoad(0, np.array(work, dtype=np.int64)), ticks(len(work)))
    np.testing.assert_allclose(found, plain, rtol=1e-12)


def test_panic_ratio_is_two_over_the_line_that_autoscalers_draw():
    work = np.full(1_000, 1_000)
    work[540:600] = 4_000  # 4,000 over the 60 s, 2,000 over the 180 s
    assert panic_ratio(KnownLoad(0, work), np.array([540, 600])) == pytest.approx([1.0, 2.0], abs=0.01)


def test_seasonal_naive_sees_the_burst_of_an_hour_ago():
    work = np.full(6_000, 1_000)
    work[1_000:1_020] = 20_000
    scores = seasonal_naive(KnownLoad(0, work), ticks())
    seen = ticks()[(scores > 5.0) & (ticks() > 1_100)]
    # Its load, over 10 s, reaches five times the baseline in seconds 1,002 to 1,026.
    assert (seen.min(), seen.max()) == (3_600 + 1_005 - 60, 3_600 + 1_025)
    assert scores[(ticks() > 1_100) & (ticks() < 3_600)].max() == pytest.approx(1.0, abs=0.1)


def test_lag_features_are_a_hundred_finite_numbers():
    features = lag_features(known(3), ticks())
    assert features.shape == (len(ticks()), 100)
    assert np.isfinite(features).all()


def test_boosted_trees_learn_what_comes_every_ten_minutes(boosted: Score):
    t_s = ticks()[ticks() > 1_000]
    scores = boosted(known(7), t_s)
    soon = (500 - t_s) % 600 <= 60
    assert scores[soon].mean() > scores[~soon].mean() + 3.0 * scores[~soon].std() / 2.0


def test_boosted_trees_repeat_themselves():
    t_s = ticks(1_500)
    soon = (500 - t_s) % 600 <= 60
    first, again = (train_lightgbm(known(0, 1_500), t_s, soon, seed=4) for _ in range(2))
    np.testing.assert_array_equal(first(known(5), t_s), again(known(5), t_s))
