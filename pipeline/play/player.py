"""Plays calls on time, whether or not the endpoint keeps up, and writes down what each client saw."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

import httpx

from data.errors import InputError
from pipeline.play.retries import delay_s
from pipeline.play.shots import Shot
from serving.clock import Clock

End = Literal["served", "refused", "overloaded", "failed"]


@dataclass(slots=True)
class Seen:
    """What became of one call; times in seconds of the play, from its start.

    Attributes:
        lane: its lane.
        at_s: when it was due.
        sent_s: when it was sent first.
        first_token_s: when its first text came, of whichever try.
        ended_s: when it was over.
        output_tokens: by the endpoint's usage; None where none came.
        tries: calls made, retries included.
        refusals: how many of them were answered 429.
        end: served; refused or overloaded, as the last try was answered 429 or 503; failed for all else.

    """

    lane: str
    at_s: float
    sent_s: float = 0.0
    first_token_s: float | None = None
    ended_s: float | None = None
    output_tokens: int | None = None
    tries: int = 0
    refusals: int = 0
    end: End = "failed"


async def play(
    shots: Sequence[Shot],
    url: str,
    model: str,
    clock: Clock,
    *,
    timeout_s: float = 600.0,
    seed: int = 0,
    progress: Callable[[], None] = lambda: None,
) -> list[Seen]:
    """Send every call at its time to ``url``/chat/completions, and wait until all are over.

    ``timeout_s`` is the longest silence that a client bears. ``progress`` is called after each call.

    Raises:
        InputError: when the address is none, or nothing answers there.

    """
    try:
        base = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise InputError(f"--url must be an address; got '{url}' ({error}).") from error
    if base.scheme not in ("http", "https") or not base.host:
        raise InputError(f"--url must be an address such as http://127.0.0.1:8000/v1; got '{url}'.")
    random = Random(seed)
    # Connections are dropped before servers drop them, so that no call goes out on one that is closing.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=2.0)
    # Reading the certificate authorities takes a while, which the event loop may not have.
    client = await asyncio.to_thread(
        httpx.AsyncClient, base_url=base, timeout=timeout_s, trust_env=False, limits=limits
    )
    seen = []
    async with client:
        try:
            await client.get("models")
        except httpx.RequestError as error:
            raise InputError(
                f"Nothing answers at {url}/models ({error}); start the endpoint first."
            ) from error
        async with asyncio.TaskGroup() as tasks:
            start_s = clock.monotonic_s()
            for shot in shots:
                await clock.sleep(max(0.0, start_s + shot.at_s - clock.monotonic_s()))
                seen.append(Seen(shot.lane, shot.at_s))
                tasks.create_task(_call(client, shot, model, seen[-1], clock, start_s, random, progress))
    return seen


async def _call(
    client: httpx.AsyncClient,
    shot: Shot,
    model: str,
    seen: Seen,
    clock: Clock,
    start_s: float,
    random: Random,
    progress: Callable[[], None],
) -> None:
    """One call with its retries."""
    seen.sent_s = clock.monotonic_s() - start_s
    body = json.dumps(shot.body(model)).encode()
    while True:
        headers = {
            **{name.encode(): value.encode() for name, value in shot.headers.items()},
            b"content-type": b"application/json",
            b"x-stainless-retry-count": str(seen.tries).encode(),
        }
        seen.tries += 1
        status, told = None, httpx.Headers()
        try:
            async with client.stream("POST", "chat/completions", content=body, headers=headers) as answer:
                status, told = answer.status_code, answer.headers
                if status == 200:
                    whole = await _read(answer, seen, lambda: clock.monotonic_s() - start_s)
                    seen.end = "served" if whole else "failed"
        except (httpx.RequestError, ValueError):  # no answer, or one that isn't an event stream
            seen.end = "failed"
        if status == 200:  # a stream that breaks is not asked for again: part of it was shown
            break
        if status is not None:
            seen.refusals += status == 429
            seen.end = "refused" if status == 429 else "overloaded" if status == 503 else "failed"
        wait_s = delay_s(status, told, seen.tries - 1, random)
        if wait_s is None:
            break
        await clock.sleep(wait_s)
    seen.ended_s = clock.monotonic_s() - start_s
    progress()


async def _read(answer: httpx.Response, seen: Seen, now_s: Callable[[], float]) -> bool:
    """Read a stream; True where it came to its end."""
    async for line in answer.aiter_lines():
        if line == "data: [DONE]":
            return True
        if not line.startswith("data: "):
            continue
        event = json.loads(line.removeprefix("data: "))
        if seen.first_token_s is None and any(
            choice.get("delta", {}).get("content") for choice in event.get("choices", ())
        ):
            seen.first_token_s = now_s()
        if usage := event.get("usage"):
            seen.output_tokens = usage.get("completion_tokens")
    return False
