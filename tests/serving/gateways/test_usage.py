import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.gateways.usage import MAX_JSON_BYTES, MAX_LINE_BYTES, Usage, UsageReader


def event(**more: object) -> dict:
    return {"choices": [{"index": 0, "delta": {"content": "é"}}], "usage": None} | more


def sse(*events: object, ending: str = "\n") -> bytes:
    lines = [f"data: {json.dumps(event, ensure_ascii=False)}{ending}{ending}" for event in events]
    return "".join(lines).encode()


def read(body: bytes, media: str = "text/event-stream", *, ended: bool = True, cuts: tuple = ()) -> Usage:
    reader = UsageReader(media)
    ends = [0, *sorted(cuts), len(body)]
    for start, end in pairwise(ends):
        reader.feed(body[start:end])
    return reader.usage(ended=ended)


LAST = {"choices": [], "usage": {"completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 64}}}
STREAMS = st.lists(
    st.sampled_from(
        [
            sse(event()),
            sse(event(), ending="\r\n"),
            sse(LAST),
            sse({"type": "response.output_text.delta", "delta": "a"}),
            sse({"type": "response.completed", "response": {"usage": {"output_tokens": 9}}}),
            b"data: [DONE]\n\n",
            b": comment\n\n",
            b"data: {broken\n\n",
            b"event: ping\n",
            b"\n",
            b"data: " + b"x" * 40,
            "data: ½ü€".encode(),
        ]
    ),
    max_size=8,
)


@given(STREAMS, st.data(), st.booleans())
def test_any_cut_of_a_stream_gives_the_same_result(parts: list[bytes], data: st.DataObject, ended: bool):
    body = b"".join(parts)
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=12))
    assert read(body, ended=ended, cuts=tuple(cuts)) == read(body, ended=ended)
    assert read(body, ended=ended, cuts=tuple(range(len(body)))) == read(body, ended=ended)


@given(
    st.binary(max_size=200),
    st.binary(max_size=200),
    st.sampled_from(["text/event-stream", "application/json"]),
)
def test_no_bytes_make_it_fail(first: bytes, second: bytes, media: str):
    reader = UsageReader(media)
    reader.feed(first)
    reader.feed(second)
    reader.usage(ended=True)


def test_usage_may_come_more_than_once_and_the_last_counts():
    early = event(usage={"completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 64}})
    late = event(usage={"completion_tokens": 3})
    assert read(sse(early, late)) == Usage(3, 64, False)


def test_without_usage_events_with_output_are_counted_and_marked_as_an_estimate():
    head = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
    two_answers = {"choices": [{"delta": {"content": "a"}}, {"delta": {"tool_calls": [{"index": 0}]}}]}
    body = sse(head, event(), two_answers, {"choices": [{"text": "b"}]}, {"choices": [{"delta": {}}]})
    assert read(body + b"data: [DONE]\n\n") == Usage(4, None, True)


def test_a_stream_cut_off_after_an_early_usage_is_at_least_what_was_seen():
    """Anthropic tells output_tokens 1 at the start: 50 events later that is no longer true."""
    start = {
        "type": "message_start",
        "message": {"usage": {"output_tokens": 1, "cache_read_input_tokens": 5}},
    }
    deltas = [{"type": "content_block_delta", "delta": {"text": "a"}}] * 50
    assert read(sse(start, *deltas), ended=False) == Usage(50, 5, True)
    assert read(sse(start, *deltas, {"type": "message_delta", "usage": {"output_tokens": 61}})) == Usage(
        61, 5, False
    )


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"completion_tokens": 12, "prompt_tokens": 90, "total_tokens": 102}, Usage(12, None, False)),
        ({"output_tokens": 12, "input_tokens_details": {"cached_tokens": 3}}, Usage(12, 3, False)),
        ({"prompt_tokens": 90, "total_tokens": 90}, Usage(0, None, False)),
        ({"completion_tokens": -1}, Usage(None, None, False)),
        ({"completion_tokens": True}, Usage(None, None, False)),
        ({"completion_tokens": "12"}, Usage(None, None, False)),
        (None, Usage(None, None, False)),
    ],
)
def test_usage_of_an_answer_in_one_piece(usage: object, expected: Usage):
    body = json.dumps({"choices": [{"message": {"content": "Hi"}}], "usage": usage}).encode()
    assert read(body, "application/json; charset=utf-8", cuts=(5, 9)) == expected


def test_half_an_answer_in_one_piece_says_nothing():
    assert read(b'{"usage": {"completion_tokens": 5}}', "application/json", ended=False) == Usage(
        None, None, False
    )


@pytest.mark.parametrize(("media", "encoding"), [("text/plain", ""), ("application/json", "gzip"), ("", "")])
def test_what_cannot_be_read_is_unknown_not_zero(media: str, encoding: str):
    reader = UsageReader(media, encoding)
    reader.feed(b'{"usage": {"completion_tokens": 5}}')
    assert reader.usage(ended=True) == Usage(None, None, False)


def test_lines_and_answers_over_their_bounds_are_skipped_and_counted():
    reader = UsageReader("text/event-stream")
    reader.feed(b"data: " + b"x" * MAX_LINE_BYTES)
    reader.feed(b"y\n" + sse(LAST) + b"data: {broken\n")
    assert reader.usage(ended=True) == Usage(7, 64, False)
    assert reader.unreadable == 2
    long = UsageReader("application/json")
    long.feed(b" " * MAX_JSON_BYTES)
    long.feed(b'{"usage": {"completion_tokens": 5}}')
    assert (long.usage(ended=True), long.unreadable) == (Usage(None, None, False), 1)
