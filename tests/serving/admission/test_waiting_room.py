"""Requests that wait for their turn over real HTTP."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn

from models.bundle import Bundle
from serving.app import create_app
from serving.clock import SystemClock
from serving.controller.rules import Rules
from serving.http.messages import AdmitRequest
from serving.service import Service
from serving.settings import Settings

RULES = Rules(capacity_tokens=10_000, hard_reject_above=1.0, hard_reject_cut=0.0)
LONG_MS = 20_000


@pytest.fixture(scope="module")
def bundle(bundle_folder: Callable[[float | None], Path]) -> Bundle:
    return Bundle.load(bundle_folder(None))


@asynccontextmanager
async def served(bundle: Bundle, rules: Rules = RULES) -> AsyncIterator[tuple[httpx.AsyncClient, Service]]:
    app = create_app(bundle, Settings(rules=rules), SystemClock())
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, timeout_graceful_shutdown=1))
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30.0) as client:
            yield client, app.state.service
    finally:
        server.should_exit = True
        await running


def asks(tokens: int = 1_000, **facts: object) -> dict[str, object]:
    return {"prompt_tokens": tokens - 1, "max_tokens": 1, **facts}


async def fill(client: httpx.AsyncClient, lane: str) -> list[str]:
    ids = []
    while (answer := await client.post("/v1/admit", json=asks(lane=lane))).status_code == 200:
        ids.append(answer.json()["reservation_id"])
    return ids


def waits(client: httpx.AsyncClient, **facts: object) -> "asyncio.Task[httpx.Response]":
    return asyncio.create_task(client.post("/v1/admit", json=asks(max_wait_ms=LONG_MS, **facts)))


async def until(count: int, service: Service) -> None:
    while service.controller._gate.waiting.count != count:
        await asyncio.sleep(0.002)


async def settle(client: httpx.AsyncClient, reservation_id: str) -> None:
    told = {"reservation_id": reservation_id, "outcome": "served", "output_tokens": 1}
    assert (await client.post("/v1/settle", json=told)).json() == {"settled": True}


async def metric(client: httpx.AsyncClient, name: str) -> float:
    lines = (await client.get("/metrics")).text.splitlines()
    (value,) = [line.rsplit(" ", 1)[1] for line in lines if line.rsplit(" ", 1)[0] == name]
    return float(value)


def test_freed_room_goes_at_once_to_the_one_whose_turn_it_is(bundle: Bundle) -> None:
    """https://github.com/BerriAI/litellm/issues/361: a waiting request polled until it timed out."""

    async def run() -> None:
        async with served(bundle) as (client, service):
            ids = await fill(client, "premium")
            waiting = []
            for number, lane in enumerate(("batch", "premium", "batch")):
                waiting.append(waits(client, lane=lane))
                await until(number + 1, service)
            assert await metric(client, 'tidegate_waiting{lane="batch"}') == 2
            assert await metric(client, 'tidegate_waiting_tokens{lane="premium"}') == 1_000
            service.waiting._alarm.cancel()  # nobody looks at a clock: what wakes is the settlement
            await settle(client, ids.pop())
            answer = await waiting[1]
            assert (answer.status_code, answer.json()["lane"]) == (200, "premium")
            assert not waiting[0].done()
            assert not waiting[2].done()
            for _ in range(2):
                await settle(client, ids.pop())
            assert [answer.status_code for answer in await asyncio.gather(waiting[0], waiting[2])] == [
                200
            ] * 2
            assert await metric(client, 'tidegate_waits_total{lane="batch",result="admitted"}') == 2
            assert await metric(client, 'tidegate_admitted_total{lane="batch"}') == 2

    asyncio.run(run())


def test_a_wait_that_ends_in_vain_is_refused_with_its_own_reason_and_the_lanes_delay(bundle: Bundle) -> None:
    """https://github.com/vllm-project/production-stack/pull/876: routers tell reasons apart."""

    async def run() -> None:
        async with served(bundle) as (client, service):
            await fill(client, "premium")
            at_once = await client.post("/v1/admit", json=asks(lane="standard"))
            late = await client.post("/v1/admit", json=asks(lane="standard", max_wait_ms=60))
            assert (at_once.status_code, late.status_code) == (429, 429)
            assert (at_once.headers["x-tidegate-reason"], late.headers["x-tidegate-reason"]) == (
                "saturated",
                "wait_expired",
            )
            assert 1 <= int(late.headers["retry-after"]) <= 30
            assert await metric(client, 'tidegate_waits_total{lane="standard",result="refused"}') == 1
            assert service.controller._gate.waiting.count == 0

    asyncio.run(run())


def test_the_rules_bound_every_wait(bundle: Bundle) -> None:
    async def run() -> None:
        rules = Rules(capacity_tokens=10_000, hard_reject_above=1.0, hard_reject_cut=0.0, max_wait_ms=50.0)
        async with served(bundle, rules) as (client, _):
            await fill(client, "premium")
            answer = await waits(client, lane="premium")
            assert answer.headers["x-tidegate-reason"] == "wait_expired"

    asyncio.run(run())


def test_clients_that_leave_leave_nothing_behind(bundle: Bundle) -> None:
    async def run() -> None:
        async with served(bundle) as (client, service):
            ids = await fill(client, "premium")
            staying = waits(client, lane="premium")
            await until(1, service)
            leaving = [waits(client, lane="premium", tenant="acme") for _ in range(20)]
            await until(21, service)
            for task in leaving:
                task.cancel()
            await asyncio.gather(*leaving, return_exceptions=True)
            await until(1, service)
            await settle(client, ids[0])
            assert (await staying).status_code == 200
            seen = service.controller.snapshot(service.clock.monotonic_s())
            assert (seen.held_tokens, seen.reservations) == (10_000, 10)
            assert service.controller._gate.tenants._accounts["acme"].open == 0
            assert service.waiting._told == {}
            assert await metric(client, 'tidegate_waits_total{lane="premium",result="left"}') == 20

    asyncio.run(run())


def test_room_that_came_just_as_a_client_left_is_free_again(bundle: Bundle) -> None:
    async def run() -> None:
        async with served(bundle) as (client, service):
            ids = await fill(client, "premium")
            controller, now_s = service.controller, service.clock.monotonic_s()
            gone = asyncio.Event()

            async def left() -> None:
                await gone.wait()

            request = AdmitRequest.model_validate(asks(max_wait_ms=LONG_MS, lane="premium"))
            waiting = asyncio.create_task(service.admit_or_wait(request, left))
            await until(1, service)
            controller.cancel(ids[0], now_s)  # lets it in; the answer is handed out a turn later
            gone.set()
            assert await waiting is None
            assert controller.snapshot(service.clock.monotonic_s()).held_tokens == 9_000

    asyncio.run(run())
