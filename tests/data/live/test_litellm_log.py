"""LiteLLM's payloads, shaped as its version 1.110.2 writes them."""

import pytest

from data.live.intake import RecordError
from data.live.litellm_log import litellm_request

SERVED = {
    "id": "chatcmpl-b5e15208",
    "litellm_call_id": "889e973e",
    "session_id": "",
    "call_type": "acompletion",
    "cache_hit": None,
    "stream": None,
    "status": "success",
    "startTime": 1772366400.25,
    "endTime": 1772366402.25,
    "model": "gpt-4o",
    "model_group": "",
    "prompt_tokens": 10,
    "completion_tokens": 20,
    "end_user": None,
    "metadata": {
        "user_api_key_alias": "team-key",
        "user_api_key_team_alias": None,
        "usage_object": {"prompt_tokens_details": {"cached_tokens": 8}},
    },
    "model_parameters": {"max_tokens": 55},
    "error_information": {"error_code": "", "error_class": ""},
}
FAILED = SERVED | {"id": "6e53b94a", "status": "failure", "prompt_tokens": 0, "completion_tokens": 0}


def failed(code: str, kind: str = "", category: str | None = None) -> dict:
    error = {"error_code": code, "error_class": kind, "error_rate_limit_category": category}
    return FAILED | {"error_information": error}


def test_a_served_call():
    row = litellm_request(SERVED)
    assert row is not None
    assert row["request_id"] == "chatcmpl-b5e15208"
    assert (row["tenant"], row["model"], row["session"]) == ("team-key", "gpt-4o", None)
    assert (row["prompt_tokens"], row["output_tokens"], row["cached_tokens"]) == (10, 20, 8)


def test_times_may_be_text():
    row = litellm_request(
        SERVED | {"startTime": "2026-03-01 12:00:00.5", "endTime": "2026-03-01T13:00:01+01:00"}
    )
    assert row is not None
    assert (row["finished_at"] - row["arrived_at"]).total_seconds() == 0.5


def test_the_larger_of_the_two_output_limits_counts():
    row = litellm_request(SERVED | {"model_parameters": {"max_tokens": 1, "max_completion_tokens": 5000}})
    assert row is not None
    assert row["max_tokens"] == 5000


def test_the_team_names_the_tenant_before_the_key_and_the_end_user_last():
    metadata = SERVED["metadata"] | {"user_api_key_team_alias": "search"}
    assert litellm_request(SERVED | {"metadata": metadata})["tenant"] == "search"
    assert litellm_request(SERVED | {"metadata": None, "end_user": "u1"})["tenant"] == "u1"


def test_the_zero_tokens_of_a_failed_call_are_unknown():
    row = litellm_request(failed("500", "InternalServerError"))
    assert row is not None
    assert (row["outcome"], row["prompt_tokens"], row["output_tokens"]) == ("failed", None, None)
    assert litellm_request(failed("500") | {"prompt_tokens": 10})["prompt_tokens"] == 10


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        (failed("429", "RateLimitError", "virtual_key_rate_limit"), "shed"),
        (failed("429", "RateLimitError"), "shed"),
        (failed("429", "RateLimitError", "vendor_rate_limit"), "failed"),
        (failed("400", "ContextWindowExceededError"), "failed"),
        (failed("499"), "aborted"),
        (failed("", "CancelledError"), "aborted"),
        (SERVED | {"status": "odd"}, None),
    ],
)
def test_outcomes(line, outcome):
    row = litellm_request(line)
    assert row is not None
    assert row["outcome"] == outcome


@pytest.mark.parametrize(
    "line",
    [
        {"message": "Application startup complete.", "level": "INFO", "timestamp": "2026-03-01T12:00:00"},
        SERVED | {"call_type": "aimage_generation"},
        SERVED | {"cache_hit": True},
    ],
)
def test_what_puts_no_work_on_a_language_model_is_ignored(line):
    assert litellm_request(line) is None


def test_a_count_that_is_none_is_refused():
    with pytest.raises(RecordError, match="completion_tokens must be a whole number"):
        litellm_request(SERVED | {"completion_tokens": "many"})
