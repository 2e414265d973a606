"""What gateways know of a request before it is decided on: headers, prompt size, and what is made of them.

All headers are optional. The first group is the gateway's to set, and to take away from clients; the second
may come from clients, who gain nothing by making it up.

    the tenant header of the settings        who pays; set by whoever authenticated the client
    x-tidegate-lane, -model                  as in POST /v1/admit; the model of a whole body counts first
    x-tidegate-prompt-tokens                 from whoever tokenised; else the body is measured
    x-tidegate-max-wait-ms                   max_wait_ms: where there is no room yet, the check waits so long

    x-tidegate-session                       the conversation it is a turn of, a name within the tenant
    x-llm-d-slo-ttft-ms, x-slo-ttft-ms       deadline_ms; the new name counts first
    x-tidegate-continuation                  the handle of a clamped answer whose rest is asked for
    x-stainless-retry-count                  retry_count, as OpenAI's and Anthropic's clients tell it
    x-request-id                             request_id
"""

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

from serving.controller.lanes import REFERENCE_PROMPT_TOKENS
from serving.gateways import openai_body
from serving.http.messages import MAX_RETRIES, MAX_TOKENS, AdmitRequest, Lane

RESERVATION = "x-tidegate-reservation-id"
PROMPT_TOKENS = "x-tidegate-prompt-tokens"
CONTINUATION = "x-tidegate-continuation"
MAX_WAIT_MS = "x-tidegate-max-wait-ms"
RETRY_COUNT = "x-stainless-retry-count"
SLO_TTFT_MS = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
SESSION = "x-tidegate-session"
TRUSTED = (PROMPT_TOKENS, MAX_WAIT_MS, "x-tidegate-lane", "x-tidegate-model")
CLIENTS = (SESSION, *SLO_TTFT_MS, CONTINUATION, RETRY_COUNT, "x-request-id")
MAX_READ_BYTES = 1 << 18
"""A longer body is measured, not read: a decision takes no longer for it."""
LANES: Mapping[str, Lane] = {"premium": "premium", "standard": "standard", "batch": "batch"}

Source = Literal["header", "body", "bytes", "unknown"]
"""Where a prompt's size comes from: told, read in a whole body, taken for its bytes, or nowhere."""
SOURCES: tuple[Source, ...] = get_args(Source)


class Size(NamedTuple):
    """Size of a prompt in tokens, and where it comes from."""

    prompt_tokens: int
    source: Source


def admit_request(
    headers: Mapping[str, str], tenant_header: str, size: Size, asked: openai_body.Asked | None = None
) -> AdmitRequest:
    """The request that is decided on; a hint that makes no sense is left out.

    >>> headers = {"x-tidegate-lane": "gold", "x-who": "acme", "x-stainless-retry-count": "1"}
    >>> request = admit_request(headers, "x-who", Size(90, "header"))
    >>> request.tenant, request.lane, request.max_wait_ms, request.retry_count
    ('acme', None, None, 1)
    """
    told = headers.get
    retries = whole_number(told(RETRY_COUNT))
    return AdmitRequest(
        prompt_tokens=size.prompt_tokens,
        tenant=_name(told(tenant_header)),
        lane=LANES.get(told("x-tidegate-lane", "")),
        model=(asked and asked.model) or _name(told("x-tidegate-model")),
        session=_name(told(SESSION)),
        max_tokens=asked and asked.max_tokens,
        max_completion_tokens=asked and asked.max_completion_tokens,
        n=asked.n if asked else 1,
        continuation=_name(told(CONTINUATION)),
        deadline_ms=deadline_ms(headers),
        max_wait_ms=over_zero(told(MAX_WAIT_MS)),
        request_id=_name(told("x-request-id")),
        retry_count=None if retries is None else min(retries, MAX_RETRIES),
        log_type=None,
    )


def prompt_size(
    headers: Mapping[str, str], body: bytes, body_bytes: int, *, whole: bool, asked: openai_body.Asked | None
) -> Size:
    """Tokens of a prompt by the best source there is.

    Args:
        headers: of the check, names in lower case.
        body: what was read of the check's body, perhaps only the start of the client's.
        body_bytes: length of the check's body.
        whole: ``body`` is all that the client sent.
        asked: what it asks for, when it could be read.

    """
    if (told := whole_number(headers.get(PROMPT_TOKENS))) is not None:
        return Size(min(told, MAX_TOKENS), "header")
    if asked is not None and asked.prompt_tokens is not None:
        return Size(asked.prompt_tokens, "body")
    length = whole_number(headers.get("x-tidegate-content-length")) or 0
    size_bytes = body_bytes if whole and body_bytes else max(body_bytes, length)
    if size_bytes == 0 or b";base64," in body:
        # Nothing is known of it, or most of it is a picture: its bytes would make it out far too long.
        return Size(REFERENCE_PROMPT_TOKENS, "unknown")
    return Size(openai_body.estimated_tokens(size_bytes), "bytes")


def deadline_ms(headers: Mapping[str, str]) -> float | None:
    """The client's TTFT target under its new or its old name; None where there is no usable one.

    >>> deadline_ms({"x-slo-ttft-ms": "900", "x-llm-d-slo-ttft-ms": "250"})
    250.0
    """
    new, old = SLO_TTFT_MS
    return over_zero(headers[new] if new in headers else headers.get(old))


def over_zero(text: str | None) -> float | None:
    """A finite number over 0; None where there is none.

    >>> over_zero("1500"), over_zero("0"), over_zero("inf"), over_zero("soon"), over_zero(None)
    (1500.0, None, None, None, None)
    """
    try:
        number = float(text or 0)
    except ValueError:
        return None
    return number if 0 < number < math.inf else None


def _name(text: str | None) -> str | None:
    return None if text is None else openai_body.name(text)


def whole_number(text: str | None) -> int | None:
    """A whole number, 0 or more; None where there is none.

    >>> whole_number("12"), whole_number("-1"), whole_number("1e3"), whole_number(None)
    (12, None, None, None)
    """
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else None
