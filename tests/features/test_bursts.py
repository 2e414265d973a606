import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.bins import WorkBins
from features.bursts import Events, baseline, burst_seconds, events, find_events, load
from tests.features import reference

NOTHING = Events(np.zeros(0, np.int64), np.zeros(0, np.int64))


def bins(work: np.ndarray, mean_work: float = 500.0, mean_square_work: float = 400_000.0) -> WorkBins:
    return WorkBins(0, np.asarray(work, dtype=np.int64), mean_work, mean_square_work)


def spiky(seed: int, seconds: int, level: int = 2_000) -> np.ndarray:
    """Noisy work, off for spells, with spikes of all heights and lengths."""
    rng = np.random.default_rng(seed)
    work = rng.poisson(level / 500, seconds) * 500
    for start in rng.integers(0, seconds, seconds // 150):
        work[start : start + rng.integers(1, 60)] = rng.choice([0, level, 3 * level, 12 * level])
    return work


def pairs(found: Events) -> list[tuple[int, int]]:
    return list(zip(found.onset_s.tolist(), found.last_s.tolist(), strict=True))


@given(
    st.integers(0, 10**6), st.integers(300, 800) | st.integers(1, 80), st.sampled_from([0, 50, 500, 20_000])
)
@settings(max_examples=30, deadline=None)
def test_equals_the_plain_definition(seed: int, seconds: int, level: int):
    work = spiky(seed, seconds, level)
    plain = reference.burst_seconds(work.tolist(), 500.0, 400_000.0)
    np.testing.assert_allclose(load(work), reference.load(work.tolist()))
    np.testing.assert_allclose(baseline(work), reference.baseline(work.tolist()), rtol=1e-12)
    assert burst_seconds(bins(work)).tolist() == plain
    assert pairs(find_events(bins(work))) == reference.events(plain)


@pytest.mark.parametrize("capacity", [None, 9_000.0, 1e9])
def test_equals_the_plain_definition_when_every_window_is_full(capacity: float | None):
    work = spiky(7, 4_500)
    plain = reference.burst_seconds(work.tolist(), 500.0, 400_000.0, capacity)
    assert burst_seconds(bins(work), capacity).tolist() == plain
    np.testing.assert_allclose(baseline(work), reference.baseline(work.tolist()), rtol=1e-12)
    assert any(plain) == (capacity != 1e9)
    assert pairs(find_events(bins(work), capacity)) == reference.events(plain)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=20))
@settings(max_examples=200, deadline=None)
def test_events_equal_the_plain_merge(spells: list[tuple[bool, int]]):
    burst = [inside for inside, length in spells for _ in range(length)]
    assert pairs(events(np.array(burst, dtype=bool))) == reference.events(burst)


@pytest.mark.parametrize(("quiet", "count"), [(30, 1), (31, 2)])
def test_gaps_of_thirty_quiet_seconds_are_merged(quiet: int, count: int):
    burst = np.r_[np.ones(5, bool), np.zeros(quiet, bool), np.ones(5, bool)]
    assert len(events(burst)) == count


@pytest.mark.parametrize(("length", "count"), [(4, 0), (5, 1)])
def test_events_last_five_seconds(length: int, count: int):
    assert len(events(np.r_[np.zeros(3, bool), np.ones(length, bool)])) == count


def test_baseline_is_unknown_until_a_minute_of_history():
    level = baseline(np.full(100, 700))
    assert np.isnan(level[:69]).all()  # 60 s of history end at s - 10 from s = 69 on
    assert (level[69:] == 700).all()


def test_the_mean_keeps_on_off_traffic_from_a_baseline_of_zero():
    work = np.zeros(3_000)
    work[::300] = 30_000
    assert (baseline(work.astype(np.int64))[700:] > 90).all()
    assert np.median(load(work.astype(np.int64))) == 0


def test_a_burst_does_not_raise_its_own_bar_for_ten_seconds():
    work = np.full(1_000, 1_000)
    work[700:] = 50_000
    level = baseline(work)
    assert np.nanmax(level[:710]) == 1_000
    assert level[710] > 1_000


def test_steady_load_and_twice_the_load_are_no_bursts():
    steady = np.full(2_000, 50_000)
    assert pairs(find_events(bins(steady))) == pairs(NOTHING)
    twice = steady.copy()
    twice[1_000:1_010] = 100_000  # reaches 2 b exactly once, and the bar is "over"
    assert pairs(find_events(bins(twice))) == pairs(NOTHING)


def test_a_step_to_five_times_the_load_is_one_event():
    work = np.full(2_000, 50_000)
    work[1_000:1_030] = 250_000
    # L passes 2 b = 100,000 when 3 of its 10 s are in the burst (b itself moves a little by its mean).
    (event,) = pairs(find_events(bins(work)))
    assert event[0] == 1_002
    assert 1_030 <= event[1] <= 1_037


@pytest.mark.parametrize(("capacity", "count"), [(None, 1), (357_000.0, 1), (358_000.0, 0)])
def test_known_capacity_must_be_near(capacity: float | None, count: int):
    work = np.full(2_000, 50_000)
    work[1_000:1_030] = 250_000  # 70 % of 357,143
    assert len(find_events(bins(work), capacity)) == count


def test_one_large_request_is_noise_where_requests_are_large():
    work = np.full(2_000, 50)
    work[1_000] = 20_000
    assert len(find_events(bins(work, 50.0, 2_500.0))) == 1
    assert len(find_events(bins(work, 50.0, 20_000.0**2))) == 0


@given(st.integers(0, 10**6), st.integers(100, 700))
@settings(max_examples=20, deadline=None)
def test_bursts_do_not_know_the_future(seed: int, cut: int):
    work = spiky(seed, 800)
    changed = work.copy()
    changed[cut:] = 10**6
    assert burst_seconds(bins(changed))[:cut].tolist() == burst_seconds(bins(work))[:cut].tolist()


@pytest.mark.parametrize("work", [[], [0], [5]])
def test_tiny_traces_hold_no_event(work: list[int]):
    assert len(find_events(bins(np.array(work, dtype=np.int64)))) == 0


def test_requests_without_any_work_are_no_burst():
    silent = bins(np.zeros(200), 0.0, 0.0)
    assert burst_seconds(silent).tolist() == [False] * 200
    assert len(find_events(silent)) == 0
