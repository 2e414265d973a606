from typing import get_args

import pytest

from serving.controller.decision import ADMITPERF_REASONS, Decision, Reason


def refusal(reason, retry_after_ms):
    return Decision(False, "batch", reason, None, retry_after_ms, True, 0.0, 0.0, False, 1)


def test_every_reason_has_its_name_in_the_decision_log():
    """AdmitPerf 0.0.2 flags any other reason in its report."""
    known = {"kv_pressure", "queue_depth", "capacity_reserved", "wait_estimate_exceeded"} | {
        "deadline_infeasible",
        "predicted_length",
        "tenant_quota",
        "rate_limit",
    }

    assert set(ADMITPERF_REASONS) == set(get_args(Reason))
    assert set(ADMITPERF_REASONS.values()) <= known


@pytest.mark.parametrize(("ms", "s"), [(500, 1), (1_000, 1), (1_001, 2), (6_480, 7), (30_000, 30)])
def test_seconds_are_the_milliseconds_rounded_up(ms, s):
    assert refusal("saturated", ms).retry_after_s == s


def test_a_refusal_without_advice_has_none_in_either_unit():
    assert refusal("deadline", None).retry_after_s is None


def test_an_admitted_request_has_no_reason():
    assert Decision(True, "batch", None, "r1", None, False, 0.0, 0.0, False, 1).admitperf_reason is None
