import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.errors import InputError
from serving.controller.degradation import Degradation, DegradationRules, Ladder

RULES = DegradationRules()
IMPOSSIBLE = [float("nan"), float("inf"), float("-inf"), -1.0]
queues = st.none() | st.sampled_from([0.0, 4_000.0, 4_450.0, 4_600.0, 5_000.0, 5_001.0, 1e6])
uses = st.none() | st.floats(0, 1)
steps_s = st.sampled_from([0.5, 5.0, 9.0, 31.0]) | st.floats(0.1, 40)
streams = st.lists(st.tuples(steps_s, queues, uses), max_size=80)


def climb(
    degradation: Degradation, until_s: float, queue_depth: float = 6_000, tightening: float = 0.0
) -> None:
    now_s = 0.0
    while now_s <= until_s:
        degradation.observe(now_s, tightening, queue_depth, None)
        now_s += 5.0


def test_the_documented_thresholds_start_it():
    for queue_depth, gpu_util, step in ((5_000, 0.92, 0), (5_001, 0.0, 1), (0, 0.93, 1), (None, 0.93, 1)):
        degradation = Degradation(RULES)
        degradation.observe(0.0, 0.0, queue_depth, gpu_util)
        assert degradation.own_step(0.0) == step


def test_it_climbs_one_step_a_time():
    for until_s, step in ((0, 1), (5, 1), (10, 2), (15, 2), (20, 3), (60, 3)):
        degradation = Degradation(RULES)
        climb(degradation, until_s)
        assert degradation.own_step(until_s) == step


def test_one_reading_over_the_threshold_is_one_step():
    ladder = Ladder(RULES)
    for now_s, queue_depth in ((0, 6_000), (5, 4_600), (10, 6_000), (15, 4_600), (20, 6_000)):
        ladder.observe(now_s, queue_depth, None)
        assert ladder.step(now_s) == 1


def test_between_the_thresholds_it_stands():
    ladder = Ladder(RULES)
    ladder.observe(0.0, 6_000, None)
    for now_s in range(5, 600, 5):
        ladder.observe(now_s, 4_600, None)
        assert ladder.step(now_s) == 1


@given(streams)
def test_it_never_flaps_faster_than_its_dwell(stream):
    ladder, now_s = Ladder(RULES), 0.0
    step, changed_s = 0, -1e9
    for wait_s, queue_depth, gpu_util in stream:
        now_s += wait_s
        for at_s in (now_s - wait_s / 2, now_s):
            if at_s == now_s:
                ladder.observe(now_s, queue_depth, gpu_util)
            after = ladder.step(at_s)
            assert 0 <= after <= 3
            if after < step:
                assert at_s - changed_s >= RULES.calm_s - 1e-9
            if after > step:
                assert after == step + 1
                assert step == 0 or at_s - changed_s >= RULES.climb_s
            if after != step:
                step, changed_s = after, at_s


@given(streams.filter(lambda stream: all(wait_s <= 15 for wait_s, *_ in stream)))
def test_a_step_down_needs_as_much_calm_as_it_says(stream):
    ladder, now_s, calm_s = Ladder(RULES), 0.0, 0.0
    for wait_s, queue_depth, gpu_util in stream:
        now_s += wait_s
        before = ladder.step(now_s)
        ladder.observe(now_s, queue_depth, gpu_util)
        loud = (queue_depth or 0) >= 4_500 or (gpu_util or 0) >= 0.9 * 0.92
        calm_s = 0.0 if loud else calm_s + wait_s
        if ladder.step(now_s) < before:
            assert calm_s >= RULES.calm_s


@given(streams, st.data())
def test_impossible_and_unknown_readings_change_nothing(stream, data):
    clean, told, now_s = Degradation(RULES), Degradation(RULES), 0.0
    for wait_s, queue_depth, gpu_util in stream:
        nothing = data.draw(st.sampled_from([None, *IMPOSSIBLE]))
        told.observe(now_s + wait_s / 2, 0.0, nothing, nothing)
        now_s += wait_s
        before = told.own_step(now_s)
        for degradation in (clean, told):
            degradation.observe(now_s, 0.0, queue_depth, gpu_util)
        assert told.own_step(now_s) == clean.own_step(now_s)
        if queue_depth is gpu_util is None:
            assert told.own_step(now_s) <= before


def test_impossible_readings_are_counted():
    degradation = Degradation(RULES)
    for value in (*IMPOSSIBLE, 1.5):
        degradation.observe(0.0, 0.0, -1.0, value)

    assert (degradation.dropped, degradation.own_step(0.0)) == (10, 0)


def test_an_engine_that_has_gone_silent_leaves_the_rules_alone():
    """https://github.com/kedacore/keda/issues/3065: without telemetry limits stay those of the rules."""
    degradation = Degradation(RULES)
    climb(degradation, 20.0)

    assert degradation.own_step(50.0) == 3
    assert degradation.own_step(50.1) == 0
    degradation.observe(60.0, 0.0, 6_000, None)
    assert degradation.own_step(60.0) == 1


def test_tightening_lowers_the_thresholds_and_its_end_releases_them():
    degradation = Degradation(RULES)
    climb(degradation, 10.0, queue_depth=4_600, tightening=1.0)

    assert (degradation.own_step(10.0), degradation.step(10.0, 1.0)) == (0, 2)
    assert degradation.step(10.0, 0.0) == 0
    degradation.observe(15.0, 0.0, 4_600, None)
    assert degradation.step(15.0, 1.0) == 0


@given(streams, st.floats(0, 1), st.floats(0, 1))
def test_more_tightening_never_degrades_less(stream, one, other):
    less, more = Ladder(RULES), Ladder(RULES)
    now_s, low, high = 0.0, *sorted((one, other))
    for wait_s, queue_depth, gpu_util in stream:
        now_s += wait_s
        less.observe(now_s, queue_depth, gpu_util, low)
        more.observe(now_s, queue_depth, gpu_util, high)
        assert less.step(now_s) <= more.step(now_s)


@given(streams, st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=80, max_size=80))
def test_without_tightening_the_forecast_leaves_no_trace(stream, levels):
    told, alone, now_s = Degradation(RULES), Degradation(RULES), 0.0
    for (wait_s, queue_depth, gpu_util), level in zip(stream, levels, strict=False):
        now_s += wait_s
        told.observe(now_s, level, queue_depth, gpu_util)
        alone.observe(now_s, 0.0, queue_depth, gpu_util)
        assert told.own_step(now_s) == told.step(now_s, 0.0) == alone.step(now_s, 0.0)
        assert told.step(now_s, level) >= alone.step(now_s, 0.0)


@given(st.integers(0, 100_000), st.none() | st.integers(0, 100_000), st.integers(1, 2_000))
def test_a_known_prefix_never_makes_a_request_colder(prompt_tokens, cached_tokens, output_tokens):
    if RULES.pool(prompt_tokens, None, prompt_tokens + output_tokens) == "hot":
        assert RULES.pool(prompt_tokens, cached_tokens, prompt_tokens + output_tokens) == "hot"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"queue_depth_above": 0}, "degradation.queue_depth_above must be over 0 and finite; got 0"),
        ({"calm_s": float("inf")}, "degradation.calm_s must be over 0 and finite; got inf"),
        ({"cut": 1.5}, r"degradation.cut must be in \[0, 1\]; got 1.5"),
        ({"clamp_output_tokens": 40_000}, r"must not be over most_request_tokens \(32000\); got 40000"),
        ({"smaller_models": {"a": "b", "b": "c"}}, "smaller_models must not swap .* got 'b' on both sides"),
        ({"smaller_models": {"a": "a"}}, "got 'a' on both sides"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_by_name(settings, message):
    with pytest.raises(InputError, match=message):
        DegradationRules(**settings)
