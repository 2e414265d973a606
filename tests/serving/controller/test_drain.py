import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.controller.drain import Drain


def make() -> Drain:
    return Drain(prior_tokens_per_s=1_000.0, memory_s=10.0, busy_tokens=500)


def test_the_engine_model_speaks_until_something_was_measured():
    assert make().rate(0, 3_600.0) == 1_000.0


def test_an_engine_that_stands_still_drains_nothing():
    assert make().rate(5_000, 200.0) < 1e-4


def test_a_quiet_hour_does_not_make_the_engine_look_slow():
    drain = make()
    for second in range(100):
        drain.change(5_000, float(second), freed_tokens=2_000)
    busy = drain.rate(5_000, 99.0)
    drain.change(100, 100.0, freed_tokens=100)

    assert drain.rate(0, 3_700.0) == pytest.approx(busy)


@given(st.lists(st.floats(0, 100), min_size=1), st.integers(0, 2_000))
def test_reading_the_rate_changes_nothing(times, held):
    read, unread = make(), make()
    for now_s in times:
        read.rate(held, now_s)
    for drain in (read, unread):
        drain.change(held, 101.0, freed_tokens=50)

    assert read.rate(held, 105.0) == unread.rate(held, 105.0)
