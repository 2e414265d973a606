"""The body of an OTLP/HTTP trace export, unpacked and decoded to the facts that are wanted of each span."""

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from data.errors import InputError
from data.live.intake import Row, whole

PROTOBUF = "application/x-protobuf"
JSON = "application/json"

KIND_NAMES: Mapping[str, int] = dict(SpanMessage.SpanKind.items())
STATUS_NAMES: Mapping[str, int] = dict(Status.StatusCode.items())


class BodyError(InputError):
    """A body that holds no spans at all; `status` is the HTTP status that says so."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True, slots=True)
class Span:
    """The facts of a span, whatever it came in; `flaw` is why it can't be read further."""

    trace_id: str
    span_id: str
    kind: int = 0
    started_ns: int | None = None
    ended_ns: int | None = None
    failed: bool = False
    known: Row = field(default_factory=dict)
    flaw: str = ""


def spans_in(
    body: bytes, content_type: str, content_encoding: str | None, *, max_bytes: int, wanted: Set[str]
) -> Iterator[Span]:
    """Every span of the body, with those of its own and its resource's attributes that are `wanted`.

    `max_bytes` bounds the unpacked body. Raises BodyError for a body of another type (415), too large (413),
    or broken as a whole (400); a span that is broken by itself comes with its flaw.
    """
    kind = media_type(content_type)
    plain = unpacked(body, (content_encoding or "identity").strip().lower(), max_bytes)
    return _from_protobuf(plain, wanted) if kind == PROTOBUF else _from_json(plain, wanted)


def media_type(content_type: str) -> str:
    """PROTOBUF or JSON. Raises BodyError (415) for any other type."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in (PROTOBUF, JSON):
        raise BodyError(415, f"Content-Type must be one of {PROTOBUF}, {JSON}; got '{kind}'")
    return kind


def unpacked(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """The body without its compression; a bomb is noticed after `max_bytes`, not after it went off."""
    too_large = BodyError(413, f"The spans take more than {max_bytes} bytes unpacked; send smaller batches")
    if encoding not in ("identity", "gzip"):
        raise BodyError(415, f"Content-Encoding must be one of identity, gzip; got '{encoding}'")
    if encoding == "identity":
        if len(body) > max_bytes:
            raise too_large
        return body
    unpacker = zlib.decompressobj(wbits=31)
    try:
        plain = unpacker.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise BodyError(400, f"The body is not gzip: {error}") from None
    if len(plain) > max_bytes:
        raise too_large
    if not unpacker.eof or unpacker.unused_data:
        raise BodyError(
            400, "The body must be one whole gzip stream; its data end early or go on after its end"
        )
    return plain


def _from_protobuf(body: bytes, wanted: Set[str]) -> Iterator[Span]:
    try:
        request = ExportTraceServiceRequest.FromString(body)
    except DecodeError as error:
        raise BodyError(400, f"The body is no ExportTraceServiceRequest: {error}") from None
    for resource in request.resource_spans:
        shared = dict(_values(resource.resource.attributes, wanted))
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Span(
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.kind,
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    span.status.code == Status.STATUS_CODE_ERROR,
                    shared | dict(_values(span.attributes, wanted)),
                )


def _values(attributes: Iterable[KeyValue], wanted: Set[str]) -> Iterator[tuple[str, object]]:
    for attribute in attributes:
        kind = attribute.value.WhichOneof("value")
        if attribute.key in wanted and kind in ("string_value", "int_value", "double_value", "bool_value"):
            yield attribute.key, getattr(attribute.value, kind)


def _from_json(body: bytes, wanted: Set[str]) -> Iterator[Span]:
    """Spans of the JSON encoding: ids in hex, 64-bit numbers as text, enumerations as numbers."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BodyError(400, f"The body is not JSON: {error}") from None
    if not isinstance(request, dict):
        raise BodyError(400, f"The body must be a JSON object; got {type(request).__name__}")
    for resource in _objects(request, "resourceSpans"):
        about = resource.get("resource")
        shared = _json_values(about, wanted) if isinstance(about, dict) else {}
        for scope in _objects(resource, "scopeSpans"):
            for span in _objects(scope, "spans"):
                yield _json_span(span, shared, wanted)


def _json_span(span: Row, shared: Row, wanted: Set[str]) -> Span:
    trace_id, span_id = span.get("traceId"), span.get("spanId")
    kind, status = span.get("kind"), span.get("status")
    try:
        known = shared | _json_values(span, wanted)
    except BodyError as error:
        return Span(_hex(trace_id), _hex(span_id), flaw=str(error))
    return Span(
        _hex(trace_id),
        _hex(span_id),
        _number(kind, KIND_NAMES),
        whole(span.get("startTimeUnixNano")),
        whole(span.get("endTimeUnixNano")),
        isinstance(status, dict) and _number(status.get("code"), STATUS_NAMES) == Status.STATUS_CODE_ERROR,
        known,
    )


def _objects(parent: Row, name: str) -> list[Row]:
    """The list of objects under a key; none where the key is missing."""
    listed = parent.get(name) or []
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise BodyError(400, f"{name} must be a list of objects")
    return listed


def _json_values(parent: Row, wanted: Set[str]) -> Row:
    values: Row = {}
    for attribute in _objects(parent, "attributes"):
        key, value = attribute.get("key"), attribute.get("value")
        if isinstance(key, str) and key in wanted and isinstance(value, dict):
            for kind in ("stringValue", "intValue", "doubleValue", "boolValue"):
                if kind not in value:
                    continue
                if not isinstance(value[kind], (str, int, float)):
                    raise BodyError(400, f"{key} must be a text, a number or a truth value")
                values[key] = value[kind]
    return values


def _number(value: object, names: Mapping[str, int]) -> int:
    """The number of an enumeration's member; some exporters write its name, against the rule."""
    if isinstance(value, str):
        return names.get(value, 0)
    return value if isinstance(value, int) else 0


def _hex(value: object) -> str:
    """An id in lower-case hex, or '' for anything else."""
    try:
        return bytes.fromhex(value).hex() if isinstance(value, str) else ""
    except ValueError:
        return ""
