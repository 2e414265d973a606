import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from models.bundle import Bundle
from serving.admission.deciding import decide
from serving.clock import ManualClock
from serving.controller.decision import Decision
from serving.controller.rules import Rules
from serving.http.messages import AdmitRequest
from serving.service import Service
from serving.settings import Settings

ASKS = AdmitRequest(prompt_tokens=2_000, max_tokens=1, max_wait_ms=5_000)


@pytest.fixture
def service(bundle_folder: Callable[[float | None], Path]) -> Service:
    settings = Settings(rules=Rules(capacity_tokens=10_000, hard_reject_above=1.0), max_requests=8)
    return Service(Bundle.load(bundle_folder(None)), settings, ManualClock(1_700_000_000_000_000))


async def stays() -> None:
    await asyncio.Event().wait()


def test_those_who_wait_leave_half_of_the_room_to_be_answered_at_once(service: Service) -> None:
    """A check that finds no place is answered 503: gateways then let the request in."""

    async def run() -> list[Decision | None]:
        while service.admit(ASKS).admitted:
            pass
        asking = [asyncio.create_task(decide(service, ASKS, stays)) for _ in range(6)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(service.waiting) == 4
        decisions = [task.result() for task in asking if task.done()]
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        assert len(service.waiting) == 0
        return decisions

    refused = asyncio.run(run())
    assert len(refused) == 2
    assert all(decision is not None and decision.reason != "wait_expired" for decision in refused)


def test_one_that_may_not_wait_is_answered_at_once(service: Service) -> None:
    at_once = ASKS.model_copy(update={"max_wait_ms": None})

    async def run() -> Decision | None:
        while service.admit(ASKS).admitted:
            pass
        return await decide(service, at_once, stays)

    decision = asyncio.run(run())
    assert decision is not None
    assert not decision.admitted


def test_a_client_that_left_is_no_refusal(service: Service) -> None:
    async def gone() -> None:
        return None

    async def run() -> Decision | None:
        while service.admit(ASKS).admitted:
            pass
        return await decide(service, ASKS, gone)

    assert asyncio.run(run()) is None
    assert len(service.waiting) == 0
