"""GenAI spans that arrive by OTLP/HTTP: each finished model call becomes a finished request.

    spans = parse(body, "application/x-protobuf", "gzip", source="edge", max_bytes=8 << 20, now=now)
    spans.requests, spans.rejected, spans.ignored
    answer(spans, "application/x-protobuf")      # the body of the 200 that the exporter waits for

A span counts when its kind is client or server and it names a model call: `gen_ai.operation.name` is one of
OPERATIONS or, as older instrumentations and vLLM leave that out, a model or a token usage is there. Agents,
tools and every other span are ignored. Of the attributes only those in ATTRIBUTES are ever looked at:
prompts and answers stay where they are. Export the spans of one place, gateway or engine: a call that both
report counts twice.

https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/ and https://opentelemetry.io/docs/specs/otlp/
"""

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial

from google.protobuf.json_format import MessageToJson  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage

from data.live.intake import Intake, RecordError, Row, count, facts, micros, take, text, whole
from data.live.otlp_body import PROTOBUF, Span, media_type, spans_in

OPERATIONS = frozenset({"chat", "text_completion", "generate_content", "embeddings"})
"""Values of `gen_ai.operation.name` that are one call of a model."""

KINDS = frozenset({SpanMessage.SPAN_KIND_SERVER, SpanMessage.SPAN_KIND_CLIENT})

TENANT = "tidegate.tenant"
"""The attribute that names the tenant, unless the caller names another."""

ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "operation": ("gen_ai.operation.name",),
    "tenant": ("enduser.id", "user.id"),
    "lane": ("tidegate.lane",),
    "session": ("gen_ai.conversation.id", "session.id"),
    "model": ("gen_ai.request.model", "gen_ai.response.model"),
    "prompt_tokens": ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
    "output_tokens": ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
    "cached_tokens": ("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens"),
    "max_tokens": ("gen_ai.request.max_tokens",),
    "error": ("error.type",),
    "http_status": ("http.response.status_code", "http.status_code"),
}
"""What is read, and from which attributes: the first one that the span or its resource has."""

TOKENS = ("prompt_tokens", "output_tokens", "cached_tokens", "max_tokens")
TEXTS = ("tenant", "lane", "session", "model")
SIGNS_OF_A_CALL = ("model", "prompt_tokens", "output_tokens")

SHED_ERRORS = frozenset(
    {"429", "RateLimitError", "rate_limit_exceeded", "rate_limit_error", "RESOURCE_EXHAUSTED"}
)
ABORT_ERRORS = frozenset(
    {"499", "CancelledError", "GeneratorExit", "ClientDisconnect", "cancelled", "CANCELLED"}
)
"""Values of `error.type`, without the package that a class name may come with."""


def parse(
    body: bytes,
    content_type: str,
    content_encoding: str | None,
    *,
    source: str,
    max_bytes: int,
    now: datetime | None = None,
    tenant_attribute: str = TENANT,
) -> Intake:
    """Read the body of an OTLP/HTTP trace export.

    `max_bytes` bounds the unpacked body; `now` is this machine's clock, by default read here. The line of a
    rejected span is its place in the body, from 1.

    Raises:
        BodyError: for a body of another type (415), too large (413), or broken as a whole (400).

    """
    names = {**ATTRIBUTES, "tenant": (tenant_attribute, *ATTRIBUTES["tenant"])}
    wanted = {name for group in names.values() for name in group}
    spans = list(spans_in(body, content_type, content_encoding, max_bytes=max_bytes, wanted=wanted))
    return take(
        enumerate(spans, 1),
        partial(_row, names=names),
        _shown,
        source=source,
        file="OTLP",
        now=now or datetime.now(UTC),
    )


def answer(spans: Intake, content_type: str) -> bytes:
    """The ExportTraceServiceResponse in the encoding that the spans came in; it names why some were rejected.

    >>> none = parse(b"", "application/x-protobuf", None, source="edge", max_bytes=1000)
    >>> answer(none, "application/x-protobuf"), answer(none, "application/json")
    (b'', b'{}')
    """
    response = ExportTraceServiceResponse()
    if spans.rejected.height:
        reasons = Counter(spans.rejected["reason"].to_list()).most_common(3)
        response.partial_success.rejected_spans = spans.rejected.height
        response.partial_success.error_message = "; ".join(f"{reason} ({n})" for reason, n in reasons)
    if media_type(content_type) == PROTOBUF:
        return bytes(response.SerializeToString())
    return str(MessageToJson(response, indent=None)).encode()


def _read(span: Span, names: Mapping[str, tuple[str, ...]]) -> Row:
    """What the span says, by our names; of several attributes the first that is there."""
    return {
        ours: next((span.known[name] for name in theirs if span.known.get(name) not in (None, "")), None)
        for ours, theirs in names.items()
    }


def _row(span: Span, names: Mapping[str, tuple[str, ...]]) -> Row | None:
    if span.flaw:
        raise RecordError(span.flaw)
    said = _read(span, names)
    if span.kind not in KINDS or not _is_call(said):
        return None
    if len(span.trace_id) != 32 or len(span.span_id) != 16 or not (span.trace_id + span.span_id).strip("0"):
        raise RecordError("traceId and spanId must be 16 and 8 bytes that are not all zero")
    return {
        "request_id": span.trace_id + span.span_id,
        "arrived_at": _nanos("startTimeUnixNano", span.started_ns),
        "finished_at": _nanos("endTimeUnixNano", span.ended_ns),
        **{name: text(name, said[name]) for name in TEXTS},
        **{name: count(names[name][0], said[name]) for name in TOKENS},
        "outcome": _outcome(span.failed, said["error"], whole(said["http_status"])),
    }


def _is_call(said: Row) -> bool:
    if said["operation"] is not None:
        return said["operation"] in OPERATIONS
    return any(said[name] is not None for name in SIGNS_OF_A_CALL)


def _nanos(name: str, value: int | None) -> datetime:
    if not value:
        raise RecordError(f"{name} must be a time in ns; the span has none")
    return micros(name, value // 1000)


def _outcome(failed: bool, error: object, status: int | None) -> str:
    kind = str(error or "").rpartition(".")[2]
    if status == 429 or kind in SHED_ERRORS:
        return "shed"
    if status == 499 or kind in ABORT_ERRORS:
        return "aborted"
    return "failed" if failed or kind or (status or 0) >= 400 else "served"


def _shown(span: Span) -> str:
    return facts({"traceId": span.trace_id, "spanId": span.span_id, "kind": span.kind} | span.known)
