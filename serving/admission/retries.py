"""Which refused attempt a retry repeats, where its client tells only the number of attempts before it.

Clients made by Stainless, OpenAI's and Anthropic's among them, count their attempts in the header
`x-stainless-retry-count`, and gateways give each attempt a name of its own. A client sends the same request
again: so the attempt that is repeated is one of the same tenant, model, session, prompt and limits, one lower
in count, refused within the time that these clients wait at most. Where there is none, nothing is claimed:
that one may have been refused by another replica, or have failed in the engine.

https://github.com/openai/openai-python/blob/main/src/openai/_base_client.py
"""

from collections import OrderedDict

from serving.http.messages import AdmitRequest

LONGEST_RETURN_S = 130.0
"""These clients wait up to 120 s, and give up where they are told to wait longer."""

_Attempt = tuple[object, ...]


class Refused:
    """The latest refused attempts, ``most`` at most, each until it is repeated.

    >>> refused, first = Refused(most=100), AdmitRequest(prompt_tokens=90, tenant="acme", retry_count=0)
    >>> refused.add(first, "a-1", now_s=0.0)
    >>> again = first.model_copy(update={"retry_count": 1})
    >>> refused.repeated_by(again, now_s=2.0), refused.repeated_by(again, now_s=2.0)
    ('a-1', None)
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: OrderedDict[_Attempt, tuple[str, float]] = OrderedDict()

    def add(self, request: AdmitRequest, request_id: str, now_s: float) -> None:
        """Remember a refused attempt whose client counts; of two that look the same, the later."""
        if request.retry_count is None:
            return
        attempt = _attempt(request, request.retry_count)
        self._open[attempt] = request_id, now_s
        self._open.move_to_end(attempt)
        if len(self._open) > self._most:
            self._open.popitem(last=False)

    def repeated_by(self, request: AdmitRequest, now_s: float) -> str | None:
        """Name of the attempt that a request repeats; None where it repeats none, or nobody knows which."""
        if not request.retry_count:
            return None
        request_id, at_s = self._open.pop(_attempt(request, request.retry_count - 1), (None, 0.0))
        return request_id if now_s - at_s <= LONGEST_RETURN_S else None


def _attempt(request: AdmitRequest, number: int) -> _Attempt:
    return (
        number,
        request.prompt_tokens,
        request.max_tokens,
        request.max_completion_tokens,
        request.n,
        request.tenant,
        request.model,
        request.session,
    )
