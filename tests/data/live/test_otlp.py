"""OTLP: the same span in either encoding is the same request; bad ones are named, secrets never read."""

import gzip
import json
import struct
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from data.live.intake import Intake
from data.live.otlp import answer, parse
from data.live.otlp_body import BodyError
from data.schema import POLARS_REQUESTS
from data.writer import fitted

NOW = datetime(2026, 3, 1, 12, 0, 10, tzinfo=UTC)
START_NS = 1_772_366_400_250_000_000  # 2026-03-01 12:00:00.25
CALL = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "llama-3-70b",
    "gen_ai.usage.input_tokens": 900,
    "gen_ai.usage.output_tokens": 120,
    "gen_ai.usage.cache_read.input_tokens": 512,
    "gen_ai.request.max_tokens": 1024,
    "gen_ai.conversation.id": "conv-5",
    "tidegate.tenant": "acme",
    "gen_ai.input.messages": "a very private prompt",
}


def request(*spans: dict, resource: dict | None = None) -> ExportTraceServiceRequest:
    """An export; a span is its attributes, with kind, error, start_ns and end_ns beside them under '_'."""
    message = ExportTraceServiceRequest()
    group = message.resource_spans.add()
    set_attributes(group.resource.attributes, resource or {})
    scope = group.scope_spans.add()
    for number, attributes in enumerate(spans, 1):
        facts = {"kind": 3, "start_ns": START_NS, "end_ns": START_NS + 2_000_000_000, "error": False}
        facts |= attributes.get("_", {})
        span = scope.spans.add(
            trace_id=b"\xab" * 16,
            span_id=struct.pack(">Q", number),
            name="chat llama",
            kind=facts["kind"],
            start_time_unix_nano=facts["start_ns"],
            end_time_unix_nano=facts["end_ns"],
        )
        if facts["error"]:
            span.status.code = 2
        set_attributes(span.attributes, {k: v for k, v in attributes.items() if k != "_"})
    return message


def set_attributes(place, values: dict) -> None:
    for key, value in values.items():
        kind = {str: "string_value", bool: "bool_value", int: "int_value", float: "double_value"}[type(value)]
        setattr(place.add(key=key).value, kind, value)


def as_json(message: ExportTraceServiceRequest) -> bytes:
    """The OTLP JSON encoding: that of protobuf, with ids in hex and enumerations as numbers."""
    body = MessageToDict(message, use_integers_for_enums=True)
    for group in body.get("resourceSpans", []):
        for scope in group.get("scopeSpans", []):
            for span, original in zip(
                scope.get("spans", []), message.resource_spans[0].scope_spans[0].spans, strict=True
            ):
                span["traceId"], span["spanId"] = original.trace_id.hex(), original.span_id.hex()
    return json.dumps(body).encode()


def read(body: bytes, content_type: str = "application/x-protobuf", encoding: str | None = None) -> Intake:
    return parse(body, content_type, encoding, source="edge", max_bytes=1 << 20, now=NOW)


def read_spans(*spans: dict, **more: dict) -> Intake:
    return read(request(*spans, **more).SerializeToString())


def test_a_finished_call_is_a_finished_request():
    spans = read_spans(CALL)
    assert spans.requests.schema == POLARS_REQUESTS
    assert spans.requests.row(0, named=True) == dict.fromkeys(POLARS_REQUESTS) | {
        "source": "edge",
        "request_id": "ab" * 16 + "0000000000000001",
        "arrived_at": datetime(2026, 3, 1, 12, 0, 0, 250_000, UTC),
        "finished_at": datetime(2026, 3, 1, 12, 0, 2, 250_000, UTC),
        "tenant": "acme",
        "session": "conv-5",
        "model": "llama-3-70b",
        "prompt_tokens": 900,
        "output_tokens": 120,
        "cached_tokens": 512,
        "max_tokens": 1024,
        "outcome": "served",
    }


def test_json_protobuf_and_gzip_say_the_same():
    message = request(CALL, {"_": {"kind": 1}}, {"gen_ai.operation.name": "chat"}, resource={"user.id": "u"})
    plain = read(message.SerializeToString())
    assert (plain.requests.height, plain.rejected.height, plain.ignored) == (1, 1, 1)
    for body, kind, encoding in (
        (as_json(message), "application/json; charset=utf-8", None),
        (gzip.compress(as_json(message)), "Application/JSON", "gzip"),
        (gzip.compress(message.SerializeToString()), "application/x-protobuf", " GZIP"),
    ):
        other = read(body, kind, encoding)
        assert other.requests.equals(plain.requests)
        assert other.rejected.drop("raw").equals(plain.rejected.drop("raw"))
        assert other.ignored == plain.ignored


def test_json_numbers_may_be_numbers_and_enumerations_names():
    body = json.loads(as_json(request(CALL)))
    span = body["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    span |= {
        "kind": "SPAN_KIND_CLIENT",
        "startTimeUnixNano": START_NS,
        "status": {"code": "STATUS_CODE_ERROR"},
    }
    spans = read(json.dumps(body).encode(), "application/json")
    assert spans.requests["arrived_at"].item() == datetime(2026, 3, 1, 12, 0, 0, 250_000, UTC)
    assert spans.requests["outcome"].item() == "failed"


def test_older_names_are_read_and_newer_ones_win():
    old = {
        "_": {"kind": 2},
        "gen_ai.response.model": "qwen",
        "gen_ai.usage.prompt_tokens": 7,
        "gen_ai.usage.completion_tokens": 3,
        "enduser.id": "job-7",
    }
    row = read_spans(old).requests.row(0, named=True)
    assert (row["model"], row["prompt_tokens"], row["output_tokens"], row["tenant"]) == (
        "qwen",
        7,
        3,
        "job-7",
    )
    both = read_spans(old | {"gen_ai.usage.input_tokens": 8, "tidegate.tenant": "acme"}).requests
    assert both["prompt_tokens"].item() == 8
    assert both["tenant"].item() == "acme"


def test_the_tenant_may_stand_in_an_attribute_of_ones_own_and_in_the_resource():
    body = request(CALL, resource={"team": "search", "tidegate.lane": "batch"}).SerializeToString()
    spans = parse(
        body, "application/x-protobuf", None, source="e", max_bytes=9999, now=NOW, tenant_attribute="team"
    )
    assert spans.requests["tenant"].item() == "search"
    assert spans.requests["lane"].item() == "batch"


@pytest.mark.parametrize(
    ("attributes", "outcome"),
    [
        ({}, "served"),
        ({"_": {"error": True}}, "failed"),
        ({"error.type": "openai.RateLimitError"}, "shed"),
        ({"http.response.status_code": 429}, "shed"),
        ({"error.type": "429", "_": {"error": True}}, "shed"),
        ({"error.type": "asyncio.exceptions.CancelledError"}, "aborted"),
        ({"http.status_code": 499}, "aborted"),
        ({"http.response.status_code": 529}, "failed"),
        ({"error.type": "timeout"}, "failed"),
        ({"http.response.status_code": 200}, "served"),
    ],
)
def test_outcomes(attributes, outcome):
    assert read_spans(CALL | attributes).requests["outcome"].item() == outcome


@pytest.mark.parametrize(
    "span",
    [
        {"http.route": "/healthz"},
        CALL | {"_": {"kind": 1}},
        CALL | {"gen_ai.operation.name": "invoke_agent"},
        CALL | {"gen_ai.operation.name": "execute_tool"},
    ],
)
def test_spans_that_are_no_call_of_a_model_are_ignored_and_counted(span):
    spans = read_spans(span)
    assert (spans.requests.height, spans.rejected.height, spans.ignored) == (0, 0, 1)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"gen_ai.usage.input_tokens": -4}, "gen_ai.usage.input_tokens must be a whole number from 0 to"),
        ({"gen_ai.usage.output_tokens": 1.5}, "gen_ai.usage.output_tokens must be a whole number"),
        ({"gen_ai.usage.input_tokens": ""}, "prompt_tokens is unknown"),
        ({"gen_ai.usage.cache_read.input_tokens": 901}, "cached_tokens must be at most prompt_tokens, 900"),
        ({"tidegate.lane": "gold"}, "lane must be one of premium, standard, batch; got 'gold'"),
        ({"tidegate.tenant": "a\nb"}, "tenant must be printable text"),
        ({"_": {"end_ns": 0}}, "endTimeUnixNano must be a time in ns; the span has none"),
        ({"_": {"end_ns": START_NS - 1000}}, "finished_at must not be before arrived_at"),
        ({"_": {"end_ns": 2**64 - 1}}, "endTimeUnixNano must be a time from 1970 to 2200"),
    ],
)
def test_a_faulty_span_is_rejected_with_its_reason_and_the_others_are_taken(attributes, reason):
    spans = read_spans(CALL, CALL | attributes, CALL)
    assert spans.requests.height == 2
    assert spans.rejected["line"].to_list() == [2]
    assert spans.rejected["reason"].item().startswith(reason)
    fitted("quarantine", spans.rejected)
    fitted("requests", spans.requests)


def test_unknown_output_stays_unknown():
    call = {k: v for k, v in CALL.items() if "output" not in k and "cache" not in k}
    row = read_spans(call).requests.row(0, named=True)
    assert row["output_tokens"] is None
    assert row["cached_tokens"] is None


def test_a_span_60_s_ahead_of_our_clock_is_rejected_with_the_offset_and_one_60_s_behind_is_taken():
    ahead_ns = START_NS + 69_750_000_000 - 2_000_000_000
    spans = read_spans(
        CALL | {"_": {"start_ns": ahead_ns, "end_ns": ahead_ns + 2_000_000_000}},
        CALL | {"_": {"start_ns": START_NS - 60_000_000_000}},
    )
    assert spans.requests.height == 1
    assert spans.rejected["reason"].item().startswith("arrived_at is 58.0 s ahead of this machine's clock")


def test_prompts_and_answers_reach_neither_lake_nor_quarantine():
    spans = read_spans(CALL, CALL | {"gen_ai.usage.input_tokens": "none"})
    assert (spans.requests.height, spans.rejected.height) == (1, 1)
    for frame in (spans.requests, spans.rejected):
        assert "private" not in json.dumps(frame.rows(), default=str)


@pytest.mark.parametrize("kind", ["application/json", "application/x-protobuf"])
def test_the_answer_counts_rejected_spans_and_says_why(kind):
    message = request(CALL, CALL | {"tidegate.lane": "gold"}, CALL | {"tidegate.lane": "gold"}, {})
    body = as_json(message) if kind == "application/json" else message.SerializeToString()
    answered = answer(read(body, kind), kind)
    if kind == "application/json":
        partial = json.loads(answered)["partialSuccess"]
        assert partial["rejectedSpans"] == "2"
        assert partial["errorMessage"] == "lane must be one of premium, standard, batch; got 'gold' (2)"
    else:
        response = ExportTraceServiceResponse.FromString(answered)
        assert response.partial_success.rejected_spans == 2


@pytest.mark.parametrize(
    ("body", "kind", "encoding", "status"),
    [
        (b"{}", "text/plain", None, 415),
        (b"{}", "application/json", "br", 415),
        (b"\xff\xff", "application/x-protobuf", None, 400),
        (b"[1", "application/json", None, 400),
        (b"[" * 100_000, "application/json", None, 400),
        (b"9" * 10_000, "application/json", None, 400),
        (b"[]", "application/json", None, 400),
        (b'{"resourceSpans": [3]}', "application/json", None, 400),
        (b"not gzip", "application/json", "gzip", 400),
        # Without a time: it would stand in the names of the tests, on which pytest's workers must agree.
        (gzip.compress(b"{}", mtime=0)[:-4], "application/json", "gzip", 400),
        (b"", "application/json", "gzip", 400),
        (gzip.compress(b"{}", mtime=0) * 2, "application/json", "gzip", 400),
        (b" " * ((1 << 20) + 1), "application/json", None, 413),
        (gzip.compress(bytes(50 << 20), mtime=0), "application/x-protobuf", "gzip", 413),
    ],
)
def test_a_body_that_holds_no_spans_is_refused_with_its_status(body, kind, encoding, status):
    with pytest.raises(BodyError) as refused:
        read(body, kind, encoding)
    assert refused.value.status == status


def test_a_json_span_with_a_broken_attribute_is_rejected_alone():
    body = json.loads(as_json(request(CALL, CALL)))
    attributes = body["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"]
    attributes.append({"key": "gen_ai.request.model", "value": {"stringValue": ["llama"]}})
    spans = read(json.dumps(body).encode(), "application/json")
    assert spans.requests.height == 1
    assert spans.rejected["reason"].item() == "gen_ai.request.model must be a text, a number or a truth value"


JSON_VALUES = st.sampled_from(
    [
        None,
        True,
        -1,
        10**30,
        1e300,
        float("nan"),
        "",
        "\ud800",
        "x\0",
        "zz",
        "-3",
        "9" * 5000,
        [],
        [[1]],
        {},
        {"a": 1},
    ]
)
ATTRIBUTE = st.fixed_dictionaries(
    {
        "key": st.sampled_from([*CALL, "error.type", "http.response.status_code", "tidegate.lane"]),
        "value": st.dictionaries(
            st.sampled_from(["stringValue", "intValue", "doubleValue", "boolValue", "arrayValue"]),
            JSON_VALUES,
        )
        | JSON_VALUES,
    }
)
SPAN = st.fixed_dictionaries(
    {},
    optional={
        "traceId": st.sampled_from(["ab" * 16, "0" * 32]) | JSON_VALUES,
        "spanId": st.just("cd" * 8) | JSON_VALUES,
        "kind": st.sampled_from([2, 3]) | JSON_VALUES,
        "startTimeUnixNano": st.just(str(START_NS)) | JSON_VALUES,
        "endTimeUnixNano": st.just(START_NS) | JSON_VALUES,
        "status": st.just({"code": 2}) | JSON_VALUES,
        "attributes": st.lists(ATTRIBUTE, max_size=5) | JSON_VALUES,
    },
)


@given(st.lists(SPAN, max_size=4))
def test_any_json_spans_are_taken_rejected_or_ignored_and_nothing_gets_lost(spans):
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()
    taken = read(body, "application/json")
    assert taken.records == len(spans)
    fitted("quarantine", taken.rejected)
    fitted("requests", taken.requests)
    answer(taken, "application/json")


@given(
    st.binary(max_size=200), st.sampled_from(["application/json", "application/x-protobuf"]), st.booleans()
)
def test_any_bytes_are_read_or_refused_with_a_sentence(body, kind, packed):
    with suppress(BodyError):
        spans = read(gzip.compress(body) if packed else body, kind, "gzip" if packed else None)
        assert spans.requests.schema == POLARS_REQUESTS


@given(st.binary(max_size=40), st.integers(0, 300))
def test_a_damaged_export_is_read_or_refused(noise, place):
    body = request(CALL, CALL).SerializeToString()
    with suppress(BodyError):
        spans = read(body[:place] + noise + body[place + len(noise) :])
        assert spans.records <= 2 + len(noise)


def test_now_is_this_machine_s_clock_when_none_is_given():
    far_ns = int((datetime.now(UTC) + timedelta(hours=1)).timestamp()) * 10**9
    body = request(CALL | {"_": {"start_ns": far_ns, "end_ns": far_ns}}).SerializeToString()
    spans = parse(body, "application/x-protobuf", None, source="e", max_bytes=9999)
    assert "ahead of this machine's clock" in spans.rejected["reason"].item()
