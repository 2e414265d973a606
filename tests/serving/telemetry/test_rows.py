import json
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from serving.http.messages import Completed, EngineSample
from serving.telemetry.rows import (
    COMPLETED,
    ROWS_AT_ONCE,
    Fault,
    as_frame,
    completed,
    micros,
    parse,
    raw,
    slices,
)

WHOLE = {
    "event": "request",
    "request_id": "a",
    "prompt_tokens": 100,
    "at": "2026-01-31T12:00:00Z",
    "finished_at": "2026-01-31T12:00:02.5+00:00",
    "outcome": "served",
}


def rows(body: bytes) -> list[Any]:
    return [row for part in slices(body) for row in part]


def test_lists_lines_and_single_objects_are_rows() -> None:
    row = {"queue_depth": 3}
    text = json.dumps(row).encode()
    assert rows(b" [" + text + b" ,\n" + text + b"] ") == [row, row]
    assert rows(text + b"\r\n\n " + text) == [row, row]
    assert rows(b"\xef\xbb\xbf" + text) == [row]
    assert rows(b"") == rows(b"[ ]") == []


def test_long_bodies_come_in_slices() -> None:
    texts = [json.dumps({"queue_depth": n}).encode() for n in range(ROWS_AT_ONCE + 1)]
    for body in (b"\n".join(texts), b"[" + b",".join(texts) + b"]"):
        assert [len(part) for part in slices(body)] == [ROWS_AT_ONCE, 1]


def test_a_broken_line_spoils_itself_alone_and_keeps_its_text() -> None:
    found = rows(b'{"queue_depth": 1}\n{"queue_\n{"queue_depth": 2} 3\n\xff\xfe\n' + b"[" * 100_000)
    assert [type(row) for row in found] == [dict, Fault, Fault, Fault, Fault]
    assert [raw(row)[:20] for row in found[1:4]] == ['{"queue_', '{"queue_depth": 2} 3', "\ufffd\ufffd"]
    assert "more follows after character 18" in found[2].reason


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'[{"queue_depth": 1}', "Expecting"),
        (b'[{"queue_depth": 1} {}]', "Expecting"),
        (b"[1,]", "Expecting value"),
        (b"[1] 2", "Extra data"),
        (b'["\xff"]', "utf-8"),
    ],
)
def test_a_broken_list_spoils_everything(body: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        rows(body)


def test_a_list_that_is_nested_too_deep_is_an_error() -> None:
    with pytest.raises(RecursionError):
        rows(b"[" * 100_000)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(json_values, max_size=5), st.sampled_from([None, 1]))
def test_a_list_reads_as_the_json_module_reads_it(values: list[Any], indent: int | None) -> None:
    text = json.dumps(values, indent=indent)
    assert repr(rows(text.encode())) == repr(json.loads(text))


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ({"kv_cache_usage": -0.39}, "kv_cache_usage"),
        ({"kv_cache_usage": 39.0}, "kv_cache_usage"),
        ({"queue_depth": float("inf")}, "queue_depth"),
        ({"queue_depth": float("nan")}, "queue_depth"),
        ({"queue_capacity": 0}, "queue_capacity"),
        ({"queue_deep": 1}, "queue_deep"),
        ({"queue_depth": 1, "at": 1_700_000_000}, "at"),
        ({"queue_depth": 1, "at": "2026-01-31T12:00:00"}, "at"),
        ({"event": "arrived", "request_id": "a", "prompt_tokens": -1}, "prompt_tokens"),
        ({"event": "arrived", "request_id": "a", "prompt_tokens": 10**9}, "prompt_tokens"),
        ({"event": "arrived", "request_id": "a", "prompt_tokens": True}, "prompt_tokens"),
        ({"event": "arrived", "request_id": "", "prompt_tokens": 1}, "request_id"),
        ({"event": "arrived", "request_id": "a\0", "prompt_tokens": 1}, "request_id"),
        ({"event": "vanished", "request_id": "a"}, "vanished"),
        ({"event": "finished", "request_id": "a", "outcome": "lost"}, "outcome"),
        (WHOLE | {"cached_tokens": 101}, "cached_tokens"),
        (WHOLE | {"finished_at": "2026-01-31T11:59:59Z"}, "finished_at"),
        (WHOLE | {"max_tokens": 0}, "max_tokens"),
        ([1, 2], "object"),
        (None, "object"),
    ],
)
def test_a_row_out_of_range_is_refused_and_the_field_is_named(row: object, names: str) -> None:
    fault = parse(row)
    assert isinstance(fault, Fault)
    assert fault.kind == "invalid"
    assert names in fault.reason


def test_what_a_sample_leaves_out_is_unknown() -> None:
    sample = parse({"queue_depth": 4})
    assert isinstance(sample, EngineSample)
    assert sample.queue_depth == 4
    assert sample.kv_cache_hit_rate is None


def test_whole_requests_are_read_by_the_thousand() -> None:
    other = {"queue_depth": 3}
    frame, others = completed([WHOLE, other, WHOLE | {"tenant": None, "lane": "batch"}], first=7)
    assert frame["row"].to_list() == [7, 9]
    assert others == [1]
    row = frame.row(0, named=True)
    assert (row["request_id"], row["prompt_tokens"], row["tenant"]) == ("a", 100, None)
    assert row["finished_at"] == datetime(2026, 1, 31, 12, 0, 2, 500_000, UTC)


def test_an_unusual_way_of_writing_is_read_row_by_row() -> None:
    unusual = WHOLE | {"at": "2026-01-31 12:00:00.1234567z"}
    assert completed([unusual])[1] == [0]
    event = parse(unusual)
    assert isinstance(event, Completed)
    assert micros(event.at) % 1_000_000 == 123_456


texts = st.sampled_from(["", "a", "ä" * 256, "ä" * 257, "\ud800", "😀", "a\0", "x\n"]) | st.text(max_size=4)
numbers = st.sampled_from([0, 1, 100, 101, 10_000_000, 10_000_001, -1, 2**63, 10**30]) | st.integers(0, 100)
times = st.sampled_from(
    [
        "2026-01-31T12:00:00Z",
        "2026-01-31T12:00:00.000001Z",
        "2026-01-31T12:00:00.1234567Z",
        "2026-01-31T14:00:00+02:00",
        "2026-01-31T14:00:00-00:30",
        "2026-02-30T12:00:00Z",
        "2026-01-31T24:00:00Z",
        "2026-01-31T12:00:60Z",
        "2026-01-31T12:00:00",
        "2026-01-31t12:00:00z",
        "2026-00-31T12:00:00Z",
        "2026-01-31T29:00:00+19:59",
        "1769860800",
        "soon",
    ]
) | st.datetimes(datetime(2000, 1, 1), datetime(2099, 12, 31)).map(lambda at: at.isoformat() + "Z")
anything = st.none() | st.booleans() | st.floats() | numbers | texts | times | st.just([1]) | st.just({})
fields = {
    "request_id": texts,
    "source": texts,
    "tenant": texts,
    "retry_of": texts,
    "prompt_tokens": numbers,
    "cached_tokens": numbers,
    "output_tokens": numbers,
    "max_tokens": numbers,
    "at": times,
    "finished_at": times,
    "lane": st.sampled_from(["premium", "batch", "vip", ""]),
    "outcome": st.sampled_from(["served", "shed", "lost", "SERVED"]),
}


@st.composite
def wholes(draw: st.DrawFn) -> Any:
    """A sound row of which some fields were changed, mostly to values of their type."""
    row: Any = dict(WHOLE)
    for name in draw(st.lists(st.sampled_from([*fields, "event", "colour"]), max_size=3, unique=True)):
        row[name] = draw(fields.get(name, anything) | anything)
    for name in draw(st.lists(st.sampled_from(list(row)), max_size=1)):
        if draw(st.booleans()):
            del row[name]
    return row


@settings(max_examples=300, deadline=None)
@given(st.lists(wholes() | anything, max_size=4))
def test_rows_by_the_thousand_are_what_rows_one_by_one_are(rows: list[Any]) -> None:
    frame, others = completed(rows)
    one_by_one = [(place, parse(row)) for place, row in enumerate(rows)]
    sound = [(place, event) for place, event in one_by_one if isinstance(event, Completed)]
    assert sorted([*frame["row"].to_list(), *others]) == list(range(len(rows)))
    slow = [(place, event) for place, event in sound if place in others]
    both = pl.concat([frame, as_frame(slow)]).sort("row")
    assert_frame_equal(both, as_frame(sound))
    assert dict(both.schema) == COMPLETED
