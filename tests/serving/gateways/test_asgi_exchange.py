import asyncio
import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Message

from serving.gateways.asgi_exchange import Answer, Replay
from serving.http.messages import Outcome


def requests(parts: list[bytes]) -> list[Message]:
    last = len(parts) - 1
    return [{"type": "http.request", "body": part, "more_body": n < last} for n, part in enumerate(parts)]


def reader(messages: list[Message | Exception]) -> Replay:
    waiting = list(messages)

    async def receive() -> Message:
        message = waiting.pop(0)
        if isinstance(message, Exception):
            raise message
        return message

    return Replay(receive)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=20), min_size=1, max_size=8), st.integers(0, 60))
def test_what_is_read_ahead_is_a_start_of_the_body_and_the_app_gets_all_of_it(parts: list[bytes], most: int):
    sent = [*requests(parts), {"type": "http.disconnect"}]
    body = b"".join(parts)

    async def run() -> None:
        replay = reader(sent)
        ahead = await replay.read(most)
        assert body.startswith(ahead.body)
        assert len(ahead.body) <= most
        assert (ahead.whole, ahead.left) == (len(body) <= most, False)
        got = [await replay() for _ in sent]
        assert all(one is other for one, other in zip(got, sent, strict=True))
        assert replay.left

    asyncio.run(run())


def test_a_body_over_the_bound_is_not_read_to_its_end():
    async def run() -> None:
        replay = reader(requests([b"ab", b"cd"]))  # reading on would fail: there is no third message
        ahead = await replay.read(3)
        assert ahead == (b"abc", 4, False, False)
        endless = reader([{"type": "http.request", "body": b"abcd", "more_body": True}])
        assert await endless.read(3) == (b"abc", 4, False, False)

    asyncio.run(run())


def test_a_client_that_leaves_before_its_end_is_told_to_the_app_as_well():
    async def run() -> None:
        sent: list[Message] = [
            {"type": "http.request", "body": b"ab", "more_body": True},
            {"type": "http.disconnect"},
        ]
        replay = reader(list(sent))
        assert (await replay.read(100)).left
        assert [await replay(), await replay()] == sent

    asyncio.run(run())


def test_an_error_of_the_servers_receive_is_the_apps_to_handle():
    async def run() -> None:
        first: Message = {"type": "http.request", "body": b"ab", "more_body": True}
        replay = reader([first, ValueError("413")])
        assert await replay.read(100) == (b"ab", 2, False, False)
        assert await replay() is first
        with pytest.raises(ValueError, match="413"):
            await replay()

    asyncio.run(run())


def start(status: int = 200, kind: bytes = b"text/event-stream", **headers: bytes) -> Message:
    more = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": [(b"Content-Type", kind), *more]}


def chunk(body: bytes, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


EVENTS = (
    b'data: {"choices": [{"delta": {"content": "a\xc3\xa4"}}]}\n\n'
    b'data: {"choices": [], "usage": {"completion_tokens": 41, '
    b'"prompt_tokens_details": {"cached_tokens": 2}}}\n\n'
    b"data: [DONE]\n\n"
)


@settings(deadline=None)
@given(st.lists(st.integers(0, len(EVENTS)), max_size=12))
def test_usage_does_not_depend_on_where_the_answer_is_cut(cuts: list[int]):
    answer = Answer("r-1")
    edges = [0, *sorted(cuts), len(EVENTS)]
    messages = [start(), *(chunk(EVENTS[a:b]) for a, b in pairwise(edges))]
    assert not any(answer.take(message) for message in messages)
    assert answer.take(chunk(b"", more=False))
    settled = answer.settlement()
    assert (settled.output_tokens, settled.cached_tokens, settled.outcome) == (41, 2, "served")


@pytest.mark.parametrize(
    ("status", "left", "outcome"),
    [
        (200, False, "served"),
        (429, False, "shed"),
        (529, False, "shed"),
        (500, False, "failed"),
        (400, False, "failed"),
        (200, True, "aborted"),
    ],
)
def test_the_status_tells_how_it_ended(status: int, left: bool, outcome: Outcome):
    answer = Answer("r-1")
    answer.take(start(status, b"application/json"))
    answer.take(chunk(json.dumps({"usage": {"completion_tokens": 3}}).encode(), more=False))
    answer.left = left
    assert (answer.settlement().outcome, answer.settlement().output_tokens) == (outcome, 3)


def test_output_that_was_counted_from_events_is_told_as_an_estimate():
    counted, told = Answer("r-1"), Answer("r-2")
    piece = b'data: {"choices": [{"delta": {"content": "tide"}}]}\n\n'
    for answer, end in ((counted, b""), (told, b'data: {"usage": {"completion_tokens": 9}}\n\n')):
        answer.take(start())
        answer.take(chunk(piece * 3 + end + b"data: [DONE]\n\n", more=False))

    assert (counted.settlement().output_tokens, counted.settlement().estimated) == (3, True)
    assert (told.settlement().output_tokens, told.settlement().estimated) == (9, False)


def test_an_engines_own_shed_is_told_apart():
    answer = Answer("r-1")
    answer.take(start(503, b"text/plain", x_llm_d_request_dropped_reason=b"rejected-no-endpoints"))
    answer.take(chunk(b"inference error", more=False))
    assert (answer.settlement().outcome, answer.settlement().output_tokens) == ("shed", None)


def test_an_answer_that_never_began_tells_nothing_and_failed():
    settled = Answer("r-1").settlement()
    assert (settled.outcome, settled.output_tokens) == ("failed", None)


def test_a_file_sent_by_the_server_ends_the_answer():
    answer = Answer("r-1")
    answer.take(start(kind=b"audio/wav"))
    assert answer.take({"type": "http.response.pathsend", "path": "/x.wav"})
    assert (answer.settlement().outcome, answer.settlement().output_tokens) == ("served", None)
