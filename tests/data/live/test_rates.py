import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.live.rates import Counters, Interval, interval


def rates(counts: list[float], every_s: float = 10.0, longest_s: float = 60.0) -> list[float | None]:
    readings = [Counters(every_s * i, {"n": count}) for i, count in enumerate(counts)]
    return [
        interval(*two, longest_s=longest_s).per_s("n")
        for two in zip([None, *readings], readings, strict=False)
    ]


def test_a_first_scrape_gives_no_rate():
    assert rates([5000, 5600]) == [None, 60.0]


def test_a_restart_is_no_spike():
    assert rates([100, 160, 5, 65]) == [None, 6.0, None, 6.0]


def test_a_steady_counter_is_steady_for_a_thousand_scrapes():
    assert rates([50.0 * i for i in range(1000)]) == [None] + [5.0] * 999


def test_one_falling_counter_makes_all_of_its_process_unknown():
    before = Counters(0.0, {"prompt": 100.0, "output": 10.0})
    after = interval(before, Counters(10.0, {"prompt": 5.0, "output": 900.0}), 60.0)
    assert (after.per_s("output"), after.length_s, after.restarted) == (None, None, True)
    assert after.reason == "prompt fell from 100 to 5: the engine restarted, no rates"


def test_a_restart_that_the_counters_hide_shows_in_the_start_time():
    after = interval(Counters(0.0, {"n": 5.0}, 1.7e9), Counters(10.0, {"n": 9.0}, 1.8e9), 60.0)
    assert (after.per_s("n"), after.restarted) == (None, True)


def test_a_gap_longer_than_the_bound_is_unknown_and_a_shorter_one_counts_in_full():
    before = Counters(0.0, {"n": 0.0})
    assert interval(before, Counters(60.0, {"n": 600.0}), 60.0).per_s("n") == 10.0
    after = interval(before, Counters(60.5, {"n": 600.0}), 60.0)
    assert (after.per_s("n"), after.reason) == (None, "no reading for 60 s: no rates")


def test_a_counter_that_one_reading_lacks_has_no_rate():
    after = interval(Counters(0.0, {"a": 1.0}), Counters(1.0, {"a": 2.0, "b": 7.0}), 60.0)
    assert (after.per_s("a"), after.per_s("b")) == (1.0, None)


def test_means_come_from_sum_and_count_and_nothing_over_nothing_is_unknown():
    before = Counters(0.0, {"sum": 4.0, "count": 10.0})
    assert interval(before, Counters(5.0, {"sum": 7.0, "count": 16.0}), 60.0).ratio("sum", "count") == 0.5
    assert interval(before, Counters(5.0, {"sum": 4.0, "count": 10.0}), 60.0).ratio("sum", "count") is None


@pytest.mark.parametrize("divisor", [5e-324, 1e-300])
def test_no_rate_is_infinite(divisor: float):
    assert Interval(divisor, {"n": 1e15}).per_s("n") is None


COUNTS = st.floats(0, 1e15)
STEPS = st.tuples(st.floats(-1, 100), st.one_of(st.none(), COUNTS))


@given(st.lists(STEPS, max_size=12), st.floats(1, 80))
def test_rates_are_never_negative_never_nan_and_unknown_exactly_where_they_must(
    steps: list[tuple[float, float | None]], longest_s: float
):
    before: Counters | None = None
    at_s = 0.0
    for step_s, count in steps:
        at_s += step_s
        now = Counters(at_s, {} if count is None else {"n": count})
        after = interval(before, now, longest_s)
        rate = after.per_s("n")
        earlier = None if before is None else before.values.get("n")
        elapsed_s = 0.0 if before is None else at_s - before.at_s
        known = earlier is not None and count is not None and count >= earlier and 0 < elapsed_s <= longest_s
        if known and math.isfinite((count - earlier) / elapsed_s):
            assert rate == (count - earlier) / elapsed_s
        else:
            assert rate is None
        assert rate is None or rate >= 0
        assert (after.length_s is None) <= (rate is None)
        before = now
