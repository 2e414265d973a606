import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.controller.backpressure import Backpressure
from serving.controller.rules import Rules

RULES = Rules(capacity_tokens=10_000, max_batch_tokens=8_000, queue_capacity=100)
readings = st.none() | st.floats(allow_nan=True, allow_infinity=True)


def score(held_tokens=0, now_s=1.0, **engine):
    pressure = Backpressure(RULES)
    known = {"queue_depth": None, "batch_tokens": None, "kv_miss_rate": None} | engine
    pressure.observe(0.0, **known)
    return pressure.score(held_tokens, now_s)


def test_all_terms_known():
    b = score(queue_depth=50, batch_tokens=4_000, kv_miss_rate=0.2)

    assert b == pytest.approx(0.4 * 0.5 + 0.3 * 0.5 + 0.3 * 0.2)


def test_terms_are_clamped():
    assert score(queue_depth=1e9, batch_tokens=1e9, kv_miss_rate=1.0) == pytest.approx(1.0)


def test_our_own_count_stands_in_for_a_batch_that_the_engine_does_not_report():
    assert score(held_tokens=9_000) == 0.9
    assert score(held_tokens=9_000, batch_tokens=800) == 0.9


def test_an_unknown_term_is_left_out_and_not_zero():
    assert score(queue_depth=100, batch_tokens=8_000) == pytest.approx(1.0)
    assert score(queue_depth=100, batch_tokens=8_000, kv_miss_rate=0.0) == pytest.approx(0.7)


def test_an_old_observation_is_unknown():
    assert score(held_tokens=1_000, now_s=15.0, queue_depth=100) > 0.4
    assert score(held_tokens=1_000, now_s=15.1, queue_depth=100) == 0.1


@pytest.mark.parametrize("impossible", [-0.39, 39.0, math.nan, math.inf, -math.inf])
def test_an_impossible_miss_rate_is_dropped_and_counted(impossible):
    """https://github.com/vllm-project/vllm-ascend/issues/10048: a usage of -0.39 was exported."""
    pressure = Backpressure(RULES)
    pressure.observe(0.0, queue_depth=None, batch_tokens=None, kv_miss_rate=impossible)

    assert pressure.dropped == 1
    assert pressure.score(5_000, 0.0) == 0.5


@given(st.integers(0, 10_000), readings, readings, readings)
def test_b_stays_between_0_and_1(held, queue, batch, miss):
    assert 0.0 <= score(held, queue_depth=queue, batch_tokens=batch, kv_miss_rate=miss) <= 1.0 + 1e-12


@given(st.integers(0, 9_999), readings, readings, readings)
def test_more_held_never_lowers_b(held, queue, batch, miss):
    engine = {"queue_depth": queue, "batch_tokens": batch, "kv_miss_rate": miss}

    assert score(held + 1, **engine) >= score(held, **engine)


def test_the_excess_is_what_must_leave():
    pressure = Backpressure(RULES)
    pressure.observe(0.0, queue_depth=90, batch_tokens=None, kv_miss_rate=0.9)
    excess = pressure.excess_tokens(pressure.score(9_900, 1.0), 0.85, 1.0)

    assert pressure.score(round(9_900 - excess), 1.0) == pytest.approx(0.85, abs=1e-4)
