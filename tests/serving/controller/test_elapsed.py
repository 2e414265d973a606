from hypothesis import given
from hypothesis import strategies as st

from serving.controller.elapsed import Elapsed

readings = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(readings))
def test_time_never_goes_back(clock):
    elapsed = Elapsed()
    seen = [elapsed.at(now_s) for now_s in clock]

    assert seen == sorted(seen)


@given(st.lists(st.floats(0, 1e9)))
def test_a_rising_clock_is_taken_as_it_is(clock):
    elapsed = Elapsed()

    assert [elapsed.at(now_s) for now_s in sorted(clock)] == sorted(clock)


@given(st.lists(st.floats(-1e9, 1e9)), st.floats(-1e9, 1e9))
def test_time_goes_on_after_any_past(clock, now_s):
    elapsed = Elapsed()
    for reading in clock:
        elapsed.at(reading)
    start_s = elapsed.at(now_s)

    assert elapsed.at(now_s + 60.0) - start_s >= 58.9


def test_callers_that_overtake_one_another_do_not_speed_time_up():
    elapsed = Elapsed()
    for _ in range(1_000):
        elapsed.at(100.001)
        elapsed.at(100.0)

    assert elapsed.at(100.0) == 100.001
