import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.errors import InputError
from serving.controller.engine_model import H100
from serving.controller.profile_fit import fit_line, fit_profile, plausible

BATCH = np.repeat([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0], 5)
PROMPT = np.full(len(BATCH), 512.0)
PREFILL_S = H100.prefill_base_s + H100.prefill_s_per_token * PROMPT * BATCH
STEP_S = H100.decode_base_s + H100.decode_s_per_request * BATCH


def test_an_engine_that_keeps_to_its_line_is_found_again():
    fit = fit_profile(PROMPT, BATCH, PREFILL_S, STEP_S)
    profile = fit.profile("again", kv_blocks=83_500)

    assert (fit.outliers, fit.prefill.r2, fit.decode.r2) == (0, pytest.approx(1.0), pytest.approx(1.0))
    assert profile.prefill_s_per_token == pytest.approx(H100.prefill_s_per_token)
    assert profile.decode_base_s == pytest.approx(H100.decode_base_s)
    assert profile.prefill_floor_s == pytest.approx(PREFILL_S[0])
    assert profile.capacity_tokens == H100.capacity_tokens


@given(st.integers(0, len(BATCH) - 1), st.floats(4.0, 1e6), st.booleans())
def test_one_wild_measurement_changes_nothing(row, factor, longer):
    wild_s = STEP_S.copy()
    wild_s[row] *= factor if longer else 1 / factor
    fit = fit_profile(PROMPT, BATCH, PREFILL_S, wild_s)

    assert fit.outliers == 1
    assert fit.decode.base_s == pytest.approx(H100.decode_base_s)
    assert fit.decode.slope_s == pytest.approx(H100.decode_s_per_request)
    assert fit.prefill.rows == fit.decode.rows == len(BATCH) - 1


def test_a_run_that_did_not_do_its_work_counts_for_neither_line():
    """The public measurements hold such runs: a batch of 64 that prefills faster than one of 8."""
    failed = BATCH == 64
    fit = fit_profile(PROMPT, BATCH, np.where(failed, 0.36, PREFILL_S), np.where(failed, 0.042, STEP_S))

    assert fit.outliers == 5
    assert fit.decode.slope_s == pytest.approx(H100.decode_s_per_request)


def test_many_places_are_thinned_for_the_robust_line_alone():
    x = np.arange(1.0, 5_001.0)
    y_s = 0.1 + 0.01 * x
    y_s[77] = 1e9

    assert plausible(x, y_s).sum() == 4_999
    assert fit_line(x, 0.1 + 0.01 * x).rows == 5_000


def test_one_place_makes_no_line():
    one = np.ones(3)
    with pytest.raises(InputError, match="two or more prompt tokens; got 1"):
        fit_profile(one, one, one, one)
    with pytest.raises(InputError, match="two or more batch sizes; got 1"):
        fit_profile(np.array([128.0, 256.0, 512.0]), one, np.array([0.05, 0.05, 0.06]), one)
    with pytest.raises(InputError, match="two or more places; got fewer"):
        fit_line(one, one)


def test_a_decode_step_that_shrinks_with_the_batch_is_no_profile():
    fit = fit_profile(PROMPT, BATCH, PREFILL_S, 0.05 - 1e-4 * BATCH)
    with pytest.raises(InputError, match="decode_s_per_request must be over 0"):
        fit.profile("odd", kv_blocks=10)
