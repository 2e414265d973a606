"""A trace's requests as calls of clients, and what becomes of each."""

from dataclasses import dataclass
from typing import NamedTuple

import polars as pl

from pipeline.play.shots import LANE

US = 1_000_000


@dataclass(slots=True, eq=False)
class Call:
    """One call, from when it is sent first until its client has it all or has given up.

    Attributes:
        at_s: when it is sent first, seconds from the trace's first request.
        prompt_tokens, cached_tokens, output_tokens, max_tokens: as the trace has them.
        tenant, lane, model: whose it is.
        tries: how often the client sent it.
        refusals: 429s that it got.
        restrained_s: when the forecast alone had it refused first; None: never.
        sent_s: when the try that runs or waits was sent.
        first_token_s, ended_s: when its first token came, and when it ended.
        generated_tokens: output so far.
        end: served, refused, or failed: refused in the middle of its answer; empty before.
        reservation: of the try that runs.
        continuation: by which the client asks for the rest of an answer that was clamped.

    """

    at_s: float
    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int
    max_tokens: int | None
    tenant: str | None
    lane: str
    model: str | None
    tries: int = 0
    refusals: int = 0
    restrained_s: float | None = None
    sent_s: float = 0.0
    first_token_s: float | None = None
    ended_s: float | None = None
    generated_tokens: int = 0
    end: str = ""
    reservation: str = ""
    continuation: str | None = None

    @property
    def to_prefill(self) -> int:
        """Prompt tokens that an engine has to compute; of the rest of an answer one."""
        if self.generated_tokens:
            return 1
        return max(1, self.prompt_tokens - (self.cached_tokens or 0))

    @property
    def held_besides(self) -> int:
        """Tokens before those that are prefilled: they are in cache, and hold KV room while the call runs."""
        return self.prompt_tokens + self.generated_tokens - self.to_prefill

    @property
    def left_tokens(self) -> int:
        """Output that is still to come."""
        return self.output_tokens - self.generated_tokens


class Calls(NamedTuple):
    """Calls in order of time, and how many requests can't be played, since nobody knows their tokens."""

    calls: list[Call]
    unknown: int


def calls_of(requests: pl.DataFrame, start_s: float, end_s: float) -> Calls:
    """Calls of the requests that arrive in [start_s, end_s), seconds from the first of ``requests``."""
    at_us = pl.col("arrived_at").to_physical()
    at_s = (at_us - at_us.min()) / US
    within = requests.with_columns(at_s=at_s).filter(pl.col("at_s") >= start_s, pl.col("at_s") < end_s)
    known = within.filter(pl.col("output_tokens") > 0, pl.col("prompt_tokens") > 0)
    rows = known.select(
        pl.col("at_s"),
        *("prompt_tokens", "cached_tokens", "output_tokens", "max_tokens", "tenant"),
        pl.col("lane").fill_null(LANE),
        pl.col("model"),
    )
    return Calls([Call(*row) for row in rows.iter_rows()], within.height - known.height)
