import asyncio
from collections.abc import Callable

import pytest

from serving.clock import ManualClock
from serving.controller.engine_model import H100
from serving.engine_sim.core import EngineSim
from serving.engine_sim.metrics import Metrics
from serving.engine_sim.realtime import Live, RealTime


def live() -> tuple[RealTime, ManualClock]:
    clock, engine = ManualClock(), EngineSim(H100)
    return RealTime(engine, clock, Metrics(engine, "sim")), clock


def submit(own: RealTime, output_tokens: int) -> Live:
    return own.submit(prompt_tokens=10, output_tokens=output_tokens, prefix=(), reason="stop")


async def counts(begun: Live) -> list[int]:
    return [tokens async for tokens in begun.growth()]


def test_no_token_is_lost_when_another_call_moves_the_engine_first():
    """The second request's arrival runs the first to its end, before anyone was told of its tokens."""

    async def run() -> list[int]:
        own, clock = live()
        first = submit(own, 3)
        clock.advance(5.0)
        submit(own, 1)
        assert first.request.state == "finished"
        reading = asyncio.create_task(counts(first))
        await asyncio.sleep(0)
        running = asyncio.create_task(own.run())
        while not reading.done():
            clock.advance(0.01)
            await asyncio.sleep(0.002)
        running.cancel()
        return await reading

    assert asyncio.run(run())[-1] == 3


def test_an_aborted_request_ends_for_its_reader():
    async def run() -> list[int]:
        own, _ = live()
        begun = submit(own, 3)
        reading = asyncio.create_task(counts(begun))
        await asyncio.sleep(0)
        own.abort(begun)
        return await reading

    assert asyncio.run(run()) == []


def test_when_the_engine_fails_no_one_is_left_waiting(monkeypatch: pytest.MonkeyPatch):
    def broken(_: float) -> Callable[[], None]:
        raise ZeroDivisionError

    async def run() -> tuple[list[int], bool]:
        own, clock = live()
        begun = submit(own, 3)
        monkeypatch.setattr(own.engine, "advance", broken)
        running = asyncio.create_task(own.run())
        clock.advance(5.0)
        told = await counts(begun)
        with pytest.raises(ZeroDivisionError):
            await running
        return told, own.failed

    assert asyncio.run(run()) == ([], True)
