import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.errors import InputError
from serving.controller.quota import DAY_S, HOUR_S, Quota, Window

NOON = 1_700_049_600.0
"""A full hour of the wall clock."""

# A busy machine is no fault of the quota.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def hour(tokens: int = 1_000, wall_s: float = NOON, **settings) -> Window:
    return Window(HOUR_S, Quota(tokens, **settings), wall_s)


def test_a_calendar_hour_is_free_again_on_the_hour():
    window = hour(wall_s=NOON + 3_000)
    window.take(900, NOON + 3_000)

    assert window.wait_s(100, NOON + 3_000) == 0
    assert window.wait_s(200, NOON + 3_000) == 600
    assert window.wait_s(1_000, NOON + 3_600) == 0


def test_a_day_starts_at_midnight_utc():
    window = Window(DAY_S, Quota(1_000), NOON)
    window.take(1_000, NOON)

    assert window.wait_s(1, NOON) == 12 * 3_600


def test_a_sliding_hour_frees_what_came_first_after_an_hour():
    window = hour(sliding=True)
    window.take(600, NOON)
    window.take(400, NOON + 600)

    assert window.wait_s(500, NOON + 1_200) == pytest.approx(3_600 + 60 - 1_200)
    assert window.wait_s(500, NOON + 3_599) > 0
    assert window.wait_s(500, NOON + 3_660) == 0
    assert window.wait_s(700, NOON + 3_660) == pytest.approx(600)


def test_what_can_never_fit_is_told_so():
    assert hour(burst_tokens=500).wait_s(1_501, NOON) == math.inf
    assert hour(sliding=True).wait_s(1_001, NOON) == math.inf


def test_unused_tokens_of_past_hours_are_credit_up_to_the_bound():
    window = hour(burst_tokens=1_500)
    window.take(400, NOON)
    assert window.wait_s(1_700, NOON) == 2 * 3_600  # 600 unused after one hour, 1,500 at most after two
    assert window.wait_s(1_600, NOON + 3_600) == 0
    assert window.left_tokens(NOON + 3 * 3_600) == 2_500


def test_a_new_window_has_no_credit():
    assert hour(burst_tokens=500).left_tokens(NOON + 30) == 1_000


def test_credit_that_was_spent_is_gone():
    window = hour(burst_tokens=500)
    window.take(1_500, NOON + 3_600)

    assert window.left_tokens(NOON + 3_600) == 0
    assert window.left_tokens(NOON + 7_200) == 1_000


def test_a_refund_goes_back_to_the_credit_it_came_from():
    window = hour(burst_tokens=500)
    part, from_credit = window.take(1_400, NOON + 3_600)
    window.settle(part, from_credit, -1_400, NOON + 3_700)

    assert window.left_tokens(NOON + 3_700) == 1_500


def test_a_refund_after_its_hour_frees_nothing_of_the_next():
    window = hour()
    part, from_credit = window.take(1_000, NOON)
    window.take(1_000, NOON + 3_600)
    window.settle(part, from_credit, -1_000, NOON + 3_601)

    assert window.left_tokens(NOON + 3_601) == 0


def test_what_runs_over_is_charged_now():
    window = hour()
    part, from_credit = window.take(900, NOON)
    window.settle(part, from_credit, 500, NOON + 60)

    assert window.left_tokens(NOON + 60) == -400
    assert window.left_tokens(NOON + 3_600) == 1_000


@pytest.mark.parametrize("sliding", [False, True])
def test_a_quota_set_later_sees_what_was_charged_before(sliding):
    window = Window(HOUR_S, None, NOON)
    part, from_credit = window.take(700, NOON + 60)
    window.set(Quota(1_000, sliding=sliding), NOON + 90)
    assert window.left_tokens(NOON + 90) == 300

    window.settle(part, from_credit, -200, NOON + 120)
    assert window.left_tokens(NOON + 120) == 500


@pytest.mark.parametrize(("settings", "message"), [((0,), "tokens"), ((1, False, -1), "burst_tokens")])
def test_a_quota_that_cannot_be_is_refused(settings, message):
    with pytest.raises(InputError, match=message):
        Quota(*settings)


steps = st.lists(
    st.tuples(st.floats(0, 4_000), st.integers(0, 900), st.integers(0, 900), st.booleans()), max_size=40
)


@PATIENT
@given(steps, st.booleans(), st.integers(0, 2_000))
def test_charges_never_leak_and_never_turn_negative(history, sliding, burst_tokens):
    window, wall_s, open_ = hour(sliding=sliding, burst_tokens=burst_tokens), NOON, []
    for step_s, tokens, used, settles in history:
        wall_s += step_s
        if settles and open_:
            part, from_credit, taken = open_.pop()
            window.settle(part, from_credit, used - taken, wall_s)
        elif window.wait_s(tokens, wall_s) == 0:
            open_.append((*window.take(tokens, wall_s), tokens))
            assert window.left_tokens(wall_s) >= 0
        assert window.used_tokens(wall_s) >= 0
    for part, from_credit, taken in open_:
        window.settle(part, from_credit, -taken, wall_s)
    assert window.used_tokens(wall_s + 2 * HOUR_S) == 0
    assert window.left_tokens(wall_s + 2 * HOUR_S) <= 1_000 + burst_tokens


@PATIENT
@given(st.lists(st.tuples(st.floats(0, 900), st.integers(1, 600)), max_size=60))
def test_no_stretch_of_an_hour_holds_more_than_a_sliding_quota(history):
    window, wall_s, taken = hour(sliding=True), NOON, []
    for step_s, tokens in history:
        wall_s += step_s
        if window.wait_s(tokens, wall_s) == 0:
            window.take(tokens, wall_s)
            taken.append((wall_s, tokens))
            assert sum(size for at_s, size in taken if at_s > wall_s - HOUR_S) <= 1_000


@PATIENT
@given(steps, st.booleans(), st.integers(0, 1_500), st.integers(1, 1_200))
def test_the_promised_wait_is_when_it_fits(history, sliding, burst_tokens, wanted):
    window, wall_s = hour(sliding=sliding, burst_tokens=burst_tokens), NOON
    for step_s, tokens, _, _ in history:
        wall_s += step_s
        window.take(tokens, wall_s)
    wait_s = window.wait_s(wanted, wall_s)
    if wait_s == math.inf:
        assert wanted > 1_000 + burst_tokens
    else:
        assert window.wait_s(wanted, wall_s + wait_s + 0.001) == 0
