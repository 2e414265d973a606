import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from serving.forecast.live_work import KEEP_S, LiveWork

REQUESTS = st.lists(
    st.tuples(st.integers(0, 200), st.integers(0, 3), st.integers(0, 5_000), st.integers(0, 500)),
    min_size=1,
    max_size=40,
)


@given(REQUESTS)
def test_when_all_outputs_are_known_bins_and_moments_are_those_of_a_trace(requests) -> None:
    work = LiveWork()
    counted = [work.arrive(second, flow, prompt) for second, flow, prompt, _ in requests]
    for tokens, (second, flow, prompt, output) in zip(counted, requests, strict=True):
        work.finish(second, flow, tokens, prompt + output, output)
    bins = work.bins(0, 201)
    expected = np.zeros(201, dtype=np.int64)
    for second, _, prompt, output in requests:
        expected[second] += prompt + output
    sizes = np.array([prompt + output for _, _, prompt, output in requests], dtype=np.float64)
    np.testing.assert_array_equal(bins.work, expected)
    assert np.isclose(bins.mean_work, sizes.mean())
    assert np.isclose(bins.mean_square_work, (sizes**2).mean())


def test_a_flow_without_finished_requests_borrows_everyones_output() -> None:
    work = LiveWork()
    counted = work.arrive(0, 1, 100)
    assert counted == 100
    work.finish(0, 1, counted, 160, 60)
    assert work.arrive(1, 2, 100) == 160
    assert work.arrive(1, 1, 10) == 70


def test_seconds_are_kept_for_two_hours_and_then_reused_clean() -> None:
    work = LiveWork()
    work.arrive(0, 0, 7)
    work.arrive(KEEP_S - 1, 0, 9)
    assert work.bins(0, KEEP_S).work[[0, -1]].tolist() == [7, 9]
    work.arrive(3 * KEEP_S, 0, 1)
    bins = work.bins(2 * KEEP_S + 1, 3 * KEEP_S + 1)
    assert bins.work.sum() == 1


def test_an_output_that_comes_after_its_second_was_dropped_changes_no_other_second() -> None:
    work = LiveWork()
    counted = work.arrive(0, 0, 100)
    work.arrive(KEEP_S + 10, 0, 5)
    work.finish(0, 0, counted, 1_000, 900)
    assert work.bins(11, KEEP_S + 11).work.sum() == 5


def test_moments_look_back_a_day() -> None:
    work = LiveWork()
    work.arrive(0, 0, 1_000)
    work.arrive(90_000, 0, 10)
    assert work.bins(90_000, 90_001).mean_work == 10
    assert np.isnan(work.bins(200_000, 200_001).mean_work)


def test_requests_are_counted_by_the_second_of_their_arrival_one_by_one_or_whole() -> None:
    work = LiveWork()
    for second in (0, 4, 4):
        work.arrive(second, 0, 100)
    whole = np.array([4, 5])
    work.completed(whole, np.zeros(2, dtype=np.int64), whole * 10, whole)
    assert work.requests(0, 6) == 5
    assert work.requests(4, 5) == 3
    assert work.requests(KEEP_S + 4, KEEP_S + 8) == 0
