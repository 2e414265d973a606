import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.periods import (
    FORGET_MISSES,
    HISTORY_RUNS,
    MIN_RUNS,
    POINTS_S,
    Schedules,
    covers,
    due,
    expected,
    fit,
    fit_one,
)
from features.runs import Run

LOAD = 500.0


def learn(schedules: Schedules, sender: str, starts_s: list[int], load: float = LOAD) -> None:
    previous = None
    for start_s in starts_s:
        schedules.run_started(sender, start_s, previous)
        previous = Run(start_s, load)


def told(schedules: Schedules, t_s: int) -> np.ndarray:
    """Mean and variance of what is due around a tick, (2, POINTS)."""
    return expected(schedules.around(t_s), 1)[:, :, 0]


def jittered(seed: int, period_s: int, runs: int, skipped: float) -> tuple[list[int], int]:
    """Starts of the runs that came, with 2 s of jitter, and how many periods lie before the last."""
    random = np.random.default_rng(seed)
    came = np.flatnonzero(random.random(runs) >= skipped)
    return np.round(came * period_s + random.normal(0, 2, len(came))).astype(int).tolist(), int(came[-1])


@pytest.mark.parametrize("period_s", [300, 900, 3_600])
@pytest.mark.parametrize("seed", range(6))
def test_a_jittered_schedule_with_skipped_runs_is_found(seed: int, period_s: int):
    starts_s, last = jittered(seed, period_s, 20, 0.2)
    schedules = Schedules()
    learn(schedules, "job", starts_s)
    assert schedules.periodic("job")
    presence = []
    for periods in (1, 2, 3):
        mean, variance = told(schedules, (last + periods) * period_s - 30)
        # The opening load covers the 10 s from 30 s ahead on: its middle lies at 35 s.
        assert mean @ POINTS_S / mean.sum() == pytest.approx(35.0, abs=3.5)
        assert (variance >= 0.0).all()
        presence.append(mean.sum() * 5.0 / 10.0 / LOAD)
    assert 0.6 < presence[0] <= 1.0  # a fifth of the runs is skipped
    # After each run that did not come, the schedule is believed less.
    assert presence[1:] == pytest.approx([presence[0] / 2, presence[0] / 3], rel=0.01)


def test_nothing_is_due_between_runs():
    schedules = Schedules()
    learn(schedules, "job", list(range(0, 3_000, 300)))
    assert told(schedules, 2_700 + 150).max() == 0.0
    assert told(schedules, 2_700 + 260)[0].max() > 0.8 * LOAD


def test_random_runs_are_not_believed():
    believed = []
    for seed in range(20):
        random = np.random.default_rng(seed)
        schedules, start_s = Schedules(), 0
        for _ in range(60):
            start_s += int(61 + random.exponential(300))
            schedules.run_started("someone", start_s, Run(0, LOAD))
            believed.append(schedules.periodic("someone"))
    assert np.mean(believed) < 0.02


def test_a_schedule_takes_four_runs_to_be_believed():
    schedules = Schedules()
    for run in range(MIN_RUNS):
        assert not schedules.periodic("job")
        schedules.run_started("job", 600 * run, Run(600 * (run - 1), LOAD) if run else None)
    assert schedules.periodic("job")


def test_a_schedule_that_stopped_is_forgotten():
    schedules = Schedules()
    learn(schedules, "job", list(range(0, 6_000, 600)))
    due_s = [5_400 + 600 * missed for missed in range(1, FORGET_MISSES + 3)]
    seen = [bool(told(schedules, at - 30).any()) for at in due_s]
    assert seen == [True] * FORGET_MISSES + [False] * 2


def test_forget_lasts_until_the_next_run():
    schedules = Schedules()
    learn(schedules, "job", list(range(0, 3_000, 300)))
    schedules.forget("job")
    schedules.forget("never seen")
    assert not schedules.periodic("job")
    assert not told(schedules, 2_700 + 270).any()
    schedules.run_started("job", 3_000, Run(2_700, LOAD))
    assert schedules.periodic("job")


def test_senders_add_up_however_many_there_are():
    schedules, alone = Schedules(), Schedules()
    learn(alone, "0", list(range(0, 3_000, 300)))
    for sender in range(150):  # past two enlargements of the arrays
        learn(schedules, str(sender), list(range(0, 3_000, 300)))
    np.testing.assert_allclose(told(schedules, 2_970), 150 * told(alone, 2_970))


def test_an_empty_set_of_schedules_expects_nothing():
    assert not told(Schedules(), 1_000).any()
    assert not Schedules().periodic("nobody")


def test_a_run_that_varies_in_load_has_more_variance():
    steady, varied = Schedules(), Schedules()
    learn(steady, "job", list(range(0, 3_000, 300)))
    for run, start_s in enumerate(range(0, 3_000, 300)):
        varied.run_started("job", start_s, Run(start_s - 300, LOAD * (0.5 if run % 2 else 1.5)))
    (mean, variance), (same_mean, more) = told(steady, 2_960), told(varied, 2_960)
    np.testing.assert_allclose(mean, same_mean)
    assert (more - variance).max() == pytest.approx(0.25 * LOAD**2, rel=0.01)  # half the load either way


def test_a_short_period_is_due_many_times_a_minute():
    schedules = Schedules()
    learn(schedules, "job", list(range(0, 700, 70)))
    found = due(schedules.around(640), np.zeros(1))
    assert found.after_s.tolist() == pytest.approx([60.0])
    learn(schedules, "quick", list(range(0, 620, 62)))
    found = due(schedules.around(610), np.zeros(1))
    assert found.after_s.tolist() == pytest.approx([90.0, 10.0, 72.0])
    assert not len(due(schedules.around(610), np.array([LOAD + 1.0])).tick)


@given(st.lists(st.lists(st.integers(61, 4_000), min_size=1, max_size=HISTORY_RUNS), min_size=1, max_size=9))
@settings(max_examples=80, deadline=None)
def test_a_fit_is_the_same_alone_and_among_others(gaps: list[list[int]]):
    starts = np.full((len(gaps), HISTORY_RUNS + 1), np.nan)
    for row, some in zip(starts, gaps, strict=True):
        row[: len(some) + 1] = 100_000 - np.cumsum([0, *some])
    together = fit(starts)
    for row, one in enumerate(starts):
        np.testing.assert_array_equal(fit(one[None])[:, 0], together[:, row])
        alone = fit_one(tuple(one[np.isfinite(one)].astype(int).tolist()))
        np.testing.assert_array_equal(alone, together[:, row])


@pytest.mark.parametrize("period_s", [90, 301, 3_600])
def test_schedules_are_fitted_the_same_one_by_one(period_s: int):
    """Starts that do keep a schedule, so that all four numbers tell."""
    random = np.random.default_rng(period_s)
    for _ in range(50):
        came = np.flatnonzero(random.random(20) > 0.2)[-HISTORY_RUNS - 1 :]
        jitter_s = random.normal(0, random.uniform(0.0, 0.1) * period_s, len(came))
        starts = np.sort(np.round(came * period_s + jitter_s))[::-1]
        padded = np.full((1, HISTORY_RUNS + 1), np.nan)
        padded[0, : len(starts)] = starts
        np.testing.assert_array_equal(fit(padded)[:, 0], fit_one(tuple(starts.astype(int).tolist())))


def test_the_line_of_a_fit_is_that_of_least_squares():
    random = np.random.default_rng(0)
    index = np.flatnonzero(random.random(22) > 0.2)[-HISTORY_RUNS - 1 :]
    starts = np.round(600 * index + random.normal(0, 3, len(index)))
    padded = np.full((1, HISTORY_RUNS + 1), np.nan)
    padded[0, : len(starts)] = starts[::-1]
    last, period, spread, presence = fit(padded)[:, 0]
    slope, level = np.polyfit(index, starts, 1)
    assert (last, period) == pytest.approx((slope * index[-1] + level, slope))
    residual = np.abs(starts - slope * index - level)
    assert spread == pytest.approx(max(1.4826 * np.median(residual), 1.5))
    assert presence == pytest.approx((len(index) - 1) / (index[-1] - index[0]))


def test_a_window_is_covered_for_ten_seconds_in_all():
    moments = np.arange(-200.0, 200.0, 0.5)
    for spread_s in (1.5, 4.0, 20.0):
        chance = covers(moments, spread_s)
        assert ((chance >= 0.0) & (chance <= 1.0)).all()
        assert chance.sum() * 0.5 == pytest.approx(10.0, rel=0.01)
        assert moments[chance.argmax()] == pytest.approx(5.0)
