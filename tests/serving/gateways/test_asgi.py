import asyncio
import contextlib
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.clock import ManualClock, SystemClock
from serving.controller.degradation import DegradationRules
from serving.controller.rules import Rules
from serving.gateways import asgi
from serving.gateways.asgi import TidegateMiddleware
from serving.gateways.asgi_degrade import DegradeMiddleware
from serving.gateways.in_process import Configuration, RulesAlone
from serving.http.messages import AdmitRequest, SettleRequest
from serving.service import Service
from serving.settings import Settings
from tests.serving.live_apps import running, until

CAPACITY_TOKENS = 100_000
LEASE_S = 30.0


def guard(app: ASGIApp, clock: Any = None, **more: Any) -> TidegateMiddleware:
    chosen = Settings(rules=Rules(capacity_tokens=CAPACITY_TOKENS, lease_s=LEASE_S))
    return TidegateMiddleware(app, Configuration(chosen, **more), clock or ManualClock(1_700_000_000_000_000))


def asked_of(gate: Any) -> list[AdmitRequest]:
    """Notes what the gate is asked."""
    asked, admit = [], gate.admit
    gate.admit = lambda request: asked.append(request) or admit(request)
    return asked


def settled_by(gate: Any) -> list[SettleRequest]:
    """Notes what the gate is told."""
    told, settle = [], gate.settle
    gate.settle = lambda request: told.append(request) or settle(request)
    return told


def held(middleware: TidegateMiddleware) -> int:
    now_s = middleware.gate.clock.monotonic_s()
    return int(middleware.gate.controller.snapshot(now_s).held_tokens)


def count(middleware: TidegateMiddleware, result: str) -> float:
    registry = middleware.gate.metrics.registry
    return registry.get_sample_value("tidegate_asgi_requests_total", {"result": result}) or 0.0


def call(
    app: ASGIApp,
    *parts: bytes | None,
    path: str = "/v1/completions",
    method: str = "POST",
    headers: dict[str, str] | None = None,
) -> list[Message]:
    """What the app sends; a part that is None is a hang-up, which also comes after the last."""
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
    }
    waiting: list[Message] = [
        {"type": "http.disconnect"}
        if part is None
        else {"type": "http.request", "body": part, "more_body": n < len(parts) - 1}
        for n, part in enumerate(parts or (b"",))
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return sent


def status(sent: list[Message]) -> int:
    return int(sent[0]["status"])


class App:
    """Notes every message that it gets, up to the hang-up, and sends what it is told to."""

    def __init__(self, answer: list[Message]) -> None:
        self.answer = answer
        self.got: list[Message] = []
        self.scope: Scope = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        while True:
            message = await receive()
            self.got.append(message)
            if message["type"] == "http.disconnect" or not message["more_body"]:
                break
        for message in self.answer:
            await send(message)


START: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream")],
}
USED = b'data: {"choices": [], "usage": {"completion_tokens": 7}}\n\n'


def chunks(*bodies: bytes) -> list[Message]:
    last = len(bodies) - 1
    return [
        {"type": "http.response.body", "body": body, "more_body": n < last} for n, body in enumerate(bodies)
    ]


def body(**more: object) -> bytes:
    return json.dumps({"model": "m", "prompt": "a" * 400, **more}).encode()


@settings(deadline=None)
@given(
    parts=st.lists(st.one_of(st.binary(max_size=30), st.just(body())), min_size=1, max_size=6),
    leaves=st.booleans(),
    answer=st.lists(st.binary(max_size=30), min_size=1, max_size=6),
    path=st.sampled_from(["/v1/completions", "/v1/chat/completions", "/v1/models", "/health"]),
)
def test_app_and_client_see_the_same_messages_with_and_without_it(
    parts: list[bytes], leaves: bool, answer: list[bytes], path: str
):
    sent = [*parts[:-1], None] if leaves else parts
    bare, guarded = App([START, *chunks(*answer)]), App([START, *chunks(*answer)])
    middleware = guard(guarded)
    assert call(middleware, *sent, path=path) == call(bare, *sent, path=path)
    assert guarded.got == bare.got
    assert held(middleware) == 0


def test_a_request_is_judged_by_what_its_body_asks_for_however_it_is_cut():
    middleware = guard(App([START, *chunks(b"")]))
    asked = asked_of(middleware.gate)
    whole = body(max_tokens=50, max_completion_tokens=60, n=2)
    call(middleware, whole)
    call(middleware, *(whole[n : n + 1] for n in range(len(whole))))
    first, second = asked
    assert first == second
    assert (first.prompt_tokens, first.model, first.max_tokens) == (100, "m", 50)
    assert (first.max_completion_tokens, first.n) == (60, 2)


def test_the_app_is_given_the_decision():
    app = App([START, *chunks(b"")])
    call(guard(app), body())
    assert app.scope["tidegate"].admitted
    assert app.scope["tidegate"].lane == "standard"


def test_headers_of_a_gateway_count_only_where_one_is_trusted():
    forged = {
        "x-tidegate-tenant": "boss",
        "x-tidegate-lane": "premium",
        "x-tidegate-prompt-tokens": "1",
        "x-request-id": "q-1",
        "x-tidegate-session": "talk-1",
    }
    for trust_headers in (False, True):
        middleware = guard(App([START, *chunks(b"")]), trust_headers=trust_headers)
        asked = asked_of(middleware.gate)
        call(middleware, body(), headers=forged)
        (request,) = asked
        told = (request.tenant, request.lane, request.prompt_tokens)
        assert told == (("boss", "premium", 1) if trust_headers else (None, None, 100))
        assert (request.request_id, request.session) == ("q-1", "talk-1")


def test_a_body_over_the_bound_is_measured_and_a_recording_is_not():
    middleware = guard(App([START, *chunks(b"")]))
    asked = asked_of(middleware.gate)
    long = body(prompt="a" * 300_000)
    call(middleware, long, headers={"content-length": str(len(long))})
    call(
        middleware, b"\0" * 300_000, path="/v1/audio/transcriptions", headers={"content-type": "multipart/x"}
    )
    assert [request.prompt_tokens for request in asked] == [-(-len(long) // 4), 1_024]


def test_a_refusal_is_the_services_429_and_the_app_is_not_asked():
    app = App([START, *chunks(b"")])
    middleware = guard(app)
    while middleware.gate.admit(AdmitRequest(prompt_tokens=20_000, max_tokens=100)).admitted:
        pass
    start, *rest = call(middleware, body(prompt="a" * 100_000))
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    assert (start["status"], headers["content-type"]) == (429, "application/json")
    assert int(headers["retry-after"]) == -(-int(headers["retry-after-ms"]) // 1_000) > 0
    assert headers["x-should-retry"] == "true"
    assert json.loads(rest[0]["body"])["error"]["code"] == "rate_limit_exceeded"
    assert (app.got, count(middleware, "refused")) == ([], 1)


def test_what_calls_no_model_is_not_looked_at():
    middleware = guard(App([START, *chunks(b"")]))
    asked = asked_of(middleware.gate)
    for path, method in (
        ("/health", "GET"),
        ("/v1/models", "GET"),
        ("/metrics", "GET"),
        ("/tokenize", "POST"),
    ):
        call(middleware, body(), path=path, method=method)
    call(middleware, path="/v1/completions", method="GET")
    assert not asked


def test_a_client_that_leaves_before_its_body_ends_reserves_nothing():
    app = App([])
    middleware = guard(app)
    asked = asked_of(middleware.gate)
    call(middleware, b'{"prompt": ', None)
    assert (asked, count(middleware, "left"), len(app.got)) == ([], 1, 2)


def test_an_app_that_fails_frees_what_was_reserved_and_its_error_passes():
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise KeyError("the app's own")

    middleware = guard(broken)
    told = settled_by(middleware.gate)
    with pytest.raises(KeyError, match="the app's own"):
        call(middleware, body())
    assert (held(middleware), [request.outcome for request in told]) == (0, ["failed"])


def test_a_send_that_tells_of_a_client_gone_is_an_abort():
    middleware = guard(App([START, *chunks(USED, b"")]))
    told = settled_by(middleware.gate)

    async def receive() -> Message:
        return {"type": "http.request", "body": body(), "more_body": False}

    async def send(message: Message) -> None:
        raise OSError("gone")

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
    with pytest.raises(OSError, match="gone"):
        asyncio.run(middleware(scope, receive, send))
    assert (held(middleware), [request.outcome for request in told]) == (0, ["aborted"])


@pytest.mark.parametrize("broken", ["admit", "settle", "size"])
def test_a_fault_of_ours_fails_no_request(
    broken: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    def fault(*_: Any, **more: Any) -> Any:
        raise RuntimeError("our fault")

    app = App([START, *chunks(USED, b"")])
    middleware = guard(app)
    if broken == "size":
        monkeypatch.setattr(asgi, "prompt_size", fault)
    else:
        setattr(middleware.gate, broken, fault)
    assert call(middleware, body()) == app.answer
    assert "our fault" in caplog.text
    faults = middleware.gate.metrics.registry.get_sample_value("tidegate_asgi_answer_faults_total")
    assert (count(middleware, "failed_open"), faults) == ((0, 1) if broken == "settle" else (1, 0))


def test_a_lease_is_renewed_for_as_long_as_the_app_works():
    clock = ManualClock(1_700_000_000_000_000)
    seen: list[int] = []
    renewed: list[str] = []

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0)  # the task that renews begins
        for times in range(1, 7):
            clock.advance(LEASE_S / 2)
            while len(renewed) < times:
                await asyncio.sleep(0)
            seen.append(held(middleware))
        for message in [START, *chunks(b"")]:
            await send(message)

    middleware = guard(slow, clock)
    renew = middleware.gate.renew
    middleware.gate.renew = lambda name: renewed.append(name) or renew(name)
    call(middleware, body())
    assert (min(seen) > 0, len(seen), held(middleware)) == (True, 6, 0)


def test_a_configuration_that_cant_be_used_stops_the_start_and_fails_no_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("TIDEGATE_CONFIG", str(tmp_path / "absent.yaml"))
    app = App([START, *chunks(b"")])
    middleware = TidegateMiddleware(app)
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "lifespan.startup"}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(middleware({"type": "lifespan"}, receive, send))
    (failed,) = sent
    assert failed["type"] == "lifespan.startup.failed"
    assert "absent.yaml" in failed["message"]
    # In the message itself: a server's own formatter shows nothing else of a record.
    assert [text.startswith("Tidegate guards nothing: ") for text in caplog.messages] == [True]
    assert "absent.yaml" in caplog.text
    assert call(middleware, body()) == app.answer


def test_without_arguments_it_goes_by_configure(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(asgi, "_configured", None)
    asgi.configure(Configuration(Settings(rules=Rules(capacity_tokens=123))))
    gate = TidegateMiddleware(App([])).gate
    assert isinstance(gate, RulesAlone)
    assert gate.controller.rules.capacity_tokens == 123


class Engine:
    """Answers as much of OpenAI's API as is needed; `released` lets a held stream go on."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.asked: list[dict[str, Any]] = []
        self.lengths: list[tuple[int, int]] = []

    async def answer(self, request: Request) -> Response:
        self.lengths.append((int(request.headers["content-length"]), len(await request.body())))
        self.asked.append(await request.json())
        act = self.asked[-1].get("act")
        if act == "hold":
            return StreamingResponse(self.hold(), media_type="text/event-stream")
        return JSONResponse({"usage": {"completion_tokens": 5}})

    async def hold(self) -> AsyncIterator[bytes]:
        yield b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
        while not self.released.is_set():
            await asyncio.sleep(0.005)
        yield USED[:20]
        yield USED[20:]


def test_a_real_server_with_the_forecast_in_its_process(bundle_folder: Callable[[float | None], Path]):
    made: list[TidegateMiddleware] = []

    def middleware(app: ASGIApp) -> TidegateMiddleware:
        made.append(guard(app, SystemClock(), bundle=bundle_folder(None)))
        return made[-1]

    async def home(_: Request) -> Response:
        return PlainTextResponse("home")

    engine = Engine()
    routes = [Route("/", home), Route("/v1/completions", engine.answer, methods=["POST"])]
    with running(Starlette(routes=routes, middleware=[Middleware(middleware)])) as port:
        url = f"http://127.0.0.1:{port}"
        (guarded,) = made
        told = settled_by(guarded.gate)
        assert isinstance(guarded.gate, Service)
        assert httpx.get(url).text == "home"
        assert httpx.post(url + "/v1/completions", content=body()).json()["usage"]["completion_tokens"] == 5
        assert (told[0].output_tokens, told[0].outcome) == (5, "served")

        held_back = body(act="hold")
        with httpx.stream("POST", url + "/v1/completions", content=held_back, timeout=60) as answer:
            seen = answer.iter_bytes()  # kept: when it goes, httpx closes the connection
            next(seen)
            assert held(guarded) > 0
        until(lambda: held(guarded) == 0)  # the client has left
        assert (told[1].output_tokens, told[1].outcome) == (1, "aborted")

        engine.released.set()
        assert httpx.post(url + "/v1/completions", content=held_back, timeout=60).content.endswith(USED)
        assert (told[2].output_tokens, told[2].outcome) == (7, "served")
        assert (
            'tidegate_asgi_requests_total{result="admitted"} 3.0' in httpx.get(url + "/tidegate/metrics").text
        )
        assert until(lambda: guarded.gate.predictor.seen)


def test_nothing_stays_reserved_when_streams_are_cut_at_random_points(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.ERROR)
    middleware = guard(App([START, *chunks(*[USED] * 5)]))

    async def cut(after: int) -> None:
        waiting: list[Message] = [{"type": "http.request", "body": body(), "more_body": False}]
        sent = 0

        async def receive() -> Message:
            return waiting.pop(0) if waiting else {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            nonlocal sent
            sent += 1
            await asyncio.sleep(0)
            if sent > after:
                raise asyncio.CancelledError

        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
        with contextlib.suppress(asyncio.CancelledError):
            await middleware(scope, receive, send)

    async def run() -> None:
        await asyncio.gather(*(cut(number % 7) for number in range(70)))

    asyncio.run(run())
    assert (held(middleware), count(middleware, "admitted")) == (0, 70)
    assert not caplog.records


LADDER = DegradationRules(smaller_models={"m": "m-mini"}, climb_s=0.001)
RULES = Rules(capacity_tokens=CAPACITY_TOKENS, degradation=LADDER)


@contextlib.contextmanager
def guarded_engine(**more: Any) -> Iterator[tuple[Engine, TidegateMiddleware, str]]:
    """An engine on a real server, guarded by the rules on the real clock."""
    made: list[TidegateMiddleware] = []

    def middleware(app: ASGIApp) -> TidegateMiddleware:
        made.append(TidegateMiddleware(app, Configuration(Settings(rules=RULES), **more), SystemClock()))
        return made[-1]

    engine = Engine()
    app = Starlette(
        routes=[Route("/v1/{path:path}", engine.answer, methods=["POST"])],
        middleware=[Middleware(middleware)],
    )
    with running(app) as port:
        yield engine, made[0], f"http://127.0.0.1:{port}/v1/completions"
    engine.released.set()


def overload(middleware: TidegateMiddleware, step: int) -> None:
    """Let the rules' ladder stand at a step."""
    controller, clock = middleware.gate.controller, middleware.gate.clock
    for _ in range(step):
        controller.observe_engine(clock.monotonic_s(), queue_depth=6_000, batch_tokens=0, kv_miss_rate=0)
        time.sleep(0.002)


def test_an_overloaded_engine_gets_shorter_answers_on_a_smaller_model_and_the_client_may_go_on():
    with guarded_engine() as (engine, middleware, url):
        assert "x-tidegate-continuation" not in httpx.post(url, content=body(max_tokens=4_000)).headers
        assert engine.asked[-1]["max_tokens"] == 4_000
        overload(middleware, 2)
        answer = httpx.post(url, content=body(max_tokens=4_000, min_tokens=2_000, seed=7))
        assert engine.asked[-1] == {
            "model": "m-mini",
            "prompt": "a" * 400,
            "max_tokens": 1_024,
            "min_tokens": 1_024,
            "seed": 7,
        }
        assert engine.lengths[-1][0] == engine.lengths[-1][1]
        handle = answer.headers["x-tidegate-continuation"]

        asked = asked_of(middleware.gate)
        rest = httpx.post(url, content=body(prompt="a" * 4_500), headers={"x-tidegate-continuation": handle})
        assert asked[0].continuation == handle
        assert engine.asked[-1]["model"] == "m-mini"  # it goes on where it began
        assert rest.headers.get("x-tidegate-continuation") != handle
        assert middleware.gate.controller._gate.overload.continuations.unknown == 0
        assert held(middleware) == 0


def test_a_body_that_cant_be_changed_goes_on_as_it_came_and_is_counted():
    app = App([START, *chunks(b"")])
    middleware = guard(app)
    now_s = middleware.gate.clock.monotonic_s()
    middleware.gate.controller.observe_engine(now_s, queue_depth=6_000, batch_tokens=0, kv_miss_rate=0)
    for odd in (b"[1, 2]", b"\xff\xfe", b";base64," + b"x" * 300_000):
        app.got.clear()
        sent = call(middleware, odd)
        assert app.got[0]["body"] == odd
        assert b"x-tidegate-continuation" not in dict(sent[0]["headers"])
        assert app.scope["tidegate"].clamp_output_tokens == 1_024
    registry = middleware.gate.metrics.registry
    assert registry.get_sample_value("tidegate_asgi_degraded_total", {"result": "not_applied"}) == 3


def test_a_request_waits_for_its_turn_and_is_let_in_as_soon_as_there_is_room():
    with guarded_engine(max_wait_ms=20_000) as (engine, middleware, url), ThreadPoolExecutor() as pool:
        held_back = filled(middleware)
        answer = pool.submit(httpx.post, url, content=body(prompt="a" * 40_000), timeout=60)
        until(lambda: waiting(middleware) == 1)
        assert engine.asked == []
        for reservation_id in held_back:
            middleware.gate.settle(SettleRequest(reservation_id=reservation_id, outcome="served"))
        assert answer.result().json()["usage"]["completion_tokens"] == 5
        assert (waiting(middleware), held(middleware)) == (0, 0)


def test_a_request_whose_turn_does_not_come_is_refused_in_time():
    with guarded_engine(max_wait_ms=50) as (engine, middleware, url):
        filled(middleware)
        answer = httpx.post(url, content=body(prompt="a" * 40_000), timeout=60)
        assert (answer.status_code, answer.headers["x-tidegate-reason"]) == (429, "wait_expired")
        assert (engine.asked, waiting(middleware)) == ([], 0)


def test_a_client_that_leaves_while_it_waits_leaves_the_queue():
    with guarded_engine(max_wait_ms=20_000) as (engine, middleware, url):
        before = filled(middleware)
        tokens = held(middleware)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url, content=body(prompt="a" * 40_000), timeout=0.3)
        until(lambda: count(middleware, "left") == 1)
        assert (waiting(middleware), held(middleware), len(before) > 0) == (0, tokens, True)
        assert engine.asked == []


def test_how_long_to_wait_is_a_gateways_word_and_no_clients():
    for trust_headers in (False, True):
        middleware = guard(App([START, *chunks(b"")]), trust_headers=trust_headers)
        asked: list[AdmitRequest] = []
        middleware.gate.make_room = asked_in(asked)
        call(middleware, body(), headers={"x-tidegate-max-wait-ms": "900", "x-stainless-retry-count": "2"})
        assert asked[0].max_wait_ms == (900 if trust_headers else None)
        assert asked[0].retry_count == 2


def asked_in(asked: list[AdmitRequest]) -> Any:
    async def make_room(request: AdmitRequest) -> None:
        asked.append(request)

    return make_room


def filled(middleware: TidegateMiddleware) -> list[str]:
    """Names of reservations that leave no room for a long prompt."""
    names = []
    request = AdmitRequest(prompt_tokens=5_000, max_tokens=1)
    while name := middleware.gate.admit(request).reservation_id:
        names.append(name)
    return names


def waiting(middleware: TidegateMiddleware) -> int:
    now_s = middleware.gate.clock.monotonic_s()
    return sum(lane.waiting for lane in middleware.gate.controller.snapshot(now_s).lanes.values())


@pytest.mark.parametrize(
    ("told", "asked", "reached"),
    [
        ({"x-tidegate-clamp-output-tokens": "64"}, {"max_tokens": 100}, {"max_tokens": 64}),
        ({"x-tidegate-clamp-output-tokens": "64"}, {}, {"max_tokens": 64}),
        ({"x-tidegate-clamp-output-tokens": "64"}, {"max_tokens": 9}, {"max_tokens": 9}),
        ({"x-tidegate-model": "m-mini"}, {"max_tokens": 9}, {"max_tokens": 9, "model": "m-mini"}),
        (
            {"x-tidegate-clamp-output-tokens": "", "x-tidegate-model": ""},
            {"max_tokens": 9},
            {"max_tokens": 9},
        ),
        ({}, {"max_tokens": 9}, {"max_tokens": 9}),
    ],
)
def test_what_a_gateways_headers_ask_for_is_set_in_the_body(
    told: dict[str, str], asked: dict[str, int], reached: dict[str, Any]
):
    engine = Engine()
    routes = [Route("/v1/{path:path}", engine.answer, methods=["POST"])]
    with running(DegradeMiddleware(Starlette(routes=routes))) as port:
        url = f"http://127.0.0.1:{port}/v1/completions"
        assert httpx.post(url, content=body(**asked), headers=told).status_code == 200
    assert engine.asked[-1] == {"model": "m", "prompt": "a" * 400} | reached
    assert engine.lengths[-1][0] == engine.lengths[-1][1]
