import asyncio
import json
import logging

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from serving.http.request_ids import SANE, RequestIds
from serving.logs import JsonLines

lines: list[dict] = []


async def logging_app(scope: Scope, receive: Receive, send: Send) -> None:
    record = logging.LogRecord("tidegate", logging.INFO, __file__, 1, "seen", None, None)
    lines.append(json.loads(JsonLines().format(record)))
    await PlainTextResponse("in")(scope, receive, send)


def call(headers: list[tuple[str, bytes]]) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(RequestIds(logging_app))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get("/", headers=headers)  # type: ignore[arg-type]

    return asyncio.run(send())


def test_a_sane_id_is_taken_over_into_answer_and_log() -> None:
    assert call([("x-request-id", b"7c1e:edge-1.2_b")]).headers["x-request-id"] == "7c1e:edge-1.2_b"
    assert lines[-1]["request_id"] == "7c1e:edge-1.2_b"


@pytest.mark.parametrize("told", [b"", b"a b", b'"}{', b"a" * 129, b"\xff\xfe", b"a\tb"])
def test_another_is_replaced_by_a_new_one(told: bytes) -> None:
    answers = [call([("x-request-id", told)]).headers["x-request-id"] for _ in range(2)]
    assert answers[0] != answers[1]
    assert all(SANE.fullmatch(name) for name in answers)
    assert lines[-1]["request_id"] == answers[1]


def test_a_line_of_no_request_has_no_id() -> None:
    record = logging.LogRecord("tidegate", logging.INFO, __file__, 1, "tick", None, None)
    assert "request_id" not in json.loads(JsonLines().format(record))
