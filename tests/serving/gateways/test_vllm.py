"""The middleware in the real vLLM: `vllm serve` on the CPU, with its engine and a model of two layers.

vLLM's pins clash with ours, so it lives in an environment of its own: `make gateways` makes it, and
TIDEGATE_VLLM_VENV may name another.
"""

import asyncio
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from data.config import Target
from data.lake import Lake
from data.live import engines, exposition
from data.live.envoy_log import CALLS
from data.live.samples import Sample
from data.live.scrape import Scraper
from serving.clock import SystemClock
from serving.controller.engine_model import H100
from serving.engine_sim.core import EngineSim
from serving.engine_sim.metrics import Metrics
from tests.serving.gateways.side_servers import ROOT, environment, free_port, started
from tests.serving.gateways.tiny_model import token, write_tiny_model
from tests.serving.live_apps import until

VENV = environment("vllm")
pytestmark = pytest.mark.skipif(VENV is None, reason="There is no vLLM here; `make gateways` brings it.")
KEY = "sk-test"
LETTER_A = {"allowed_token_ids": [token("a")], "ignore_eos": True}
"""Each token of the answer is the letter a, so that every one of them shows in a stream."""
BLOCK_TOKENS = 128


class Engine(NamedTuple):
    """A running vLLM, the lake that the middleware records into, and the server's log."""

    url: str
    lake: Path
    log: Path

    def client(self, **headers: str) -> httpx.Client:
        return httpx.Client(
            base_url=self.url, headers={"authorization": f"Bearer {KEY}"} | headers, timeout=60
        )

    def post(self, path: str, name: str, **body: object) -> httpx.Response:
        with self.client(**{"x-request-id": name}) as client:
            return client.post(path, json={"model": "tiny"} | body)

    def chat(self, name: str, **more: object) -> httpx.Response:
        messages = [{"role": "user", "content": "hello, sea"}]
        return self.post("/v1/chat/completions", name, **{"messages": messages} | LETTER_A | more)

    def outcome(self, name: str) -> tuple[int | None, int | None, str]:
        """What the lake has of a request's end: output tokens, cached tokens, outcome."""
        sql = "SELECT output_tokens, cached_tokens, outcome FROM lake.outcomes WHERE request_id = $name"

        def look() -> list[Any]:
            with Lake(str(self.lake)) as lake:
                return lake.query(sql, {"name": name}).rows()

        (row,) = until(look)
        return row

    def metrics(self, path: str) -> dict[str, list[tuple[dict[str, str], float]]]:
        """Samples by name."""
        found: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(httpx.get(self.url + path, timeout=60).text):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return found

    def ours(self, name: str, **labels: str) -> float:
        return sum(v for told, v in self.metrics("/tidegate/metrics")[name] if labels.items() <= told.items())


@pytest.fixture(scope="module")
def engine(
    bundle_folder: Callable[[float | None], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("vllm")
    write_tiny_model(folder / "model")
    url = f"http://127.0.0.1:{(port := free_port())}"
    config = {
        "telemetry": {
            "lake": str(folder / "lake"),
            "scrape": [{"name": "itself", "url": f"{url}/metrics", "interval_s": 0.5, "timeout_s": 10}],
        },
        "tenants": {"by_name": {"small": {"hourly": {"tokens": 10}}}},
    }
    (folder / "tidegate.yaml").write_text(yaml.safe_dump(config))
    seen = {
        "PYTHONPATH": str(ROOT),
        "TIDEGATE_CONFIG": str(folder / "tidegate.yaml"),
        "TIDEGATE_BUNDLE": str(bundle_folder(None)),
        "TIDEGATE_TRUST_HEADERS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [f"{VENV}/bin/vllm", "serve", "model", "--served-model-name", "tiny", "--load-format", "dummy"]
    command += ["--enforce-eager", "--block-size", str(BLOCK_TOKENS)]
    command += [
        "--enable-prompt-tokens-details",
        "--api-key",
        KEY,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    command += ["--middleware", "serving.gateways.asgi.TidegateMiddleware"]
    with started(command, folder, seen, f"{url}/health") as log:
        yield Engine(url, folder / "lake", log)


def test_an_answer_is_settled_with_the_usage_that_vllm_tells(engine: Engine) -> None:
    usage = engine.chat("whole", max_tokens=20).json()["usage"]
    assert usage["completion_tokens"] == 20
    assert engine.outcome("whole") == (20, 0, "served")


def test_cached_tokens_are_noted_as_vllm_counts_them(engine: Engine) -> None:
    for name in ("cold", "warm"):
        answer = engine.post("/v1/completions", name, prompt="x" * 300, max_tokens=2)
        assert answer.status_code == 200
    assert engine.outcome("warm")[:2] == (2, 2 * BLOCK_TOKENS)


def test_a_stream_that_ends_with_its_usage_is_settled_with_it(engine: Engine) -> None:
    answer = engine.chat("stream", max_tokens=30, stream=True, stream_options={"include_usage": True})
    assert answer.text.endswith("data: [DONE]\n\n")
    assert engine.outcome("stream")[::2] == (30, "served")


def test_a_stream_without_usage_is_counted_by_its_events(engine: Engine) -> None:
    answer = engine.chat("untold", max_tokens=30, stream=True)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert not any(event.get("usage") for event in events)
    with_text = sum(bool(event["choices"][0]["delta"].get("content")) for event in events)
    assert engine.outcome("untold") == (with_text, None, "served")
    assert 1 <= with_text <= 30  # vLLM puts several tokens into an event when a client reads slowly


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "hello, sea", "max_output_tokens": 7}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hello, sea"}], "max_tokens": 7}),
        ("/invocations", {"prompt": "hello, sea", "max_tokens": 7} | LETTER_A),
        (
            "/v1/chat/completions/batch",
            {"messages": [[{"role": "user", "content": text}] for text in ("sea", "tide")], "max_tokens": 7}
            | LETTER_A,
        ),
    ],
)
def test_its_other_ways_to_call_a_model_are_settled_too(engine: Engine, path: str, body: dict) -> None:
    answer = engine.post(path, f"by {path}", **body)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    told = usage.get("completion_tokens", usage.get("output_tokens"))
    assert 1 <= told <= 14
    assert engine.outcome(f"by {path}")[::2] == (told, "served")


def test_no_route_that_runs_a_model_goes_past_the_gate(engine: Engine) -> None:
    routes = re.findall(r"Route: (\S+), Methods: (.*)", engine.log.read_text())
    posts = {path for path, methods in routes if "POST" in methods.split(", ")}
    assert "/v1/chat/completions" in posts
    runs_none = {
        "/tokenize",
        "/detokenize",
        "/ping",
        "/v1/messages/count_tokens",
        "/v1/responses/{response_id}/cancel",
    }
    runs_none |= {"/scale_elastic_ep", "/is_scaling_elastic_ep", "/inference/v1/abort_requests"}
    runs_none |= {path for path in posts if path.endswith(("/render", "/derender"))}
    assert {path for path in posts if not path.endswith(CALLS)} <= runs_none


def test_openai_s_own_client_understands_a_refusal(engine: Engine) -> None:
    script = """
import json, sys, openai
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key=sys.argv[2], max_retries=0)
try:
    client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hello, sea"}], max_tokens=50,
        extra_headers={"x-tidegate-tenant": "small"},
    )
except openai.RateLimitError as error:
    print(json.dumps({"code": error.code, "type": error.type, "message": error.message,
                      "headers": dict(error.response.headers)}))
"""
    command = [f"{VENV}/bin/python", "-c", script, engine.url, KEY]
    before = engine.metrics("/metrics")["vllm:request_success_total"]
    refused = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert refused["code"] == "rate_limit_exceeded"
    assert refused["type"] == "tokens"
    assert "its tenant's token quota is spent" in refused["message"]
    assert refused["headers"]["x-tidegate-reason"] == "tenant_quota"
    assert engine.ours("tidegate_refused_total", reason="tenant_quota") == 1
    assert engine.metrics("/metrics")["vllm:request_success_total"] == before  # vLLM never saw it


def test_a_client_that_leaves_frees_its_tokens_and_the_engine(engine: Engine) -> None:
    def engine_s(name: str) -> float:
        ((_, value),) = engine.metrics("/metrics")[f"vllm:{name}"]
        return value

    before = engine_s("generation_tokens_total")
    body = {"model": "tiny", "prompt": "x", "max_tokens": 16_000, "stream": True} | LETTER_A
    client = engine.client(**{"x-request-id": "left"})
    with client, client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        lines = answer.iter_lines()  # closing it hangs up
        next(lines)
        assert engine.ours("tidegate_held_tokens") > 0
    output_tokens, _, outcome = engine.outcome("left")
    assert outcome == "aborted"
    assert output_tokens is not None
    assert 1 <= output_tokens < 16_000
    until(lambda: engine_s("num_requests_running") == 0)
    assert engine_s("generation_tokens_total") - before < 16_000  # vLLM counts no abort that a client caused
    assert engine.ours("tidegate_held_tokens") == 0


def test_what_vllm_itself_refuses_holds_nothing(engine: Engine) -> None:
    with engine.client(**{"authorization": "Bearer sk-wrong", "x-request-id": "stranger"}) as client:
        assert client.post("/v1/completions", json={"model": "tiny", "prompt": "x"}).status_code == 401
    assert engine.post("/v1/completions", "long", prompt="x" * 20_000).status_code == 400
    assert {engine.outcome(name)[2] for name in ("stranger", "long")} == {"failed"}
    assert engine.ours("tidegate_held_tokens") == 0


def test_its_metrics_and_ours_stand_side_by_side(engine: Engine) -> None:
    theirs, ours = engine.metrics("/metrics"), engine.metrics("/tidegate/metrics")
    assert not {name for name in theirs if name.startswith("tidegate")}
    assert not {name for name in ours if name.startswith("vllm")}
    until(lambda: engine.ours("tidegate_engines_known") == 1)  # the middleware reads those of its own server
    assert engine.ours("tidegate_scrape_failures_total") == 0


def test_the_scraper_reads_all_that_it_looks_for(engine: Engine) -> None:
    body = httpx.get(f"{engine.url}/metrics", timeout=60)
    read = exposition.parse(body.content, body.headers["content-type"], engines.WANTED)
    assert not read.malformed
    (reading,) = engines.read(read)
    # vLLM no longer exports a rate of hits: it counts them and the tokens looked up.
    assert engines.VLLM.keys() - reading.values.keys() == {"hit_rate"}
    assert (reading.kind, reading.engine, reading.model) == ("vllm", "0", "tiny")
    assert reading.values["kv_block_tokens"] == BLOCK_TOKENS
    assert reading.started_s is not None


async def _samples(engine: Engine, work: Callable[[], object]) -> list[Sample]:
    """Two samples, with work in between."""
    samples: list[Sample] = []
    came = asyncio.Queue[None]()

    def take(those: Any) -> None:
        samples.extend(those)
        came.put_nowait(None)

    target = Target(name="pool", url=f"{engine.url}/metrics", interval_s=1.0, timeout_s=20.0)
    async with asyncio.TaskGroup() as tasks:
        scraping = tasks.create_task(Scraper([target], SystemClock(), take).run())
        await came.get()
        await asyncio.to_thread(work)
        while not any(sample.requests_per_s for sample in samples):
            await came.get()
        scraping.cancel()
    return samples


def test_scraped_rates_are_what_was_asked_of_the_engine(engine: Engine) -> None:
    samples = asyncio.run(_samples(engine, lambda: engine.chat("scraped", max_tokens=40)))
    assert {sample.state for sample in samples} == {"ok"}
    spans = [sample for sample in samples if sample.interval_s is not None]
    assert sum(s.output_tokens_per_s * s.interval_s for s in spans) == pytest.approx(40)
    assert sum(s.prompt_tokens_per_s * s.interval_s for s in spans) == pytest.approx(len("hello, sea"))
    last = next(sample for sample in samples if sample.requests_per_s)
    assert last.ttft_mean_s is not None
    assert last.tpot_mean_s is not None
    assert 0 < last.tpot_mean_s < last.ttft_mean_s + 1


def test_the_simulated_engine_exports_nothing_that_vllm_does_not(engine: Engine) -> None:
    theirs = engine.metrics("/metrics")
    simulated = generate_latest(Metrics(EngineSim(H100), "tiny").registry).decode()
    for family in text_string_to_metric_families(simulated):
        for sample in family.samples:
            if sample.name.startswith("vllm:"):
                (labels, _), *_ = theirs[sample.name]
                assert sample.labels.keys() <= labels.keys(), sample.name
