"""A request in a simulated engine, and what the engine counts over all of them."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["waiting", "prefilling", "decoding", "finished", "aborted"]


@dataclass(slots=True, eq=False)
class Request:
    """A request in the engine, and what became of it; times are those of the engine's clock, None before.

    Attributes:
        arrived_s: when it was submitted.
        prompt_tokens: tokens of its prompt.
        output_tokens: tokens that it will generate; the engine's scheduling doesn't look ahead to it.
        prefix: a key for each full KV block of the prompt, chained; empty where reuse isn't known.
        state: where it is.
        scheduled_s: when its first prefill began.
        first_token_s: when that ended.
        finished_s: when the last token came, or when it was aborted.
        cached_tokens: prompt tokens that the prefix cache had at the first prefill.
        preemptions: how often it lost its blocks.

    """

    arrived_s: float
    prompt_tokens: int
    output_tokens: int
    prefix: Sequence[Hashable] = ()
    state: State = "waiting"
    scheduled_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    cached_tokens: int = 0
    preemptions: int = 0
    _generated: int = 0  # while it decodes: less the engine's count of decode steps
    _shared: int = 0
    _to_prefill: int = 0
    _prefilled: int = 0


@dataclass(slots=True)
class Totals:
    """What an engine has done since it started."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    looked_up_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    finished: int = 0
    aborted: int = 0
    refused: int = 0
