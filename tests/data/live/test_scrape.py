import asyncio
import gzip
import threading
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from data.config import Target
from data.errors import InputError
from data.live.samples import Sample
from data.live.scrape import Scraper
from serving.clock import ManualClock, SystemClock
from tests.data.live import expositions
from tests.data.live.metrics_server import Page, Server, serving

START_US = 1_700_000_000_000_000


class Run:
    """A scraper of real servers, whose samples are waited for."""

    def __init__(self, *targets: Target, clock: Any = None, **options: Any) -> None:
        self.clock = clock or ManualClock(START_US)
        self.samples: list[Sample] = []
        self.scraper = Scraper(targets, self.clock, self._take, random=Random(7), **options)
        self._came = asyncio.Event()

    async def __aenter__(self) -> "Run":
        self._task = asyncio.create_task(self.scraper.run())
        await asyncio.sleep(0)  # it starts before time moves
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self._task

    def _take(self, samples: Sequence[Sample]) -> None:
        self.samples.extend(samples)
        self._came.set()

    async def until(self, count: int, source: str | None = None) -> list[Sample]:
        """Let time pass until so many samples have come."""
        while len(found := [s for s in self.samples if source in (None, s.source)]) < count:
            self._came.clear()
            if isinstance(self.clock, ManualClock):
                self.clock.advance(0.5)
                await asyncio.sleep(0.002)
            else:
                await self._came.wait()
        return found


def target(server: Server, name: str = "pool", path: str = "/metrics", **settings: float) -> Target:
    return Target(name=name, url=server.url(path), **{"interval_s": 10.0, "timeout_s": 20.0} | settings)


def scraped(count: int, *targets: Target, **options: Any) -> tuple[list[Sample], Scraper]:
    async def run() -> tuple[list[Sample], Scraper]:
        async with Run(*targets, **options) as running:
            return await running.until(count), running.scraper

    return within(run())


def within(work: Awaitable[Any], limit_s: float = 20.0) -> Any:
    """Run it; a scraper that hangs fails the test instead of holding it up."""

    async def run() -> Any:
        async with asyncio.timeout(limit_s):
            return await work

    return asyncio.run(run())


def one(server: Server, **settings: float) -> Sample:
    samples, _ = scraped(1, target(server, **settings))
    return samples[0]


def test_each_engine_behind_an_address_is_a_sample(server: Server):
    server.answer(expositions.VLLM)
    (first, second), scraper = scraped(2, target(server))
    assert [(s.source, s.engine, s.kind, s.state) for s in (first, second)] == [
        ("pool", "0", "vllm", "ok"),
        ("pool", "1", "vllm", "ok"),
    ]
    assert (first.waiting, first.running, first.kv_cache_usage, first.kv_blocks) == (3, 7, 0.5, 1000)
    assert (second.waiting, second.kv_blocks, second.prompt_tokens_per_s) == (0, None, None)
    assert scraper.tallies["pool"].scrapes == 1


@pytest.mark.parametrize(
    ("text", "kind", "waiting"),
    [
        (expositions.VLLM_06, "vllm", 2),
        (expositions.SGLANG, "sglang", 5),
        (expositions.TRTLLM, "trtllm", 1),
        (expositions.TRITON, "triton", 6),
    ],
)
def test_the_kind_of_engine_is_told_by_its_metrics(server: Server, text: str, kind: str, waiting: int):
    server.answer(text)
    sample = one(server)
    assert (sample.kind, sample.waiting, sample.state) == (kind, waiting, "ok")


def tokens(count: float) -> str:
    return f"vllm:num_requests_waiting 1\nvllm:generation_tokens_total {count}\n"


def test_what_prometheus_client_serves_is_understood():
    registry = CollectorRegistry()
    Gauge("vllm:num_requests_waiting", "Waiting.", ["engine"], registry=registry).labels("0").set(4)
    Counter("vllm:generation_tokens", "Tokens.", ["engine"], registry=registry).labels("0").inc(7)
    Histogram("vllm:time_to_first_token_seconds", "TTFT.", ["engine"], registry=registry).labels("0").observe(
        2
    )
    http, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        url = f"http://127.0.0.1:{http.server_address[1]}/metrics"
        (first, second), _ = scraped(2, Target(name="pool", url=url, interval_s=10.0, timeout_s=20.0))
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
    assert (first.engine, first.waiting) == ("0", 4)
    assert (second.output_tokens_per_s, second.ttft_mean_s) == (0.0, None)


def test_rates_go_over_the_time_that_really_passed_and_restarts_are_no_spikes(server: Server):
    server.answer(*map(tokens, (100, 160, 5, 65)))
    samples, _ = scraped(4, target(server))
    assert [s.interval_s is None for s in samples] == [True, False, True, False]
    for before, after in ((0, 1), (2, 3)):
        elapsed_s = (samples[after].at_us - samples[before].at_us) / 1e6
        assert samples[after].interval_s == pytest.approx(elapsed_s)
        assert samples[after].output_tokens_per_s == pytest.approx(60 / elapsed_s)
    assert "fell from 160 to 5" in (samples[2].reason or "")


def test_a_failed_scrape_is_a_sample_without_readings_for_each_engine(server: Server):
    server.answer(expositions.VLLM, Page("busy", status=500), expositions.VLLM)
    samples, scraper = scraped(6, target(server))
    failed = samples[2:4]
    assert [(s.engine, s.state, s.reason) for s in failed] == [
        (engine, "failed", "it answers 500 Internal Server Error") for engine in ("0", "1")
    ]
    assert {(s.waiting, s.running, s.kv_cache_usage, s.output_tokens_per_s) for s in failed} == {(None,) * 4}
    assert scraper.tallies["pool"].failures == 1
    assert samples[4].output_tokens_per_s == 0.0  # over both intervals


def test_an_engine_that_is_no_longer_exported_says_so_once(server: Server):
    only_first = "".join(line + "\n" for line in expositions.VLLM.splitlines() if 'engine="1"' not in line)
    server.answer(expositions.VLLM, only_first)
    samples, scraper = scraped(5, target(server))
    assert [(s.engine, s.state) for s in samples[2:]] == [("1", "failed"), ("0", "ok"), ("0", "ok")]
    assert scraper.tallies["pool"].failures == 0


def test_an_answer_that_ends_early_is_refused(server: Server):
    server.answer(Page(tokens(100), cut=50))
    assert one(server).state == "failed"
    server.answer(Page(tokens(100).rstrip()))
    assert "cut off" in (one(server).reason or "")


def test_a_huge_answer_is_not_read_to_its_end(server: Server):
    server.answer(Page("#" * 99 + "\n" + tokens(1)))
    samples, _ = scraped(1, target(server), max_body_bytes=100)
    assert samples[0].reason == "its answer is over 100 bytes long"


def test_an_endless_answer_is_left_at_the_limit():
    with serving() as server:
        server.answer(Page(b"# " + b"x" * 9_000_000 + b"\n"))
        assert one(server).reason == "its answer is over 8388608 bytes long"


def test_a_packed_answer_is_refused_because_unpacking_has_no_limit(server: Server):
    server.answer(Page(gzip.compress(tokens(1).encode()), headers={"Content-Encoding": "gzip"}))
    assert "packed as gzip" in (one(server).reason or "")
    assert server.asked[0][1]["accept-encoding"] == "identity"


def test_a_redirect_is_followed_within_the_host_only(server: Server):
    server.answer(Page(status=307, headers={"Location": "/metrics/"}))
    server.answer(tokens(1), path="/metrics/")
    assert one(server).waiting == 1
    with serving() as other:
        other.answer(tokens(1))
        server.answer(Page(status=302, headers={"Location": other.url()}))
        assert "points to another host" in (one(server).reason or "")
        assert other.asked == []


def test_a_circle_of_redirects_ends(server: Server):
    server.answer(Page(status=302, headers={"Location": "/metrics"}))
    assert one(server).reason == "it redirects over 3 times"


def test_an_address_where_nobody_listens_is_a_failed_scrape():
    with serving() as server:
        gone = target(server)
    samples, _ = scraped(1, gone)
    assert (samples[0].state, samples[0].engine) == ("failed", "")
    assert (samples[0].reason or "").startswith("ConnectError")


def test_a_slow_target_delays_no_other_and_fails_at_its_own_timeout(server: Server):
    server.answer(tokens(1))
    server.answer(Page(tokens(1), wait_s=30.0), path="/slow")

    async def run() -> None:
        slow = target(server, "slow", "/slow", interval_s=0.05, timeout_s=0.3)
        quick = target(server, "quick", interval_s=0.05)
        async with Run(slow, quick, clock=SystemClock()) as running:
            first = (await running.until(1, "slow"))[0]
            assert (first.state, first.reason) == ("failed", "no whole answer within 0.3 s")
            assert {s.state for s in running.samples if s.source == "quick"} == {"ok"}
            await running.until(3, "quick")
            assert running.scraper.tallies["slow"].skipped > 0

    within(run())


def test_an_answer_that_stalls_half_way_fails_at_the_timeout(server: Server):
    server.answer(Page(tokens(1), cut=10, stall_s=30.0))
    assert one(server, timeout_s=0.3).reason == "no whole answer within 0.3 s"


def test_turns_keep_their_beat_whatever_the_answers_take(server: Server):
    server.answer(tokens(1))
    samples, scraper = scraped(20, target(server, interval_s=3.0))
    # Time moves in steps of half a second, so a turn is late by less than a few steps, and never adds up.
    phase_s = Random(7).random() * 3.0
    late_s = [(s.at_us - START_US) / 1e6 - phase_s - 3.0 * i for i, s in enumerate(samples)]
    skipped = scraper.tallies["pool"].skipped
    assert all(0 <= late < 3.0 * (1 + skipped) for late in late_s)


def test_targets_start_at_different_times(server: Server):
    server.answer(tokens(1))
    samples, _ = scraped(4, *(target(server, f"pool-{n}", interval_s=40.0) for n in range(4)))
    assert len({s.at_us for s in samples}) > 1


def test_all_scrapes_failing_for_two_minutes_leaves_no_number_anywhere(server: Server):
    server.answer(tokens(9e6), Page(status=503))
    samples, _ = scraped(14, target(server))
    assert {s.state for s in samples[1:]} == {"failed"}
    for name in Sample.__dataclass_fields__.keys() - {"source", "at_us", "engine", "state", "reason"}:
        assert {getattr(s, name) for s in samples[1:]} == {None}


def test_impossible_readings_and_malformed_lines_are_dropped_counted_and_named(server: Server):
    server.answer(
        "vllm:num_requests_waiting NaN\nvllm:kv_cache_usage_perc -0.39\nvllm:num_requests_running x\n"
        "vllm:prompt_tokens_total 5\n"
    )
    (sample,), scraper = scraped(1, target(server))
    assert scraper.tallies["pool"].dropped == 3
    assert (sample.state, sample.waiting, sample.kv_cache_usage, sample.running) == ("ok", None, None, None)
    for part in ("waiting is NaN", "-0.39", "num_requests_running: its line can't be read"):
        assert part in (sample.reason or "")


def test_frozen_gauges_become_suspect(server: Server):
    server.answer("vllm:kv_cache_usage_perc 0.99\nvllm:generation_tokens_total 7e6\n")
    samples, scraper = scraped(9, target(server))
    assert (samples[0].state, samples[0].kv_cache_usage) == ("ok", 0.99)
    assert (samples[-1].state, samples[-1].kv_cache_usage) == ("suspect", None)
    assert scraper.tallies["pool"].suspect >= 1


@pytest.mark.parametrize(("off_s", "said"), [(60.0, "s ahead of ours"), (-60.0, "s behind ours")])
def test_an_engine_clock_that_is_off_is_measured_and_ours_is_stamped(server: Server, off_s: float, said: str):
    clock = ManualClock(START_US)
    server.pages["/metrics"] = lambda: Page(
        f"vllm:num_requests_waiting 1 {(clock.wall_us() + int(off_s * 1e6)) // 1000}\n"
    )
    (sample,), scraper = scraped(1, target(server), clock=clock)
    assert (sample.state, sample.waiting) == ("ok", 1)
    assert START_US <= sample.at_us <= clock.wall_us()
    assert scraper.tallies["pool"].clock_offset_s == pytest.approx(off_s, abs=10.0)
    assert said in (sample.reason or "")


def test_without_own_times_the_date_of_the_answer_tells_the_offset(server: Server):
    server.answer(Page(tokens(1), date_off_s=3600.0))
    _, scraper = scraped(1, target(server, interval_s=0.01), clock=SystemClock())
    assert scraper.tallies["pool"].clock_offset_s == pytest.approx(3600.0, abs=30.0)


def test_an_answer_whose_own_times_stand_still_is_an_old_one(server: Server):
    server.answer(f"vllm:num_requests_waiting 1 {START_US // 1000}\n")
    samples, _ = scraped(2, target(server))
    assert [s.state for s in samples] == ["ok", "failed"]
    assert "stand still" in (samples[1].reason or "")


def test_stopping_closes_connections_and_threads(server: Server):
    server.answer(tokens(1))
    before = threading.active_count()
    scraped(3, target(server))
    assert threading.active_count() <= before + 1  # the server's own, for the connection that it saw close


def target_at(url: str, name: str = "pool") -> Target:
    return Target(name=name, url=url)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (["http://a/metrics", "http://b/metrics"], "Two scrape targets are named 'pool'"),
        (["http://"], "url must name a host"),
        (["http://host:port/metrics"], "url is not an address"),
    ],
)
def test_targets_that_can_not_be_scraped_are_refused_at_the_start(targets: list[str], message: str):
    nowhere: Callable[[Sequence[Sample]], None] = list
    with pytest.raises(InputError, match=message):
        Scraper([target_at(url) for url in targets], SystemClock(), nowhere)
