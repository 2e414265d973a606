import asyncio
import json
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from data.config import Target
from data.live.samples import Sample
from data.live.scrape import Scraper
from serving.clock import SystemClock
from serving.engine_sim.server import SimSettings
from tests.serving.engine_sim.sim_server import Sim, simulated
from tests.serving.gateways.side_servers import environment

FAST = SimSettings(speed=100.0, kv_blocks=200)
SLOW = SimSettings(speed=0.5, max_batch=1, max_waiting=1)
"""An engine that is busy with 1,000 tokens for as long as any test."""


@pytest.fixture(scope="module")
def sim() -> Iterator[Sim]:
    with simulated(FAST) as running:
        yield running


@pytest.fixture
def client(sim: Sim) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=sim.url, timeout=20.0) as opened:
        yield opened


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "sim", "messages": [{"role": "user", "content": "x" * 80}], **fields}


def events(response: httpx.Response) -> list[Any]:
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def error(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["code"] == response.status_code
    return dict(body["error"])


def test_a_whole_answer_has_the_tokens_that_were_asked_for(client):
    answer = client.post(
        "/v1/chat/completions", json=chat(), headers={"x-sim-output-tokens": "12", "x-request-id": "r1"}
    ).json()
    (choice,) = answer["choices"]
    assert (answer["id"], answer["object"], answer["model"]) == ("chatcmpl-r1", "chat.completion", "sim")
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["role"] == "assistant"
    assert len(choice["message"]["content"]) == 4 * 12
    assert answer["usage"] == {
        "prompt_tokens": 20,
        "completion_tokens": 12,
        "total_tokens": 32,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_a_stream_has_a_role_first_a_reason_last_and_then_usage(client):
    body = chat(stream=True, max_tokens=5, ignore_eos=True, stream_options={"include_usage": True})
    response = client.post("/v1/chat/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, end = events(response)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0]["role"] == "assistant"
    assert not any("role" in delta for delta in deltas[1:])
    assert len("".join(delta["content"] for delta in deltas)) == 4 * 5
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert all(chunk["usage"] is None for chunk in chunks)
    assert end["choices"] == []
    assert end["usage"]["completion_tokens"] == 5


def test_usage_comes_in_every_chunk_where_that_is_asked_for_and_in_none_where_not(client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    for asked in (options, None):
        body = chat(stream=True, max_tokens=4, ignore_eos=True, stream_options=asked)
        chunks = events(client.post("/v1/chat/completions", json=body))
        if asked:
            told = [chunk["usage"]["completion_tokens"] for chunk in chunks]
            assert told == sorted(told)
            assert told[-2:] == [4, 4]
        else:
            assert not any("usage" in chunk for chunk in chunks)


def test_completions_take_text_and_token_ids(client):
    for prompt in ("x" * 80, list(range(20))):
        answer = client.post("/v1/completions", json={"prompt": prompt, "ignore_eos": True}).json()
        assert (answer["object"], answer["choices"][0]["finish_reason"]) == ("text_completion", "length")
        assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (20, 16)
    body = {"prompt": "x", "stream": True, "max_tokens": 3, "ignore_eos": True}
    text = "".join(chunk["choices"][0]["text"] for chunk in events(client.post("/v1/completions", json=body)))
    assert len(text) == 12


def test_a_prompt_that_begins_as_an_earlier_one_is_partly_cached(client):
    start = "a tide table, long enough for blocks of its own. " * 20
    cached = []
    for question in ("When?", "Where, then?"):
        messages = [{"role": "system", "content": start}, {"role": "user", "content": question}]
        answer = client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 2}).json()
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, len(start) // 64 * 16]


def test_of_two_limits_the_newer_fields_counts(client):
    body = chat(max_tokens=1, max_completion_tokens=6, ignore_eos=True)
    assert client.post("/v1/chat/completions", json=body).json()["usage"]["completion_tokens"] == 6


def test_headers_fix_both_lengths_within_the_limits(client):
    headers = {"x-sim-prompt-tokens": "1000", "x-sim-output-tokens": "9"}
    answer = client.post("/v1/chat/completions", json=chat(max_tokens=7), headers=headers).json()
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (1_000, 7)
    assert answer["choices"][0]["finish_reason"] == "length"


def test_the_same_seed_draws_the_same_lengths():
    def lengths() -> list[int]:
        with simulated(FAST) as own, httpx.Client(base_url=own.url) as client:
            answers = [client.post("/v1/chat/completions", json=chat()).json() for _ in range(3)]
        return [answer["usage"]["completion_tokens"] for answer in answers]

    first = lengths()
    assert first == lengths()
    assert len(set(first)) > 1


@pytest.mark.parametrize(
    ("body", "status", "kind", "message"),
    [
        ({"model": "other"}, 404, "NotFoundError", "The model `other` does not exist"),
        ({"messages": []}, 400, "BadRequestError", "messages: List should have at least 1 item"),
        ({"n": 2}, 400, "BadRequestError", "n: "),
        ({"max_tokens": 0}, 400, "BadRequestError", "max_tokens: "),
        ({"max_tokens": 3_190}, 400, "BadRequestError", "maximum context length is 3200 tokens; 20 in the"),
    ],
)
def test_what_cannot_be_is_refused_in_openais_shape(client, body, status, kind, message):
    response = client.post("/v1/chat/completions", json=chat(**body))
    assert response.status_code == status
    told = error(response)
    assert told["type"] == kind
    assert message in told["message"]


def test_unknown_paths_and_broken_bodies_are_errors_of_the_same_shape(client):
    assert error(client.get("/v1/nothing"))["type"] == "NotFoundError"
    assert error(client.get("/v1/completions"))["code"] == 405
    headers = {"content-type": "application/json"}
    assert error(client.post("/v1/completions", content=b"{", headers=headers))["code"] == 400
    headers = {"x-sim-output-tokens": "-3"}
    assert error(client.post("/v1/completions", json={"prompt": "x"}, headers=headers))["code"] == 400


def test_it_says_what_it_serves_and_that_it_lives(client):
    (card,) = client.get("/v1/models").json()["data"]
    assert (card["id"], card["max_model_len"]) == ("sim", 3_200)
    assert client.get("/health").status_code == 200


def test_a_full_line_answers_503_and_a_client_that_goes_frees_its_place():
    """One streams, one waits for its whole answer, and both go: the engine is empty at once."""
    body, seen = chat(max_tokens=1_000, ignore_eos=True), threading.Event()

    async def run(sim: Sim) -> None:
        async with httpx.AsyncClient(base_url=sim.url, timeout=20.0) as client:

            async def read() -> None:
                async with client.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as own:
                    async for _ in own.aiter_lines():
                        seen.set()

            streaming = asyncio.create_task(read())
            while not seen.is_set():
                await asyncio.sleep(0.005)
            waiting = asyncio.create_task(client.post("/v1/chat/completions", json=body))
            while not sim.engine.waiting:
                await asyncio.sleep(0.005)
            refused = await client.post("/v1/chat/completions", json=body)
            assert refused.status_code == 503
            assert error(refused)["type"] == "ServiceUnavailableError"
            for task in (waiting, streaming):
                task.cancel()
            await asyncio.gather(waiting, streaming, return_exceptions=True)

    with simulated(SLOW) as sim:
        asyncio.run(run(sim))
        sim.until_idle()
        assert sim.engine.blocks.used == 0
        assert (sim.engine.totals.aborted, sim.engine.totals.refused) == (2, 1)
        told = httpx.get(f"{sim.url}/metrics").text
        assert 'finished_reason="abort",model_name="sim"} 2.0' in told


def test_our_own_scraper_reads_its_metrics():
    samples: list[Sample] = []

    async def scrape(sim: Sim) -> None:
        target = Target(name="sim", url=f"{sim.url}/metrics", interval_s=0.05, timeout_s=5.0)
        task = asyncio.create_task(Scraper([target], SystemClock(), samples.extend).run())
        async with httpx.AsyncClient(base_url=sim.url) as client:
            while not samples:
                await asyncio.sleep(0.005)
            await asyncio.gather(
                *(
                    client.post("/v1/chat/completions", json=chat(max_tokens=8, ignore_eos=True))
                    for _ in range(3)
                )
            )
        before = len(samples)
        while len(samples) < before + 2:
            await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with simulated(FAST) as sim:
        asyncio.run(scrape(sim))
    assert {(s.state, s.kind, s.model, s.engine) for s in samples} == {("ok", "vllm", "sim", "0")}
    assert {(s.kv_blocks, s.kv_block_tokens) for s in samples} == {(200, 16)}
    assert (samples[0].waiting, samples[0].running, samples[0].kv_cache_usage) == (0, 0, 0.0)

    def gained(name: str) -> float:
        return sum(getattr(s, name) * s.interval_s for s in samples if getattr(s, name) is not None)

    assert gained("requests_per_s") == pytest.approx(3)
    assert gained("output_tokens_per_s") == pytest.approx(24)
    assert gained("prompt_tokens_per_s") == pytest.approx(60)
    (told,) = [s for s in samples if s.ttft_mean_s is not None][:1]
    assert told.ttft_mean_s >= 0.0005 * (1 - 1e-6)  # the shortest prefill there is, at this speed
    assert told.queue_time_mean_s is not None
    assert any(s.tpot_mean_s for s in samples)


CLIENT = environment("litellm") or environment("vllm")


@pytest.mark.skipif(CLIENT is None, reason="There is no OpenAI client here; `make gateways` brings it.")
def test_the_openai_client_speaks_with_it(sim):
    script = """
import sys, openai
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
messages = [{"role": "user", "content": "hello"}]
whole = client.chat.completions.create(model="sim", messages=messages, max_tokens=4)
stream = client.chat.completions.create(
    model="sim", messages=messages, max_tokens=4, stream=True, stream_options={"include_usage": True}
)
chunks = list(stream)
text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
assert text == whole.choices[0].message.content, text
assert chunks[-1].usage == whole.usage, chunks[-1]
print(whole.usage.completion_tokens)
"""
    command = [f"{CLIENT}/bin/python", "-c", script, sim.url]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "4", ran.stderr
