import asyncio
from collections.abc import Callable

import polars as pl
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from data.config import Target
from serving.clock import SystemClock
from serving.controller.decide import Controller
from serving.controller.rules import Rules
from serving.telemetry.engine import Engine
from serving.telemetry.scraping import Scraping
from tests.data.live.metrics_server import Page, serving


def run(scraping: Scraping, until: Callable[[], object]) -> None:
    async def running() -> None:
        task = asyncio.create_task(scraping.run())
        async with asyncio.timeout(20.0):
            while not until():
                await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(running())


def test_scraped_queues_reach_the_gate_and_their_rows_the_sink():
    rows: list[pl.DataFrame] = []
    clock, engine = SystemClock(), Engine(Controller(Rules(queue_capacity=100)))
    with serving() as server:
        server.answer("".join(f'vllm:num_requests_waiting{{engine="{n}"}} {20 + n}\n' for n in (0, 1)))
        target = Target(name="pool", url=server.url(), interval_s=0.05, timeout_s=10.0)
        run(Scraping([target], engine, clock, rows.append), lambda: rows)
    assert engine.reading("queue_depth", clock.wall_us()) == 41
    assert engine.controller.snapshot(clock.monotonic_s()).backpressure == pytest.approx(0.3 * 0.41 / 0.7)
    assert rows[0].select("source", "engine", "state", "waiting").rows() == [
        ("pool", "0", "ok", 20),
        ("pool", "1", "ok", 21),
    ]


def test_an_engine_that_goes_away_is_unknown_at_once_and_counted():
    clock, engine = SystemClock(), Engine(Controller(Rules()))
    registry = CollectorRegistry()
    with serving() as server:
        server.answer("vllm:num_requests_waiting 7\nvllm:num_requests_running NaN\n", Page(status=503))
        target = Target(name="pool", url=server.url(), interval_s=0.05, timeout_s=10.0)
        scraping = Scraping([target], engine, clock)
        registry.register(scraping)
        run(scraping, lambda: b'failures_total{target="pool"} 0.0' not in generate_latest(registry))
        assert engine.reading("queue_depth", clock.wall_us()) is None
    shown = generate_latest(registry).decode()
    assert 'tidegate_scrape_dropped_total{target="pool"} 1.0' in shown
    assert "tidegate_engines_known 0.0" in shown
    assert 'tidegate_scrape_clock_offset_seconds{target="pool"}' in shown


def test_a_target_that_is_scraped_too_seldom_is_named(caplog: pytest.LogCaptureFixture):
    engine = Engine(Controller(Rules(engine_stale_s=15.0)))
    targets = [Target(name=f"every-{s}-s", url="http://host/metrics", interval_s=s) for s in (5, 60)]
    Scraping(targets, engine, SystemClock())
    assert [record.__dict__["fields"]["target"] for record in caplog.records] == ["every-60-s"]


def test_scraping_that_breaks_is_heard_of(caplog: pytest.LogCaptureFixture):
    def broken(_: pl.DataFrame) -> None:
        raise RuntimeError("no room")

    with serving() as server:
        target = Target(name="pool", url=server.url(), interval_s=0.05, timeout_s=10.0)
        scraping = Scraping([target], Engine(Controller(Rules())), SystemClock(), broken)
        with pytest.raises(ExceptionGroup) as raised:
            asyncio.run(asyncio.wait_for(scraping.run(), 20.0))
    assert raised.group_contains(RuntimeError, match="no room")
    assert [record.message for record in caplog.records] == ["scraping has ended"]
