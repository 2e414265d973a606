import asyncio

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from serving.http.limits import MOST_STREAMS, STREAMS, Limits

BOUNDS = {"max_url_bytes": 100, "max_header_bytes": 1_000, "max_requests": 3, "body_timeout_s": 60.0}


async def length(scope: Scope, receive: Receive, send: Send) -> None:
    body = await Request(scope, receive).body()
    await PlainTextResponse(str(len(body)))(scope, receive, send)


def limited(**bounds: float) -> Limits:
    return Limits(length, registry=CollectorRegistry(), **BOUNDS | bounds)  # type: ignore[arg-type]


async def post(app: Limits, path: str = "/", **more: object) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        return await client.post(path, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {}, 200),
        ("/" + "a" * 99, {}, 200),
        ("/" + "a" * 100, {}, 414),
        ("/?q=" + "a" * 100, {}, 414),
        ("/", {"x-much": "h" * 1_000}, 431),
    ],
)
def test_long_addresses_and_headers_are_refused(path: str, headers: dict, status: int) -> None:
    answer = asyncio.run(post(limited(), path, headers=headers))
    assert answer.status_code == status
    if status != 200:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["connection"] == "close"


def test_a_body_that_does_not_end_in_time_is_a_408() -> None:
    async def slow():
        yield b"a"
        await asyncio.Event().wait()

    async def call() -> tuple[int, int]:
        app = limited(body_timeout_s=0.05)
        sent: list = []
        chunks = slow()

        async def receive() -> dict:
            return {"type": "http.request", "body": await anext(chunks), "more_body": True}

        async def send(message: dict) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/",
            "raw_path": b"/",
            "query_string": b"",
            "headers": [],
        }
        await app(scope, receive, send)  # type: ignore[arg-type]
        return sent[0]["status"], app.open

    assert asyncio.run(call()) == (408, 0)


def test_more_requests_at_once_than_the_bound_are_told_to_come_back_but_probes_are_answered() -> None:
    async def call() -> tuple[list[int], int, int]:
        gate = asyncio.Event()

        async def wait(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] == "/":
                await gate.wait()
            await length(scope, receive, send)

        app = limited()
        app.app = wait
        waiting = [asyncio.create_task(post(app, content=b"abc")) for _ in range(3)]
        while app.open < 3:
            await asyncio.sleep(0)
        over = await post(app)
        probe = await post(app, "/readyz")
        gate.set()
        assert (over.headers["retry-after"], over.headers["x-should-retry"]) == ("1", "true")
        return (
            [answer.status_code for answer in await asyncio.gather(*waiting)],
            over.status_code,
            probe.status_code,
        )

    assert asyncio.run(call()) == ([200, 200, 200], 503, 200)


def test_streams_of_the_policy_take_no_room_from_requests_and_are_bounded_by_themselves() -> None:
    async def call() -> tuple[int, list[int], int, int]:
        ends = asyncio.Event()

        async def lasting(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] in STREAMS:
                await ends.wait()
            await length(scope, receive, send)

        registry = CollectorRegistry()
        app = Limits(lasting, registry=registry, **BOUNDS)  # type: ignore[arg-type]
        reading = [asyncio.create_task(post(app, STREAMS[0])) for _ in range(MOST_STREAMS)]
        while app.streams < MOST_STREAMS:
            await asyncio.sleep(0)
        over, request = await post(app, STREAMS[0]), await post(app, "/v1/admit")
        ends.set()
        lasted = [answer.status_code for answer in await asyncio.gather(*reading)]
        assert registry.get_sample_value("tidegate_over_limit_total", {"limit": "streams"}) == 1
        return over.status_code, lasted, request.status_code, app.streams + app.open

    assert asyncio.run(call()) == (503, [200] * MOST_STREAMS, 200, 0)
