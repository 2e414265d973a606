"""The play itself: history that ends now, then the same calls to every stack at their times, watched."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import httpx
import polars as pl

from data.errors import InputError
from data.live.exposition import Series, parse
from features.ticks import TICK_S
from pipeline.gateway_demo.rehearsal import MODEL
from pipeline.gateway_demo.stack import Stack
from pipeline.play.player import play
from pipeline.play.score import frame
from pipeline.play.shots import Shot
from pipeline.replay import ROWS_A_POST, US, Events
from serving.clock import Clock

LOOK_EVERY_S = 1.0
PATIENCE_S = 60.0
"""Longest silence that a client, or the demo itself, bears."""
WAITING, RUNNING = "vllm:num_requests_waiting", "vllm:num_requests_running"
PREEMPTIONS, ENDED = "vllm:num_preemptions_total", "vllm:request_success_total"
REFUSED = "tidegate_refused_total"
FAILED_OPEN = ".ext_authz.failure_mode_allowed"


@dataclass(frozen=True, slots=True)
class Look:
    """A stack at one moment; what could not be seen is None.

    Attributes:
        at_s: seconds of the play.
        waiting, running: requests in the engine.
        tightening: level of the gate, 0 to 1.
        alarm: the forecast tightens it.

    """

    at_s: float
    waiting: float | None = None
    running: float | None = None
    tightening: float | None = None
    alarm: bool | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the play at one stack.

    Attributes:
        name: what decided in it.
        calls: a row a call, as `pipeline.play.score.frame` has them.
        looks: in order of time.
        refused: 429 answers by lane and reason, as Tidegate counts them.
        aborts: requests that left the engine before their end.
        preemptions: requests that lost their KV blocks.
        unchecked: requests that Envoy let in since Tidegate did not answer in time; None where it isn't told.
        state: what Tidegate said of its predictor when the play began.

    """

    name: str
    calls: pl.DataFrame
    looks: list[Look]
    refused: Mapping[tuple[str, str], int]
    aborts: int
    preemptions: int
    unchecked: int | None
    state: str


async def perform(
    stacks: Sequence[Stack],
    told: Events,
    shots: Sequence[Shot],
    start_us: int,
    clock: Clock,
    progress: Callable[[str, float], None],
) -> list[Outcome]:
    """Tell every stack its history, then play the calls to all of them from ``start_us`` on.

    Raises:
        InputError: when a stack has not taken in its history when the play should start.

    """
    limits = httpx.Limits(max_keepalive_connections=20, keepalive_expiry=2.0)
    client = await asyncio.to_thread(httpx.AsyncClient, timeout=PATIENCE_S, trust_env=False, limits=limits)
    async with client:
        ready = [asyncio.Event() for _ in stacks]
        feeds = [
            asyncio.create_task(_feed(client, stack, told, clock, one))
            for stack, one in zip(stacks, ready, strict=True)
        ]
        try:
            began_us = clock.wall_us()
            while (now_us := clock.wall_us()) < start_us:
                _check(feeds)
                progress("history, up to now", (now_us - began_us) / max(1, start_us - began_us))
                await clock.sleep(min(1.0, (start_us - now_us) / US))
            if not all(one.is_set() for one in ready):
                raise InputError(
                    f"This machine could not take in the history in {(start_us - began_us) / US:.0f} s, so "
                    "the play can't start; free the machine, or give a larger --lead-s."
                )
            outcomes = await _play(client, stacks, shots, clock, progress)
            _check(feeds)
            return outcomes
        finally:
            for feed in feeds:
                feed.cancel()
            await asyncio.gather(*feeds, return_exceptions=True)


def _check(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Raise what a task that has ended failed with."""
    for task in tasks:
        if task.done():
            task.result()


async def _play(
    client: httpx.AsyncClient,
    stacks: Sequence[Stack],
    shots: Sequence[Shot],
    clock: Clock,
    progress: Callable[[str, float], None],
) -> list[Outcome]:
    """Play the calls to all stacks at the same time, and look on."""
    states = [await _state(client, stack) for stack in stacks]
    progress("play", 0.0)
    ended = 0

    def told() -> None:
        nonlocal ended
        ended += 1
        progress("play", ended / (len(shots) * len(stacks)))

    over = asyncio.Event()
    watches = [asyncio.create_task(_watch(client, stack, clock, over)) for stack in stacks]
    urls = [f"{stack.url}/v1" for stack in stacks]
    try:
        seen = await asyncio.gather(
            *(play(shots, url, MODEL, clock, timeout_s=PATIENCE_S, progress=told) for url in urls)
        )
    finally:
        over.set()
        looks = await asyncio.gather(*watches)
    return [
        await _outcome(client, *parts) for parts in zip(stacks, map(frame, seen), looks, states, strict=True)
    ]


async def _feed(
    client: httpx.AsyncClient, stack: Stack, told: Events, clock: Clock, caught_up: asyncio.Event
) -> None:
    """Post events as soon as they have happened, until all have; sets ``caught_up`` as ticks are on time."""
    sent_us, last_us = 0, int(told.at_us[-1])
    while sent_us <= last_us:
        now_us = clock.wall_us()
        lines = told.between(sent_us, now_us)
        for first in range(0, len(lines), ROWS_A_POST):
            body = "\n".join(lines.slice(first, ROWS_A_POST)).encode()
            answer = await client.post(f"{stack.tidegate}/v1/telemetry", content=body)
            counts = answer.raise_for_status().json()
            if counts["refused"]:
                raise RuntimeError(f"Tidegate refused {counts['refused']} rows of history: {counts}")
        sent_us = now_us
        if not caught_up.is_set():
            at = (await client.get(f"{stack.tidegate}/v1/forecast")).raise_for_status().json()["tick_at"]
            if at and now_us / US - datetime.fromisoformat(at).timestamp() < 2 * TICK_S:
                caught_up.set()
        await clock.sleep(1.0)


async def _watch(client: httpx.AsyncClient, stack: Stack, clock: Clock, over: asyncio.Event) -> list[Look]:
    """Look at a stack every second until ``over``."""
    looks: list[Look] = []
    start_s = clock.monotonic_s()
    while not over.is_set():
        look = Look(clock.monotonic_s() - start_s)
        try:
            engine = await _series(client, f"{stack.engine}/metrics", (WAITING, RUNNING))
            look = replace(look, waiting=_sum(engine, WAITING), running=_sum(engine, RUNNING))
            gate = (await client.get(f"{stack.tidegate}/v1/forecast")).raise_for_status().json()
            look = replace(look, tightening=gate["tightening"], alarm=gate["alarm"])
        except httpx.HTTPError:
            pass  # unknown at this moment: the look says so
        looks.append(look)
        await clock.sleep(max(0.0, start_s + len(looks) * LOOK_EVERY_S - clock.monotonic_s()))
    return looks


async def _state(client: httpx.AsyncClient, stack: Stack) -> str:
    told = (await client.get(f"{stack.tidegate}/readyz")).raise_for_status().json()
    return f"{told['predictor']}, {told['reason']}"


async def _outcome(
    client: httpx.AsyncClient, stack: Stack, calls: pl.DataFrame, looks: list[Look], state: str
) -> Outcome:
    engine = await _series(client, f"{stack.engine}/metrics", (PREEMPTIONS, ENDED))
    gate = await _series(client, f"{stack.tidegate}/metrics", (REFUSED,))
    counts = (await client.get(f"{stack.envoy}/stats?format=json&filter=ext_authz")).raise_for_status().json()
    unchecked = [one["value"] for one in counts["stats"] if one.get("name", "").endswith(FAILED_OPEN)]
    return Outcome(
        name=stack.name,
        calls=calls,
        looks=looks,
        refused={(one.labels["lane"], one.labels["reason"]): round(one.value) for one in gate if one.value},
        aborts=round(_sum([one for one in engine if one.labels.get("finished_reason") == "abort"], ENDED)),
        preemptions=round(_sum(engine, PREEMPTIONS)),
        unchecked=max(unchecked, default=None),
        state=state,
    )


async def _series(client: httpx.AsyncClient, url: str, names: Sequence[str]) -> Sequence[Series]:
    answer = (await client.get(url)).raise_for_status()
    return parse(answer.content, answer.headers["content-type"], names).series


def _sum(series: Sequence[Series], name: str) -> float:
    return sum(one.value for one in series if one.name == name)
