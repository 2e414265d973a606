import math
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.controller.retry_after import Returns, jittered_ms, wait_s


def seconds(backlog_tokens: float, drain_tokens_per_s: float, seed: int) -> int:
    return math.ceil(jittered_ms(wait_s(backlog_tokens, drain_tokens_per_s), Random(seed)) / 1_000)


def test_the_delay_follows_the_backlog():
    """https://github.com/llm-d/llm-d-router/issues/2487: refusals carried no delay, or always 30 s."""
    assert {seconds(60_000, 10_000, seed) for seed in range(200)} <= {6, 7}


def test_a_small_backlog_is_one_second_and_an_engine_that_stands_still_30():
    """https://github.com/ray-project/ray/issues/65879: a constant delay is wrong both ways."""
    assert {seconds(500, 10_000, seed) for seed in range(200)} == {1}
    assert {seconds(500, 0, seed) for seed in range(200)} == {30}


@pytest.mark.parametrize("request_tokens", [1, 100, 1_000, 100_000])
def test_a_thousand_refusals_in_one_second_do_not_come_back_together(request_tokens):
    """https://github.com/bytedance/deer-flow/pull/4294: retries realigned and hit the limit again."""
    returns = Returns(Random(5))
    at = Counter()
    for number in range(1_000):
        now_s = number / 1_000
        delay_ms = returns.advise_ms(100_000, request_tokens, 10_000, now_s)
        at[math.floor(now_s + delay_ms / 1_000)] += 1

    assert len(at) >= 10
    assert max(at.values()) <= 200
    assert min(at) >= 10


def test_later_refusals_stand_behind_earlier_ones():
    returns = Returns(Random(5))
    delays_ms = [returns.advise_ms(10_000, 20_000, 10_000, 0.0) for _ in range(4)]

    assert [round(delay_ms / 1_000) for delay_ms in delays_ms] == pytest.approx([1, 3, 5, 7], abs=1)


def test_the_line_is_forgotten_when_its_time_has_come():
    returns = Returns(Random(5))
    for _ in range(8):
        returns.advise_ms(10_000, 20_000, 10_000, 0.0)

    assert returns.advise_ms(500, 500, 10_000, 60.0) <= 1_000


@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e9), st.floats(0, 1e6), st.floats(0, 5))))
def test_advice_is_always_between_1_and_30_seconds_and_never_before_the_drain(refusals):
    returns = Returns(Random(5))
    now_s = 0.0
    for backlog, tokens, drain, step_s in refusals:
        now_s += step_s
        delay_ms = returns.advise_ms(backlog, tokens, drain, now_s)
        assert 500 <= delay_ms <= 30_000
        assert delay_ms >= 1_000 * min(29.0, wait_s(backlog, drain)) - 1
