import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.controller.tightening import Tightening


def make() -> Tightening:
    return Tightening(max_change_per_s=0.2, hold_s=15.0)


def test_a_released_alarm_lets_go_at_the_same_pace():
    tightening = make()
    tightening.set(1.0, 0.0)
    tightening.set(0.0, 10.0)

    assert [round(tightening.level(now_s), 6) for now_s in (10.0, 12.5, 15.0, 99.0)] == [1.0, 0.5, 0.0, 0.0]


def test_a_silent_forecaster_releases_the_gate():
    tightening = make()
    tightening.set(0.6, 0.0)

    assert tightening.level(15.0) == 0.6
    assert tightening.target(15.0) == 0.6
    assert tightening.target(15.1) == 0.0
    assert tightening.level(18.0) == 0.0


def test_an_alarm_that_was_not_renewed_rises_no_further():
    tightening = Tightening(max_change_per_s=0.02, hold_s=15.0)
    tightening.set(1.0, 0.0)

    assert [round(tightening.level(now_s), 6) for now_s in (15.0, 20.0)] == [0.3, 0.2]


def test_a_target_renewed_every_tick_stands():
    tightening = make()
    for tick in range(100):
        tightening.set(0.5, 5.0 * tick)

    assert tightening.level(499.0) == 0.5


def test_a_target_that_is_not_a_number_is_no_alarm():
    tightening = make()
    tightening.set(1.0, 0.0)
    tightening.set(math.nan, 5.0)

    assert (tightening.target(5.0), tightening.ignored) == (0.0, 1)


@pytest.mark.parametrize(("asked", "kept"), [(7.0, 1.0), (math.inf, 1.0), (-3.0, 0.0)])
def test_targets_are_cut_to_the_unit_interval(asked, kept):
    tightening = make()
    tightening.set(asked, 0.0)

    assert tightening.target(0.0) == kept


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(-1, 2)), min_size=1), st.floats(0, 30))
def test_the_level_stays_in_bounds_and_moves_at_the_bounded_rate(targets, later_s):
    tightening = make()
    now_s = 0.0
    for step_s, target in targets:
        before = tightening.level(now_s)
        now_s += step_s
        tightening.set(target, now_s)
        assert 0.0 <= tightening.level(now_s) <= 1.0
        assert abs(tightening.level(now_s) - before) <= 0.2 * step_s + 1e-9
    assert abs(tightening.level(now_s + later_s) - tightening.level(now_s)) <= 0.2 * later_s + 1e-9
    assert tightening.level(now_s + 15.0 + 5.0) <= 1e-9
