import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.admission.refusal import DROPPED_REASONS, WORDS, refusal
from serving.controller.decision import Decision

REASONS = st.sampled_from(sorted(WORDS))


@given(REASONS, st.one_of(st.none(), st.integers(1, 30_000)), st.booleans())
def test_every_refusal_has_one_shape(reason: str, delay_ms: int | None, tightened: bool) -> None:
    decision = Decision(
        False,
        "batch",
        reason,
        None,
        delay_ms,
        delay_ms is not None,
        0.4,
        0.9,
        tightened,
        512,  # type: ignore[arg-type]
    )
    answer = refusal(decision, 7_300)
    assert answer.headers["x-tidegate-prompt-tokens"] == "7300"
    assert answer.status_code == 429
    error = json.loads(bytes(answer.body))["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert error["type"] in {"requests", "tokens"}
    assert error["code"] == "rate_limit_exceeded"
    headers = answer.headers
    assert headers["x-should-retry"] == ("false" if delay_ms is None else "true")
    assert headers["x-tidegate-tightened"] == ("true" if tightened else "false")
    assert ("forecast" in error["message"]) is tightened
    assert ("retry-after" in headers) is ("retry-after-ms" in headers) is (delay_ms is not None)
    if delay_ms is not None:
        assert int(headers["retry-after"]) - 1 < int(headers["retry-after-ms"]) / 1_000
        assert int(headers["retry-after-ms"]) / 1_000 <= int(headers["retry-after"])


def test_reasons_are_told_apart() -> None:
    assert len(set(WORDS.values())) == len(WORDS)
    assert set(DROPPED_REASONS) <= set(WORDS)


def test_an_admitted_request_has_no_refusal() -> None:
    with pytest.raises(ValueError, match="admitted"):
        refusal(Decision(True, "batch", None, "r1", None, False, 0.0, 0.0, False, 1), 10)
