"""A refusal as OpenAI clients and gateways read it: 429, an error body, and when to come back."""

from collections.abc import Mapping

from fastapi.responses import JSONResponse

from serving.controller.decision import Decision, Reason
from serving.http.messages import OpenAIError, Refusal

WORDS: Mapping[Reason, str] = {
    "deadline": "its prompt alone takes longer than its deadline allows",
    "too_large": "it needs more tokens than its lane can ever hold",
    "tenant_quota": "its tenant's token quota is spent",
    "degraded": "it is very large and the engine is overloaded",
    "saturated": "the engine's token capacity is reserved",
    "backpressure": "the engine is under backpressure",
    "lane_budget": "the token budget of its lane is spent",
    "waiting_ahead": "others of its lane are waiting and come first",
    "queue_full": "the queue of its lane is full",
    "wait_expired": "its turn did not come within the time that it could wait",
}
DROPPED_REASONS: Mapping[Reason, str] = {
    "deadline": "rejected-ttl-expired",
    "degraded": "rejected-saturated",
    "saturated": "rejected-saturated",
    "backpressure": "rejected-saturated",
    "lane_budget": "rejected-saturated",
    "waiting_ahead": "rejected-saturated",
    "queue_full": "rejected-saturated",
    "wait_expired": "rejected-ttl-expired",
}
"""The nearest of llm-d's dropped reasons (https://github.com/llm-d/llm-d-router); others have none."""
TOKEN_BUDGETS: frozenset[Reason] = frozenset({"too_large", "tenant_quota", "degraded", "lane_budget"})


def refusal(decision: Decision, prompt_tokens: int) -> JSONResponse:
    """The 429 of a decision that refused; advice to wait is left out where waiting is of no use.

    The prompt's tokens go out as a header, so that a gateway's access log can tell what was refused.

    Raises:
        ValueError: when the decision admitted.

    """
    reason = decision.reason
    if reason is None:
        raise ValueError("an admitted request has no refusal")
    forecast = ", tightened ahead of a forecast burst" if decision.tightened else ""
    advice = (
        f" Retry after {decision.retry_after_s} s."
        if decision.retry_after_s is not None
        else " The same request can't be admitted later either."
    )
    body = Refusal(
        error=OpenAIError(
            message=f"Tidegate refused this: {WORDS[reason]} (lane {decision.lane}{forecast}).{advice}",
            type="tokens" if reason in TOKEN_BUDGETS else "requests",
            code="rate_limit_exceeded",
        )
    )
    headers = {
        "x-should-retry": str(decision.retry).lower(),
        "x-tidegate-reason": reason,
        "x-tidegate-tightened": str(decision.tightened).lower(),
        "x-tidegate-prompt-tokens": str(prompt_tokens),
    }
    if dropped := DROPPED_REASONS.get(reason):
        headers["x-llm-d-request-dropped-reason"] = dropped
    if decision.retry_after_ms is not None:
        headers["retry-after"] = str(decision.retry_after_s)
        headers["retry-after-ms"] = str(decision.retry_after_ms)
    return JSONResponse(body.model_dump(), 429, headers)
