import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.followups import (
    AGE_S,
    LIGHT,
    MEMORY,
    MIN_SEEN,
    NOTHING,
    FollowUps,
    expected,
    outcomes,
    remembered,
)
from features.periods import POINTS_S

PLAN, OTHER, TENANT = 0, 1, 7


def told(followups: FollowUps, t_s: int, floor: float = 0.0) -> np.ndarray:
    """Mean and variance of what may follow around a tick, (2, POINTS)."""
    return expected(followups.around(t_s, np.array([floor])), 1)[:, :, 0]


def play(
    runs: int, delay_s: float = 40, load: float = 500.0, period_s: int = 400, seed: int = 0
) -> FollowUps:
    """Planning runs, each followed by ten seconds of load; the next would start at the end."""
    random = np.random.default_rng(seed)
    followups = FollowUps()
    for start_s in range(0, runs * period_s, period_s):
        followups.observe(TENANT, start_s, 20_000)  # the run itself, far heavier than what follows
        followups.run_started(PLAN, TENANT, start_s)
        after_s = int(delay_s + random.uniform(-10, 10)) if seed else int(delay_s)
        for second in range(start_s + after_s, start_s + after_s + 10):
            followups.observe(TENANT, second, int(load))
        told(followups, start_s + AGE_S, 0.0)
    return followups


def start(followups: FollowUps, start_s: int) -> None:
    followups.observe(TENANT, start_s, 20_000)
    followups.run_started(PLAN, TENANT, start_s)


def test_what_followed_a_planning_run_is_expected_after_the_next():
    followups = play(8)
    start(followups, 3_200)
    for age_s in (5, 15, 25):
        mean, variance = told(followups, 3_200 + age_s, 0.0)
        ahead_s = 40 - age_s
        assert mean @ POINTS_S / mean.sum() == pytest.approx(ahead_s + 5, abs=1.5)
        assert 300 < mean.max() <= 500
        assert (variance >= 0.0).all()


def test_a_follow_up_between_thirty_and_fifty_seconds_is_spread_over_them():
    followups = play(24, seed=1)
    start(followups, 9_600)
    mean, variance = told(followups, 9_605, 0.0)
    around = (POINTS_S >= 25) & (POINTS_S <= 55)
    assert mean[around].sum() > 0.9 * mean.sum()
    assert mean.sum() * 5.0 / 10.0 == pytest.approx(500.0, rel=0.1)
    assert variance.max() > 100.0**2  # at any single moment it may be there or not


def test_nothing_more_is_expected_once_it_is_past():
    followups = play(8)
    start(followups, 3_200)
    assert told(followups, 3_200 + 70, 0.0)[0, POINTS_S >= 0.0].max() < 5.0  # 1 % of what had been expected
    assert not told(followups, 3_200 + AGE_S, 0.0).any()


def test_a_run_must_have_been_seen_often_enough():
    for runs in range(MIN_SEEN + 1):
        followups = play(runs)
        start(followups, 400 * runs)
        assert told(followups, 400 * runs + 10, 0.0).any() == (runs >= MIN_SEEN)


def test_the_run_itself_does_not_follow_it():
    followups = play(8, load=0.0)
    start(followups, 3_200)
    assert not told(followups, 3_210, 0.0).any()


def test_light_followers_are_passed_over():
    followups = play(8)
    start(followups, 3_200)
    assert told(followups, 3_210, floor=500.0).any()
    assert not told(followups, 3_210, floor=500.1).any()


def test_a_run_of_another_flow_or_tenant_says_nothing():
    followups = play(8)
    followups.observe(TENANT, 3_200, 100)
    followups.run_started(OTHER, TENANT, 3_200)
    assert not told(followups, 3_210, 0.0).any()
    followups.observe(8, 3_220, 100)
    followups.run_started(2, 8, 3_220)
    assert not told(followups, 3_230, 0.0).any()


def test_runs_that_nothing_followed_lower_what_is_expected():
    always, often = play(8), play(8)
    for start_s in range(3_200, 6_400, 400):
        start(often, start_s)
        told(often, start_s + AGE_S, 0.0)
    start(always, 3_200)
    start(often, 6_400)
    half = told(often, 6_410, 0.0)[0].sum() / told(always, 3_210, 0.0)[0].sum()
    assert half == pytest.approx(0.5, abs=0.02)


@given(st.lists(st.lists(st.integers(0, 10**6), min_size=90, max_size=90), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_an_outcome_is_the_first_highest_ten_seconds(work: list[list[int]]):
    for seconds, outcome in zip(work, outcomes(np.array(work)).tolist(), strict=True):
        whole = [0] * 10 + seconds
        loads = [sum(whole[at : at + 10]) for at in range(91)]
        assert divmod(outcome, 1 << 40) == (loads.index(max(loads)), max(loads))


def test_light_outcomes_are_no_follow_ups():
    peaks, loads = [40, 20, 30, 50], [1_000, 900, LIGHT * 1_000, LIGHT * 1_000 - 10]
    outcome = [(at << 40) + int(load) for at, load in zip(peaks, loads, strict=True)]
    found = remembered(np.array([outcome + [NOTHING] * (MEMORY - 4)]))
    assert (found.seen.tolist(), found.light.tolist(), found.highest.tolist()) == ([4], [1], [100.0])
    assert found.peak_s[0, -3:].tolist() == [20, 30, 40]
    assert found.load[0, -3:].tolist() == [90.0, 30.0, 100.0]
    assert not found.load[0, :-3].any()


def test_runs_that_nothing_ever_followed_are_no_news():
    assert remembered(np.full((1, MEMORY), NOTHING)).seen.tolist() == [0]
    silent = remembered(np.zeros((1, MEMORY), dtype=np.int64))
    assert (silent.seen.tolist(), silent.light.tolist()) == ([MEMORY], [MEMORY])


def test_more_work_than_fits_does_not_move_the_peak():
    work = np.zeros((1, AGE_S - 10), dtype=np.int64)
    work[0, 30] = 1 << 45
    assert divmod(int(outcomes(work)[0]), 1 << 40) == (31, (1 << 40) - 1)
