"""The hook in the real LiteLLM proxy.

The proxy's pins clash with ours, so it lives in an environment of its own: `make gateways` makes it, and
TIDEGATE_LITELLM_VENV may name another.
"""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from models.bundle import Bundle
from serving.app import create_app
from serving.clock import ManualClock
from serving.controller.rules import Rules
from serving.gateways import litellm_hook
from serving.service import Service
from serving.settings import Settings
from tests.serving.gateways.side_servers import environment, free_port, started
from tests.serving.live_apps import running, until

VENV = environment("litellm")
pytestmark = pytest.mark.skipif(
    VENV is None, reason="There is no LiteLLM proxy here; `make gateways` brings it."
)
KEY = "sk-test"


class Upstream:
    """Speaks as much of OpenAI's API as the proxy needs; the model's name says what happens."""

    def __init__(self) -> None:
        self.calls: list[dict] = []
        self.app = Starlette(routes=[Route("/v1/chat/completions", self.chat, methods=["POST"])])

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        self.calls.append(body)
        if body["model"] == "broken":
            return JSONResponse({"error": {"message": "broken", "type": "server_error"}}, 500)
        usage = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
        head = {"id": "c", "created": 1, "model": body["model"]}
        if not body.get("stream"):
            message = {"role": "assistant", "content": "the sea"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return JSONResponse(head | {"object": "chat.completion", "choices": [choice], "usage": usage})

        def event(**more: object) -> str:
            return f"data: {json.dumps(head | {'object': 'chat.completion.chunk'} | more)}\n\n"

        async def events() -> AsyncIterator[str]:
            for n in range(10_000 if body["model"] == "endless" else 4):
                yield event(choices=[{"index": 0, "delta": {"content": f"sea {n} "}, "finish_reason": None}])
                await asyncio.sleep(0.01)
            yield event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
            yield event(choices=[], usage=usage) + "data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")


class Proxy:
    def __init__(self, url: str, gate_url: str, service: Service, upstream: Upstream) -> None:
        self.url, self.gate_url, self.service, self.upstream = url, gate_url, service, upstream

    def chat(
        self, model: str = "good", told: Mapping[str, str] | None = None, **more: object
    ) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": "x" * 400}], "max_tokens": 20} | more
        headers = {"authorization": f"Bearer {KEY}"} | dict(told or {})
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, headers=headers, timeout=60)

    def count(self, name: str, **labels: str) -> float:
        registry: CollectorRegistry = self.service.metrics.registry
        return registry.get_sample_value(name, labels) or 0.0

    @property
    def held_tokens(self) -> int:
        return self.service.controller.snapshot(self.service.clock.monotonic_s()).held_tokens


@pytest.fixture(scope="module")
def proxy(
    bundle_folder: Callable[[float | None], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxy]:
    folder = tmp_path_factory.mktemp("proxy")
    shutil.copy(litellm_hook.__file__, folder)
    upstream, settings = Upstream(), Settings(rules=Rules(capacity_tokens=100_000))
    app = create_app(Bundle.load(bundle_folder(None)), settings, ManualClock(1_700_000_000_000_000))
    port = free_port()
    with running(upstream.app) as engine, running(app) as gate:
        models = [
            {
                "model_name": name,
                "litellm_params": {
                    "model": f"openai/{model}",
                    "api_base": f"http://127.0.0.1:{engine}/v1",
                    "api_key": "none",
                },
            }
            for name, model in (
                ("good", "good"),
                ("alias", "good"),
                ("endless", "endless"),
                ("broken", "broken"),
            )
        ]
        config = {
            "model_list": models,
            "litellm_settings": {"callbacks": "litellm_hook.tidegate", "num_retries": 2},
            "router_settings": {"fallbacks": [{"broken": ["good"]}], "retry_after": 0},
            "general_settings": {"master_key": KEY},
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        seen = {
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "TIDEGATE_URL": (gate_url := f"http://127.0.0.1:{gate}"),
            "TIDEGATE_TIMEOUT_S": "10",
            "TIDEGATE_MAX_WAIT_MS": "60000",
        }
        command = [
            f"{VENV}/bin/litellm",
            "--config",
            "config.yaml",
            "--port",
            str(port),
            "--host",
            "127.0.0.1",
        ]
        url = f"http://127.0.0.1:{port}"
        with started(command, folder, seen, f"{url}/health/liveliness"):
            yield Proxy(url, gate_url, app.state.service, upstream)


def test_a_call_is_admitted_and_settled_with_its_usage(proxy: Proxy) -> None:
    before = proxy.count("tidegate_settled_total")
    assert proxy.chat().status_code == 200
    until(lambda: proxy.count("tidegate_settled_total") == before + 1)
    assert proxy.held_tokens == 0


def test_a_stream_is_settled_at_its_end(proxy: Proxy) -> None:
    before = proxy.count("tidegate_settled_total")
    answer = proxy.chat(stream=True)
    assert "data: [DONE]" in answer.text
    until(lambda: proxy.count("tidegate_settled_total") == before + 1)
    assert proxy.held_tokens == 0


def test_retries_and_a_fallback_are_one_call_with_one_settlement(proxy: Proxy) -> None:
    before = proxy.count("tidegate_settled_total"), proxy.count("tidegate_settle_unknown_total")
    assert proxy.chat("broken").status_code == 200  # the fallback answered
    until(lambda: proxy.count("tidegate_settled_total") == before[0] + 1)
    assert proxy.held_tokens == 0
    assert proxy.count("tidegate_settle_unknown_total") == before[1]


def test_a_call_that_fails_for_good_frees_its_tokens(proxy: Proxy) -> None:
    before = proxy.count("tidegate_settled_total")
    assert proxy.chat("broken", fallbacks=[], disable_fallbacks=True).status_code == 500
    until(lambda: proxy.count("tidegate_settled_total") == before + 1)
    assert proxy.held_tokens == 0


@pytest.mark.parametrize("stream", [False, True])
def test_the_rest_of_a_clamped_answer_is_asked_for_with_the_handle_in_its_header(
    proxy: Proxy, stream: bool
) -> None:
    controller, clock = proxy.service.controller, proxy.service.clock
    controller.observe_engine(clock.monotonic_s(), queue_depth=0, gpu_util=0.95)
    asked = {"max_tokens": 4_096, "min_tokens": 2_048, "stream": stream}
    unknown = proxy.count("tidegate_unknown_continuations")
    try:
        first = proxy.chat(**asked, extra_body={"max_tokens": 9_000})
        seen = proxy.upstream.calls[-1]
        assert (seen["max_tokens"], seen["min_tokens"]) == (1_024, 1_024)
        handles = proxy.count("tidegate_open_continuations")
        rest = proxy.chat(told={"x-tidegate-continuation": first.headers["x-tidegate-continuation"]}, **asked)
        assert rest.headers["x-tidegate-continuation"] != first.headers["x-tidegate-continuation"]
        assert proxy.count("tidegate_open_continuations") == handles  # one redeemed, one new
        assert proxy.count("tidegate_unknown_continuations") == unknown
    finally:
        controller.observe_engine(clock.monotonic_s(), queue_depth=0, gpu_util=0.1)


def test_a_client_s_retries_are_counted(proxy: Proxy) -> None:
    before = proxy.count("tidegate_retries_total", lane="standard")
    for told in ("0", "1", "2"):
        assert proxy.chat(told={"x-stainless-retry-count": told}).status_code == 200
    assert proxy.count("tidegate_retries_total", lane="standard") == before + 2


def test_a_call_waits_for_its_turn(proxy: Proxy) -> None:
    def tidegate(path: str, **body: object) -> httpx.Response:
        return httpx.post(f"{proxy.gate_url}/v1/{path}", json=body, timeout=60)

    held = []
    while (answer := tidegate("admit", prompt_tokens=20_000, max_tokens=1)).status_code == 200:
        held.append(answer.json()["reservation_id"])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(proxy.chat, messages=[{"role": "user", "content": "x" * 80_000}])
        until(lambda: len(proxy.service.waiting))
        for reservation_id in held:
            tidegate("cancel", reservation_id=reservation_id)
        assert waiting.result(60).status_code == 200


def test_a_hundred_refusals_are_ours_and_blame_no_deployment(proxy: Proxy) -> None:
    controller, clock = proxy.service.controller, proxy.service.clock
    controller.observe_engine(clock.monotonic_s(), queue_depth=10**6, batch_tokens=10**9, kv_miss_rate=1.0)
    calls = len(proxy.upstream.calls)
    unknown = proxy.count("tidegate_settle_unknown_total")
    answers = [proxy.chat(name) for name in ("good", "alias") for _ in range(50)]
    assert {answer.status_code for answer in answers} == {429}
    for answer in answers:
        assert answer.headers["x-tidegate-reason"] == "backpressure"
        assert answer.headers["x-should-retry"] == "true"
        assert 1 <= int(answer.headers["retry-after"]) <= 30
        error = answer.json()["error"]
        assert error["message"].startswith("Tidegate refused this: ")
        assert error["type"] == "requests"
        assert error["code"] == "429"  # the proxy's own; ours stands beside it
    assert len(proxy.upstream.calls) == calls
    # Calm again, every deployment still takes calls: none was cooled down for what it never saw.
    clock.advance(60)  # type: ignore[attr-defined]
    controller.observe_engine(clock.monotonic_s(), queue_depth=0, batch_tokens=0, kv_miss_rate=0.0)
    assert {proxy.chat(name).status_code for name in ("good", "alias")} == {200}
    assert proxy.count("tidegate_settle_unknown_total") == unknown


def test_a_stream_that_its_client_left_is_freed_by_the_lease_at_the_latest(proxy: Proxy) -> None:
    body = {"model": "endless", "messages": [{"role": "user", "content": "x"}], "stream": True}
    headers = {"authorization": f"Bearer {KEY}"}
    with httpx.stream(
        "POST", f"{proxy.url}/v1/chat/completions", json=body, headers=headers, timeout=60
    ) as answer:
        next(answer.iter_lines())
        assert proxy.held_tokens > 0
    proxy.service.clock.advance(proxy.service.controller.rules.lease_s + 1)  # type: ignore[attr-defined]
    assert proxy.held_tokens == 0
