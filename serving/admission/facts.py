"""What the controller is told of a request that asks to be let in."""

from serving.controller.decision import RequestFacts
from serving.http.messages import AdmitRequest


def facts_of(request: AdmitRequest) -> RequestFacts:
    """The part of a request that rules look at; the rest is for the forecast and the records."""
    return RequestFacts(
        request.prompt_tokens,
        request.tenant,
        request.model,
        request.lane,
        request.max_tokens,
        request.max_completion_tokens,
        request.n,
        deadline_ms=request.deadline_ms,
        cached_tokens=request.cached_tokens,
        continuation=request.continuation,
    )
