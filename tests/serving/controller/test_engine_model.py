from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.errors import InputError
from serving.controller.engine_model import A100, H100, saturation_concurrency

tokens = st.integers(1, 100_000)


def test_prompts_40_times_as_long_cut_concurrency_40_fold():
    short, long = (saturation_concurrency(H100, prompt, 256, ttft_target_s=0.2) for prompt in (200, 8_000))

    assert short / long == pytest.approx(40)


def test_the_kv_cache_bounds_long_answers():
    requests = saturation_concurrency(H100, 16, 160_000, ttft_target_s=60.0)

    assert requests == pytest.approx(83_500 / (160_016 / 16))


def test_the_time_per_output_token_bounds_the_batch():
    assert saturation_concurrency(H100, 10, 10, 60.0, tpot_target_s=0.0603) == pytest.approx(100)
    assert saturation_concurrency(H100, 10, 10, 60.0, tpot_target_s=0.01) == 0.0


def test_nothing_meets_a_target_below_the_shortest_prefill():
    assert saturation_concurrency(A100, 1, 1, ttft_target_s=0.064) == 0.0


@given(tokens, tokens, st.floats(0.001, 100))
def test_more_tokens_never_allow_more_requests(prompt, output, target_s):
    here = saturation_concurrency(A100, prompt, output, target_s)

    assert saturation_concurrency(A100, prompt + 1, output, target_s) <= here
    assert saturation_concurrency(A100, prompt, output + 1, target_s) <= here


@given(tokens)
def test_prefill_never_takes_negative_time_although_the_fitted_line_does(prompt):
    assert A100.prefill_s(prompt) >= A100.prefill_floor_s


def test_a_larger_batch_drains_faster():
    assert H100.drain_tokens_per_s(1_024, 256, 64) > H100.drain_tokens_per_s(1_024, 256, 8) > 0


def test_a_profile_with_an_impossible_number_is_refused():
    with pytest.raises(InputError, match="kv_blocks must be over 0; got 0"):
        replace(H100, kv_blocks=0)
    with pytest.raises(InputError, match="prefill_base_s must be finite; got nan"):
        replace(H100, prefill_base_s=float("nan"))


def test_saturation_asks_for_positive_tokens():
    with pytest.raises(InputError, match="prompt_tokens must be over 0; got 0"):
        saturation_concurrency(H100, 0, 1, 1.0)
