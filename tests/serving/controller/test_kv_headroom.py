import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.errors import InputError
from serving.controller.kv_headroom import HeadroomRules, KvHeadroom

RULES = HeadroomRules()
IMPOSSIBLE = [float("nan"), float("inf"), float("-inf"), -1.0]
readings = st.none() | st.floats(0, 1e6) | st.sampled_from([0.0, *IMPOSSIBLE])
streams = st.lists(st.tuples(st.floats(0, 700) | st.just(5.0), readings, readings), max_size=60)


def after(*failures: float | None) -> KvHeadroom:
    """Headroom after a reading of the counter every 5 s."""
    headroom = KvHeadroom(RULES)
    for number, counter in enumerate(failures):
        headroom.observe(5.0 * number, allocation_failures=counter)
    return headroom


@given(streams)
def test_the_share_stays_within_its_bounds_whatever_is_read(stream):
    headroom, now_s = KvHeadroom(RULES), 0.0
    for step_s, preemptions, failures in stream:
        now_s += step_s
        before = headroom.share(now_s)
        headroom.observe(now_s, preemptions_per_s=preemptions, allocation_failures=failures)
        share = headroom.share(now_s)
        assert RULES.floor <= share <= 1.0
        if share < before:
            assert share == max(RULES.floor, before * RULES.shrink)
        else:
            assert share - before <= RULES.recover_per_s * RULES.vouched_s + 1e-12


@given(streams, st.data())
def test_impossible_and_unknown_readings_change_nothing(stream, data):
    clean, told, now_s = KvHeadroom(RULES), KvHeadroom(RULES), 0.0
    for step_s, preemptions, failures in stream:
        now_s += step_s
        nothing = data.draw(st.sampled_from([None, *IMPOSSIBLE]))
        told.observe(now_s - step_s / 2, preemptions_per_s=nothing, allocation_failures=nothing)
        for headroom in (clean, told):
            headroom.observe(now_s, preemptions_per_s=preemptions, allocation_failures=failures)
        assert told.share(now_s) == clean.share(now_s)
    assert told.shrinks == clean.shrinks


def test_impossible_readings_are_counted():
    headroom = KvHeadroom(RULES)
    for value in IMPOSSIBLE:
        headroom.observe(0.0, preemptions_per_s=value, allocation_failures=value)

    assert headroom.dropped == 8


def test_a_counter_that_starts_high_is_no_failure():
    assert after(5_000, 5_000).share(5.0) == 1.0


def test_a_counter_that_restarts_is_no_failure_and_counts_on():
    """https://github.com/prometheus/prometheus/issues/7074: a restart was counted as a spike."""
    assert after(100, 100, 3).share(10.0) == 1.0
    assert after(100, 100, 3, 4).share(15.0) == RULES.shrink


def test_unknown_is_not_free_of_failures():
    headroom = after(0, 1)
    for second in range(10, 400, 5):
        headroom.observe(float(second))

    assert headroom.share(400.0) == RULES.shrink


def test_a_reading_after_a_hole_speaks_for_no_more_than_its_time():
    headroom = after(0, 1)
    headroom.observe(305.0, allocation_failures=1)

    assert headroom.share(305.0) == pytest.approx(RULES.shrink + RULES.recover_per_s * RULES.vouched_s)


def test_an_engine_that_has_gone_silent_leaves_the_rules_alone():
    """https://github.com/kedacore/keda/issues/3065: without telemetry limits stay those of the rules."""
    headroom = after(0, 1)

    assert headroom.share(5.0 + RULES.silence_s) == RULES.shrink
    assert headroom.share(5.1 + RULES.silence_s) == 1.0


def test_many_failures_at_once_shrink_once():
    headroom = KvHeadroom(RULES)
    for tenth in range(50):
        headroom.observe(tenth / 10, preemptions_per_s=100.0)

    assert (headroom.shrinks, headroom.share(5.0)) == (1, RULES.shrink)


def test_failures_weigh_more_than_the_calm_between_them():
    headroom = KvHeadroom(RULES)
    for minute in range(60):
        headroom.observe(60.0 * minute, preemptions_per_s=1.0)
        for calm_s in range(5, 60, 5):
            headroom.observe(60.0 * minute + calm_s, preemptions_per_s=0.0)

    assert headroom.share(3_600.0) < 0.65


def test_calm_brings_everything_back_in_its_time():
    headroom = after(*range(10))
    assert headroom.share(45.0) == RULES.floor
    for second in range(50, 550, 5):
        headroom.observe(float(second), allocation_failures=9)

    assert headroom.share(545.0) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"floor": 0.0}, r"headroom.floor must be in \(0, 1\]; got 0.0"),
        ({"shrink": 1.5}, r"headroom.shrink must be in \(0, 1\]; got 1.5"),
        ({"recover_per_s": float("nan")}, "headroom.recover_per_s must be over 0 and finite; got nan"),
        ({"silence_s": float("inf")}, "headroom.silence_s must be over 0 and finite; got inf"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_by_name(settings, message):
    with pytest.raises(InputError, match=message):
        HeadroomRules(**settings)
