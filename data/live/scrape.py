"""Scrape engines: each target on its own schedule, each answer a list of samples."""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from random import Random
from typing import Protocol

import httpx

from data.config import Target
from data.errors import InputError
from data.live.engines import WANTED, Reading, read
from data.live.exposition import Exposition, ScrapeError, parse
from data.live.samples import Sample, reason_of
from data.live.track import Track

MAX_BODY_BYTES = 8 * 1024 * 1024
SKEW_S = 5.0
"""An engine's clock further off than this is named in its samples."""
LONGEST_GAP_S = 60.0
"""Counters are not compared over a longer time than this, or three intervals of the target."""
HOPS = 3
HEADERS = {
    # OpenMetrics is understood, but not asked for: prometheus_client then writes names without their colons.
    "accept": "text/plain;version=0.0.4,*/*;q=0.1",
    "accept-encoding": "identity",  # what is read has a limit, and unpacking would pass it
    "user-agent": "tidegate",
}

# A kept connection may be closed by the engine just as the next scrape goes out on it: a failure of neither.
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=0)


class Clock(Protocol):
    """Wall time for what is stored, monotonic time for what is measured, and a way to wait."""

    def wall_us(self) -> int:
        """Microseconds since the Unix epoch."""
        ...

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary start."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for that long."""
        ...


@dataclass(slots=True)
class Tally:
    """What became of one target's scrapes.

    Attributes:
        scrapes: scrapes begun.
        failures: scrapes that told nothing.
        suspect: samples whose gauges were frozen.
        dropped: single readings that couldn't be right.
        skipped: turns that passed while an earlier scrape still ran.
        clock_offset_s: the engine's clock less ours, at the last scrape that told; None before.

    """

    scrapes: int = 0
    failures: int = 0
    suspect: int = 0
    dropped: int = 0
    skipped: int = 0
    clock_offset_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Answer:
    body: bytes
    content_type: str
    date: str | None


class Scraper:
    """Scrapes every target until it is cancelled; a slow one delays no other.

    `sink` gets the samples of each scrape, one an engine, in the event loop: it must not wait. A scrape that
    failed is a sample too, for each engine that the target had. Proxies of the environment are not used, and
    redirects only within the same scheme, host and port.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        clock: Clock,
        sink: Callable[[Sequence[Sample]], None],
        *,
        random: Random | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        """Start with nothing known of the engines.

        Raises:
            InputError: when two targets share a name or an address names no host.

        """
        self._loops = [_Loop(target, clock, max_body_bytes) for target in targets]
        self.tallies = {loop.target.name: loop.tally for loop in self._loops}
        if len(self.tallies) < len(self._loops):
            names = [target.name for target in targets]
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"Two scrape targets are named '{twice}'; give each a name of its own.")
        self._sink = sink
        self._random = random or Random()

    async def run(self) -> None:
        """Scrape until cancelled."""
        # A scrape is no news, and its address may hold a password.
        logging.getLogger("httpx").setLevel(logging.WARNING)
        # Each starts at another place of its interval, so that not all of them come together.
        first_s = [
            loop.clock.monotonic_s() + self._random.random() * loop.target.interval_s for loop in self._loops
        ]
        # Reading the certificate authorities takes a while, which the event loop may not have.
        client = await asyncio.to_thread(
            httpx.AsyncClient, headers=HEADERS, timeout=None, trust_env=False, limits=LIMITS
        )
        async with client, asyncio.TaskGroup() as tasks:
            for loop, due_s in zip(self._loops, first_s, strict=True):
                tasks.create_task(loop.run(client, self._sink, due_s))


class _Loop:
    """One target, its engines and its schedule."""

    def __init__(self, target: Target, clock: Clock, max_body_bytes: int) -> None:
        try:
            self.url = httpx.URL(target.url)
        except httpx.InvalidURL as error:
            raise InputError(f"Scrape target {target.name}: url is not an address: {error}.") from error
        if not self.url.host:
            raise InputError(f"Scrape target {target.name}: url must name a host; got '{target.url}'.")
        self.target = target
        self.clock = clock
        self.max_body_bytes = max_body_bytes
        self.tally = Tally()
        self._tracks: dict[str, Track] = {}
        self._own_s = math.nan

    async def run(
        self, client: httpx.AsyncClient, sink: Callable[[Sequence[Sample]], None], due_s: float
    ) -> None:
        """Scrape once an interval, first at `due_s`; what a scrape takes moves no later one."""
        interval_s = self.target.interval_s
        while True:
            await self.clock.sleep(max(0.0, due_s - self.clock.monotonic_s()))
            sink(await self.scrape(client))
            passed = max(0, math.floor((self.clock.monotonic_s() - due_s) / interval_s))
            self.tally.skipped += passed
            due_s += (1 + passed) * interval_s

    async def scrape(self, client: httpx.AsyncClient) -> list[Sample]:
        """One scrape: a sample for each engine."""
        self.tally.scrapes += 1
        asked_us = self.clock.wall_us()
        try:
            async with asyncio.timeout(self.target.timeout_s):
                answer = await self._get(client)
                at_us, now_s = self.clock.wall_us(), self.clock.monotonic_s()
                exposition, readings = await asyncio.to_thread(_understood, answer)  # a long one takes long
            own_s = max((s.at_s for s in exposition.series if s.at_s is not None), default=None)
            self._measure_offset(own_s, answer.date, (asked_us + at_us) / 2e6)
        except TimeoutError:
            return self._failed(f"no whole answer within {self.target.timeout_s:g} s")
        except ScrapeError as error:
            return self._failed(str(error))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return self._failed(f"{type(error).__name__}: {error}".rstrip(": "))
        self.tally.dropped += len(exposition.malformed)
        gone = self._tracks.keys() - {reading.engine for reading in readings}
        samples = self._failed("it is no longer exported", sorted(gone)) if gone else []
        for engine in gone:
            del self._tracks[engine]
        return samples + [self._sample(reading, exposition.malformed, at_us, now_s) for reading in readings]

    def _sample(self, reading: Reading, malformed: Sequence[str], at_us: int, now_s: float) -> Sample:
        longest_s = max(LONGEST_GAP_S, 3 * self.target.interval_s)
        track = self._tracks.setdefault(reading.engine, Track(self.target.name, longest_s))
        offset_s = self.tally.clock_offset_s
        notes = list(malformed)
        if offset_s is not None and abs(offset_s) > SKEW_S:
            notes.append(
                f"its clock is {abs(offset_s):.1f} s {'ahead of' if offset_s > 0 else 'behind'} ours"
            )
        observed = track.observe(reading, at_us, now_s, notes)
        self.tally.dropped += observed.dropped
        self.tally.suspect += observed.sample.state == "suspect"
        return observed.sample

    def _failed(self, reason: str, engines: Sequence[str] | None = None) -> list[Sample]:
        """Failed samples of these engines; by default of all that the target had, and the scrape counts."""
        if engines is None:
            self.tally.failures += 1
            engines = sorted(self._tracks) or [""]
        at_us, name = self.clock.wall_us(), self.target.name
        return [
            Sample(source=name, at_us=at_us, engine=engine, state="failed", reason=reason_of([reason]))
            for engine in engines
        ]

    def _measure_offset(self, own_s: float | None, date: str | None, ours_s: float) -> None:
        """Compare clocks, by the exposition's own times or the answer's date, which has whole seconds."""
        if own_s is not None:
            if own_s == self._own_s:
                raise ScrapeError("its own times stand still: these are the readings of before")
            self._own_s = own_s
        elif date is not None:
            own_s = _unix_s(date)
        self.tally.clock_offset_s = None if own_s is None else own_s - ours_s

    async def _get(self, client: httpx.AsyncClient) -> _Answer:
        request = client.build_request("GET", self.url)
        for _ in range(1 + HOPS):
            response = await client.send(request, stream=True)
            try:
                if response.next_request is None:
                    return await self._body(response)
                if _origin(response.next_request.url) != _origin(self.url):
                    raise ScrapeError(
                        f"it answers {response.status_code} and points to another host: "
                        "give the address of the metrics themselves"
                    )
                request = response.next_request
            finally:
                await response.aclose()
        raise ScrapeError(f"it redirects over {HOPS} times")

    async def _body(self, response: httpx.Response) -> _Answer:
        if response.status_code != 200:
            raise ScrapeError(f"it answers {response.status_code} {response.reason_phrase}".rstrip())
        if (encoding := response.headers.get("content-encoding", "identity")) != "identity":
            raise ScrapeError(f"its answer is packed as {encoding[:32]}, which was not asked for")
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > self.max_body_bytes:
                raise ScrapeError(f"its answer is over {self.max_body_bytes} bytes long")
        return _Answer(
            bytes(body), response.headers.get("content-type", "").lower(), response.headers.get("date")
        )


def _understood(answer: _Answer) -> tuple[Exposition, list[Reading]]:
    exposition = parse(answer.body, answer.content_type, WANTED)
    return exposition, read(exposition)


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port or {"http": 80, "https": 443}.get(url.scheme)


def _unix_s(date: str) -> float | None:
    """Time of an HTTP date; None when it is none."""
    try:
        told = parsedate_to_datetime(date)
    except ValueError:
        return None
    return told.replace(tzinfo=told.tzinfo or UTC).timestamp()
