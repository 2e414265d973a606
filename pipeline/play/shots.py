"""The requests of a trace as calls of an OpenAI endpoint: when, with which headers, with which body."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from data.errors import InputError
from serving.engine_sim.lengths import CHARACTERS_PER_TOKEN

FILLER = "the tide comes in and the tide goes out, and the gate knows when. "
LANE = "standard"
"""Lane of a request that has none, as the gate takes it."""


@dataclass(frozen=True, slots=True)
class Shot:
    """One call.

    Attributes:
        at_s: when it is sent first, from the start of the play.
        lane: premium, standard or batch.
        headers: who sends it, and how long it is.
        prompt_tokens: as the trace has them.
        max_tokens: the client's limit, where it had one.
        key: what its prompt's text is made of: the session, or the request alone.
        block_hashes: prefix-chained ids of the prompt's blocks, where the trace has them.
        block_tokens: tokens of such a block.

    """

    at_s: float
    lane: str
    headers: Mapping[str, str]
    prompt_tokens: int
    max_tokens: int | None
    key: str
    block_hashes: Sequence[int] = ()
    block_tokens: int = 0

    def body(self, model: str) -> dict[str, Any]:
        """Body of a streamed chat completion that asks for its usage."""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": prompt_text(self)}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return body if self.max_tokens is None else body | {"max_tokens": self.max_tokens}


def shots(
    requests: pl.DataFrame,
    *,
    speed: float = 1.0,
    start_s: float = 0.0,
    span_s: float | None = None,
    headers: Mapping[str, str] | None = None,
) -> list[Shot]:
    """Calls of a trace's requests in [start, start + span), seconds from its first one.

    They come ``speed`` times as fast as in the trace. ``headers`` are sent with each call; {tenant}, {lane},
    {session} and {request_id} in them are filled in.

    Raises:
        InputError: when no request lies there, the pace is not over 0, or a header has another placeholder.

    """
    if not 0 < speed < float("inf"):
        raise InputError(f"--speed must be over 0 and finite; got {speed}.")
    since_s = (pl.col("arrived_at") - pl.col("arrived_at").min()).dt.total_microseconds() / 1e6
    until_s = float("inf") if span_s is None else start_s + span_s
    rows = (
        requests.with_columns(since_s=since_s)
        .filter(pl.col("since_s").is_between(start_s, until_s, closed="left"))
        .sort("since_s", maintain_order=True)
    )
    if not rows.height:
        raise InputError(
            f"No request of the trace lies in [{start_s:g}, {until_s:g}) s; choose another span."
        )
    return [
        Shot(
            at_s=(row["since_s"] - start_s) / speed,
            lane=row["lane"] or LANE,
            headers=_headers(row, headers or {}),
            prompt_tokens=row["prompt_tokens"],
            max_tokens=row["max_tokens"],
            key=row["session"] or row["request_id"],
            block_hashes=row["block_hashes"] or (),
            block_tokens=row["block_tokens"] or 0,
        )
        for row in rows.iter_rows(named=True)
    ]


def prompt_text(shot: Shot) -> str:
    """Text of the prompt's length at four characters a token; equal prefixes of prompts are equal texts.

    >>> shot = Shot(0.0, "batch", {}, 12, None, "session-7")
    >>> prompt_text(shot)
    'session-7: the tide comes in and the tide goes o'

    """
    length = shot.prompt_tokens * CHARACTERS_PER_TOKEN
    if shot.block_hashes and shot.block_tokens:
        size = shot.block_tokens * CHARACTERS_PER_TOKEN
        text = "".join(_text(f"{key:x}", size) for key in shot.block_hashes)
        if len(text) >= length:
            return text[:length]
    return _text(shot.key, length)


def _text(key: str, length: int) -> str:
    head = f"{key}: "
    return (head + FILLER * (length // len(FILLER) + 1))[:length]


def _headers(row: Mapping[str, Any], own: Mapping[str, str]) -> dict[str, str]:
    known = {name: row[name] or "" for name in ("tenant", "lane", "session", "request_id")}
    told = {
        "x-request-id": row["request_id"],
        "x-tidegate-tenant": row["tenant"],
        "x-tidegate-lane": row["lane"],
        "x-tidegate-session": row["session"],
        "x-tidegate-prompt-tokens": row["prompt_tokens"],
        "x-sim-prompt-tokens": row["prompt_tokens"] or None,
        # A request that failed without output is played as one whose length the engine chooses.
        "x-sim-output-tokens": row["output_tokens"] or None,
    }
    try:
        filled = {name: text.format_map(known) for name, text in own.items()}
    except (KeyError, ValueError, IndexError) as error:
        raise InputError(
            f"--header may hold {', '.join('{' + name + '}' for name in known)}; {error} is none of them."
        ) from error
    return {name: str(value) for name, value in told.items() if value is not None} | filled
