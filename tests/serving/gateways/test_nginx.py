"""The example configuration in a real nginx, before a real Tidegate and a small engine."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from models.bundle import Bundle
from serving.app import create_app
from serving.clock import ManualClock
from serving.controller.degradation import DegradationRules
from serving.controller.rules import Rules
from serving.gateways.asgi_degrade import DegradeMiddleware
from serving.http.keys import parse
from serving.http.messages import AdmitRequest, SettleRequest
from serving.settings import Settings
from tests.serving.live_apps import running, until

CONFIG = Path(__file__).resolve().parents[3] / "deploy" / "nginx" / "nginx.conf"
KEY = {"authorization": "Bearer sk-demo"}
FORGED = {
    "x-tidegate-reservation-id": "r-forged",
    "x-tidegate-tenant": "boss",
    "x-tidegate-prompt-tokens": "1",
    "x-tidegate-lane": "premium",
    "x-tidegate-clamp-output-tokens": "1",
    "x-tidegate-model": "theirs",
    "x-tidegate-pool": "cold",
    "x-tidegate-max-wait-ms": "1",
    "x-tidegate-hold-s": "1",
    "x-tidegate-key": "forged",
}
CAPACITY_TOKENS = 100_000
LEASE_S, HOLD_S = 120.0, 900.0
TIDEGATE_KEY = "edge-" + "e" * 40
RULES = Rules(
    capacity_tokens=CAPACITY_TOKENS, lease_s=LEASE_S, degradation=DegradationRules(hot_tokens=1_000)
)


class Engine:
    """An engine whose answer the body's ``act`` chooses: a status, or a stream that waits to be released."""

    def __init__(self) -> None:
        self.seen: list[dict[str, str]] = []
        self.bodies: list[dict[str, Any]] = []
        self.released = threading.Event()
        self.app = Starlette(routes=[Route("/{path:path}", self.answer, methods=["GET", "POST"])])

    async def answer(self, request: Request) -> Response:
        self.seen.append(dict(request.headers))
        self.bodies.append(json.loads(await request.body() or b"{}"))
        act = self.bodies[-1].get("act", 200)
        if act == "hold":
            return StreamingResponse(self.hold(), media_type="text/event-stream")
        return JSONResponse({"by": "engine"}, act)

    async def hold(self) -> Any:
        yield "data: {}\n\n"
        while not self.released.is_set():
            await asyncio.sleep(0.005)
        yield "data: [DONE]\n\n"


class Stack:
    """nginx, Tidegate and the engine, and what went through them."""

    def __init__(self, engine: Engine, cold: Engine, service: Any, urls: dict[str, str]) -> None:
        self.engine, self.cold, self.service, self.urls = engine, cold, service, urls
        self.clock: ManualClock = service.clock
        self.asked: list[AdmitRequest] = []
        self.settled: list[SettleRequest] = []
        admit, settle = service.admit, service.settle

        def noted_admit(request: AdmitRequest) -> Any:
            self.asked.append(request)
            return admit(request)

        def noted_settle(request: SettleRequest) -> bool:
            known = bool(settle(request))
            self.settled.append(request)
            return known

        service.admit, service.settle = noted_admit, noted_settle
        self.client = httpx.Client(headers=KEY, timeout=60)

    def post(self, to: str = "main", headers: dict[str, str] | None = None, **body: object) -> httpx.Response:
        body = {"model": "m", "prompt": "a" * 400} | body
        return self.client.post(self.urls[to] + "/v1/completions", json=body, headers=headers)

    def stream(self) -> Any:
        body = {"prompt": "a" * 400, "act": "hold"}
        return self.client.stream("POST", self.urls["main"] + "/v1/completions", json=body)

    def fill(self) -> list[str]:
        """Names of reservations that leave no room for a long prompt."""
        names = []
        request = AdmitRequest(prompt_tokens=CAPACITY_TOKENS // 4, max_tokens=100)
        while name := self.service.admit(request).reservation_id:
            names.append(name)
        self.asked.clear()
        return names

    def free(self, names: list[str]) -> None:
        for name in names:
            self.service.settle(SettleRequest(reservation_id=name, outcome="shed"))
        self.settled.clear()

    def waiting(self) -> int:
        lanes = self.service.controller.snapshot(self.clock.monotonic_s()).lanes.values()
        return sum(lane.waiting for lane in lanes)

    def overload(self, step: int) -> None:
        """Let the ladder of degradation stand at a step; 0 lets it come down."""
        for _ in range(step):
            self.service.controller.observe_engine(
                self.clock.monotonic_s(), queue_depth=6_000, batch_tokens=0, kv_miss_rate=0
            )
            self.clock.advance(RULES.degradation.climb_s)
        if not step:
            self.clock.advance(RULES.degradation.calm_s + RULES.engine_stale_s)

    def metric(self, name: str) -> float:
        return self.service.metrics.registry.get_sample_value(name) or 0.0

    def held(self) -> int:
        return int(self.service.controller.snapshot(self.service.clock.monotonic_s()).held_tokens)

    def count(self, result: str) -> float:
        registry = self.service.metrics.registry
        return registry.get_sample_value("tidegate_nginx_checks_total", {"result": result}) or 0.0

    def last(self) -> SettleRequest:
        """The next settlement; afterwards nothing is held."""
        found = until(lambda: self.settled and self.settled.pop(0))
        until(lambda: self.held() == 0)
        return found


@contextlib.contextmanager
def nginx(
    folder: Path, engine_port: int, cold_port: int, tidegate_port: int, key: str, max_wait_ms: int
) -> Iterator[str]:
    """The example on our ports, with a key; yields the address to send to."""
    command = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if command is None:
        pytest.skip("no nginx here; apt-get install nginx-light brings one")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    mine = "worker_processes 1; daemon off;"
    if os.geteuid() == 0:
        mine += " user root root;"  # else its workers may not write into the folder of a test
    text = CONFIG.read_text().replace("worker_processes auto;", mine)
    text = re.sub("(200ms|1s);", "60s;", text)  # a busy machine is no outage
    text = text.replace("Max-Wait-Ms 800;", f"Max-Wait-Ms {max_wait_ms};")
    text = re.sub("# (proxy_set_header X-Tidegate-Key) TIDEGATE_KEY;", rf"\1 {key};", text)
    text = re.sub(r"(upstream engine_cold [^}]*)127\.0\.0\.1:8000;", rf"\g<1>127.0.0.1:{cold_port};", text)
    for example, real in ((8000, engine_port), (8311, tidegate_port), (10000, port)):
        text = re.sub(rf"127\.0\.0\.1:{example};", f"127.0.0.1:{real};", text)
    text = text.replace("/tmp/tidegate-nginx.pid", f"{folder}/nginx.pid")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    written = folder / "nginx.conf"
    written.write_text(text.replace("http {", "http { " + paths))
    with (folder / "stderr").open("w") as stderr:
        process = subprocess.Popen([command, "-e", "stderr", "-c", written], stderr=stderr)
    try:
        until(lambda: process.poll() is not None or accepts(port))
        assert process.poll() is None, (folder / "stderr").read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


@pytest.fixture(scope="module")
def stack(
    bundle_folder: Callable[[float | None], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    engine, cold = Engine(), Engine()
    settings = Settings(rules=RULES, keys=tuple(parse(f"edge admit {TIDEGATE_KEY}", "keys")))
    app = create_app(Bundle.load(bundle_folder(None)), settings, ManualClock(1_700_000_000_000_000))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        nobody = probe.getsockname()[1]
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(running(one)) for one in (DegradeMiddleware(engine.app), cold.app, app)]
        # Where it is no matter, nothing waits: the clock stands still.
        listeners = {
            "main": (*ports, TIDEGATE_KEY, 0),
            "down": (*ports[:2], nobody, TIDEGATE_KEY, 0),
            "queues": (*ports, TIDEGATE_KEY, 800),
            "locked": (*ports, "k" * 40, 0),
        }
        urls = {
            name: stack.enter_context(nginx(tmp_path_factory.mktemp("nginx"), *told))
            for name, told in listeners.items()
        }
        yield Stack(engine, cold, app.state.service, urls)
        engine.released.set()


@pytest.fixture(autouse=True)
def fresh(stack: Stack) -> Iterator[None]:
    stack.engine.released.clear()
    stack.settled.clear()
    stack.asked.clear()
    yield
    stack.engine.released.set()
    until(lambda: stack.held() == 0)


def test_an_admitted_request_carries_its_reservation_and_is_freed_when_it_has_ended(stack: Stack):
    assert stack.post(headers=FORGED).json() == {"by": "engine"}
    seen = stack.engine.seen[-1]
    assert seen["x-tidegate-tenant"] == "acme"
    assert "x-tidegate-prompt-tokens" not in seen
    assert "x-tidegate-lane" not in seen
    assert "authorization" not in seen
    settled = stack.last()
    assert settled.reservation_id == seen["x-tidegate-reservation-id"] != "r-forged"
    assert (settled.outcome, settled.output_tokens) == ("served", None)


def test_the_length_of_the_body_is_all_that_tells_how_long_the_prompt_is(stack: Stack):
    answer = stack.post(headers=FORGED | {"x-llm-d-slo-ttft-ms": "30000", "x-tidegate-session": "talk-1"})
    length = int(answer.request.headers["content-length"])
    (asked,) = stack.asked
    assert (asked.prompt_tokens, asked.max_tokens) == (-(-length // 4), None)
    assert (asked.tenant, asked.lane, asked.deadline_ms) == ("acme", None, 30_000)
    assert asked.session == "talk-1"  # names a conversation of its own tenant: it can't be another's
    assert asked.request_id == stack.engine.seen[-1]["x-request-id"]


def test_a_refusal_reaches_an_openai_client_as_429_with_its_body_and_its_advice(stack: Stack):
    held = stack.fill()
    reached, refused = len(stack.engine.seen), stack.count("refused")
    answer = stack.post(prompt="a" * 100_000)
    stack.free(held)
    assert (answer.status_code, answer.headers["content-type"]) == (429, "application/json")
    error = answer.json()["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert (error["param"], error["code"]) == (None, "rate_limit_exceeded")
    after_ms = int(answer.headers["retry-after-ms"])
    assert int(answer.headers["retry-after"]) == -(-after_ms // 1_000) > 0
    assert f"Retry after {answer.headers['retry-after']} s." in error["message"]
    assert answer.headers["x-should-retry"] == "true"
    assert answer.headers["x-tidegate-reason"] in ("saturated", "lane_budget")
    assert answer.headers["x-llm-d-request-dropped-reason"] == "rejected-saturated"
    assert (len(stack.engine.seen), stack.count("refused")) == (reached, refused + 1)


def test_what_can_never_be_admitted_is_refused_without_a_time_to_come_back(stack: Stack):
    answer = stack.post(prompt="a" * 600_000)
    assert (answer.status_code, answer.headers["x-tidegate-reason"]) == (429, "too_large")
    assert answer.headers["x-should-retry"] == "false"
    assert not {"retry-after", "retry-after-ms", "x-llm-d-request-dropped-reason"} & set(answer.headers)


@pytest.mark.parametrize(
    ("status", "outcome"), [(403, "failed"), (500, "failed"), (429, "shed"), (401, "failed")]
)
def test_the_engines_own_errors_pass_untouched(stack: Stack, status: int, outcome: str):
    reached = len(stack.engine.seen)
    answer = stack.post(act=status)
    assert (answer.status_code, answer.json()) == (status, {"by": "engine"})
    assert "x-tidegate-reason" not in answer.headers
    assert len(stack.engine.seen) == reached + 1
    assert stack.last().outcome == outcome


def test_while_tidegate_is_down_requests_go_in_whole_and_forged_headers_do_not(stack: Stack):
    answer = stack.post("down", headers=FORGED, prompt="a" * 50_000)
    assert (answer.status_code, answer.json()) == (200, {"by": "engine"})
    seen = stack.engine.seen[-1]
    assert seen["content-length"] == answer.request.headers["content-length"]
    assert {name for name in seen if name in FORGED} == {"x-tidegate-tenant"}
    assert stack.post("down", act=403).status_code == 403
    assert not stack.settled


def test_a_failure_of_ours_lets_the_request_in_counted_and_logged(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def broken(_: AdmitRequest) -> Any:
        raise RuntimeError("broken")

    failed = stack.count("failed_open")
    monkeypatch.setattr(stack.service, "admit", broken)
    assert stack.post(headers=FORGED).status_code == 200
    assert "x-tidegate-reservation-id" not in stack.engine.seen[-1]
    assert stack.count("failed_open") == failed + 1
    assert "nginx's check failed" in caplog.text


def test_a_client_that_leaves_frees_its_reservation(stack: Stack):
    with stack.stream() as answer:
        seen = answer.iter_text()  # kept: when it goes, httpx closes the connection
        assert next(seen) == "data: {}\n\n"  # not held back by a buffer
        assert stack.held() > 0
    assert stack.last().outcome == "aborted"


def test_an_application_that_settles_first_tells_the_tokens(stack: Stack):
    with stack.stream() as answer:
        seen = answer.iter_text()
        next(seen)
        reservation_id = stack.engine.seen[-1]["x-tidegate-reservation-id"]
        told = SettleRequest(reservation_id=reservation_id, output_tokens=7, outcome="served")
        assert stack.service.settle(told)
        stack.engine.released.set()
        assert list(seen) == ["data: [DONE]\n\n"]
    assert stack.last() == told
    # nginx's own comes later and changes nothing.
    assert until(lambda: stack.settled)[0].outcome == "served"


def test_a_request_that_calls_no_model_passes_undecided(stack: Stack):
    passed = stack.count("passed")
    assert stack.client.get(stack.urls["main"] + "/v1/models?x=1", headers=FORGED).status_code == 200
    assert "x-tidegate-reservation-id" not in stack.engine.seen[-1]
    assert (stack.count("passed"), stack.asked) == (passed + 1, [])


def test_a_key_that_nobody_knows_is_turned_away_unasked(stack: Stack):
    answer = httpx.post(stack.urls["main"] + "/v1/completions", json={}, headers=FORGED)
    assert (answer.status_code, stack.asked) == (401, [])


def test_an_overloaded_engines_wishes_reach_it_and_the_client_may_go_on(stack: Stack):
    stack.overload(1)
    answer = stack.post(headers=FORGED, max_tokens=4_000)
    seen = stack.engine.seen[-1]
    assert seen["x-tidegate-clamp-output-tokens"] == "1024"
    assert not {"x-tidegate-model", "x-tidegate-pool"} & set(seen)
    assert stack.engine.bodies[-1]["max_tokens"] == 1_024  # set by the middleware in front of the engine
    handle = answer.headers["x-tidegate-continuation"]
    stack.last()
    stack.post(headers={"x-tidegate-continuation": handle})
    assert stack.asked[-1].continuation == handle
    assert "x-tidegate-continuation" not in stack.engine.seen[-1]
    assert stack.service.controller._gate.overload.continuations.unknown == 0
    stack.overload(0)
    assert "x-tidegate-continuation" not in stack.post(headers=FORGED).headers
    assert "x-tidegate-clamp-output-tokens" not in stack.engine.seen[-1]


def test_long_prompts_go_to_the_cold_pool_of_a_heavily_overloaded_engine_and_nowhere_else(stack: Stack):
    reached = len(stack.engine.seen)
    stack.post(headers=FORGED)
    stack.overload(3)
    stack.post(headers=FORGED)
    assert (len(stack.engine.seen), stack.cold.seen) == (reached + 2, [])
    stack.post(prompt="a" * 16_000)
    assert (len(stack.engine.seen), len(stack.cold.seen)) == (reached + 2, 1)
    stack.overload(0)


def test_a_stream_over_its_lease_keeps_its_reservation_until_it_ends(stack: Stack):
    with stack.stream() as answer:
        seen = answer.iter_text()
        next(seen)
        assert stack.metric("tidegate_nginx_held") == 1
        for _ in range(12):
            stack.clock.advance(LEASE_S / 3)
            until(lambda: renewed(stack))
        assert stack.held() > 0
        stack.engine.released.set()
        assert list(seen) == ["data: [DONE]\n\n"]
    assert stack.last().outcome == "served"
    assert stack.metric("tidegate_nginx_held") == 0


def renewed(stack: Stack) -> bool:
    ends_s = stack.clock.monotonic_s() + LEASE_S
    return [held.lease_ends_s for held in stack.service._admitted.values()] == [ends_s]


def test_what_nginx_never_ends_is_freed_after_the_time_that_it_said(stack: Stack):
    with stack.stream() as answer:
        seen = answer.iter_text()
        next(seen)
        begun_s = stack.clock.monotonic_s()
        while stack.held() and stack.clock.monotonic_s() - begun_s <= HOLD_S:
            stack.clock.advance(LEASE_S / 12)
            time.sleep(0.01)  # for the task that renews
        took_s = stack.clock.monotonic_s() - begun_s
        assert HOLD_S - LEASE_S <= took_s <= HOLD_S
        until(lambda: stack.metric("tidegate_nginx_held") == 0)


def test_a_check_waits_for_its_turn(stack: Stack):
    held, reached = stack.fill(), len(stack.engine.seen)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(stack.post, "queues", prompt="a" * 100_000)
        until(lambda: stack.waiting() == 1)
        assert len(stack.engine.seen) == reached
        stack.free(held)
        assert answer.result().status_code == 200
    assert stack.last().outcome == "served"


def test_a_check_whose_turn_does_not_come_is_refused_in_time(stack: Stack):
    held = stack.fill()
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(stack.post, "queues", headers=FORGED, prompt="a" * 100_000)
        until(lambda: stack.waiting() == 1)
        stack.clock.advance(0.79)  # the client's own word does not count
        stack.service.waiting.look()
        assert stack.waiting() == 1
        stack.clock.advance(0.02)
        stack.service.waiting.look()
        assert (answer.result().status_code, answer.result().headers["x-tidegate-reason"]) == (
            429,
            "wait_expired",
        )
    stack.free(held)


def test_a_client_that_leaves_while_its_check_waits_leaves_the_queue(stack: Stack):
    held, left = stack.fill(), stack.count("left")
    tokens, reached = stack.held(), len(stack.engine.seen)
    url, body = stack.urls["queues"] + "/v1/completions", {"prompt": "a" * 100_000}
    with pytest.raises(httpx.ReadTimeout):
        stack.client.post(url, json=body, timeout=0.5)
    until(lambda: stack.count("left") == left + 1)
    assert (stack.waiting(), stack.held(), len(stack.engine.seen)) == (0, tokens, reached)
    stack.free(held)


def test_a_retry_is_known_by_its_clients_count(stack: Stack):
    stack.post(headers={"x-stainless-retry-count": "1"})
    assert [request.retry_count for request in stack.asked] == [1]


def test_an_nginx_with_a_wrong_key_lets_requests_in_unchecked(stack: Stack):
    registry = stack.service.metrics.registry
    denied = registry.get_sample_value("tidegate_denied_total", {"reason": "unknown"}) or 0.0
    assert stack.post("locked").json() == {"by": "engine"}
    assert "x-tidegate-reservation-id" not in stack.engine.seen[-1]
    assert registry.get_sample_value("tidegate_denied_total", {"reason": "unknown"}) == denied + 1
    assert stack.asked == []
