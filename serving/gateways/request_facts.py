"""What gateways know of a request before it is decided on: names of headers, prompt size, deadline."""

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

from serving.controller.lanes import REFERENCE_PROMPT_TOKENS
from serving.gateways import openai_body
from serving.messages import MAX_TOKENS, Lane

RESERVATION = "x-tidegate-reservation-id"
PROMPT_TOKENS = "x-tidegate-prompt-tokens"
SLO_TTFT_MS = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
MAX_READ_BYTES = 1 << 18
"""A longer body is measured, not read: a decision takes no longer for it."""
LANES: Mapping[str, Lane] = {"premium": "premium", "standard": "standard", "batch": "batch"}

Source = Literal["header", "body", "bytes", "unknown"]
"""Where a prompt's size comes from: told, read in a whole body, taken for its bytes, or nowhere."""


class Size(NamedTuple):
    """Size of a prompt in tokens, and where it comes from."""

    prompt_tokens: int
    source: Source


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
    if (told := _whole_number(headers.get(PROMPT_TOKENS))) is not None:
        return Size(min(told, MAX_TOKENS), "header")
    if asked is not None and asked.prompt_tokens is not None:
        return Size(asked.prompt_tokens, "body")
    length = _whole_number(headers.get("x-tidegate-content-length")) or 0
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
    told = next((headers[name] for name in SLO_TTFT_MS if name in headers), "")
    try:
        target_ms = float(told)
    except ValueError:
        return None
    return target_ms if 0 < target_ms < math.inf else None


def _whole_number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else None
