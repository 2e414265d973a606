import numpy as np
import pytest

from data.workload.calls import ABORTED, FAILED, NONE, SERVED, end, limit_of, service_s, single_calls


def test_one_percent_fail_and_one_percent_are_aborted_with_less_output() -> None:
    outcome, output = end(np.random.default_rng(0), np.full(100_000, 500))
    assert (outcome == FAILED).mean() == pytest.approx(0.01, rel=0.1)
    assert (outcome == ABORTED).mean() == pytest.approx(0.01, rel=0.1)
    assert (output[outcome == SERVED] == 500).all()
    assert output[outcome != SERVED].max() < 500


def test_service_takes_prefill_and_decode() -> None:
    random = np.random.default_rng(0)
    prefill = service_s(random, np.full(10_000, 20_000), np.zeros(10_000, dtype=np.int64))
    assert prefill.mean() == pytest.approx(0.010 + 0.000091 * 20_000, rel=0.02)
    decode = service_s(random, np.zeros(10_000, dtype=np.int64), np.full(10_000, 100))
    assert decode.mean() == pytest.approx(3.76, rel=0.02)


def test_output_never_passes_the_limit() -> None:
    count = 1_000
    none = np.full(count, NONE)
    limit = np.where(np.arange(count) % 2, 64, NONE)
    calls = single_calls(np.random.default_rng(0), none, np.zeros(count), none + 10, none + 401, limit)
    assert calls.output[limit == 64].max() == 64
    assert calls.output[limit == NONE].max() == 400
    assert (calls.finished_s > 0).all()


def test_limits_are_powers_of_two_well_above_the_mean() -> None:
    assert limit_of(np.array([1.0, 100.0, 1e6])).tolist() == [64, 512, 8192]
