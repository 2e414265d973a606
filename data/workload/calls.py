"""Calls: requests as arrays, before they get names, and how each one ends."""

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SERVED, FAILED, SHED, ABORTED = range(4)
"""Positions in data.schema.OUTCOMES."""
NONE = -1
"""No session, no limit, no earlier attempt."""
FAILED_SHARE = 0.010
ABORTED_SHARE = 0.010
# A 70B model on eight H100: linear fit of the public measurements of Splitwise (Patel et al., ISCA 2024).
PREFILL_S, PREFILL_S_PER_TOKEN = 0.010, 0.000091
DECODE_S_PER_TOKEN = (0.030, 0.045)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Sender(NamedTuple):
    """One tenant's use of one model in one lane."""

    tenant: str
    lane: str
    model: str


class Cause(NamedTuple):
    """Something that sends work: its start, in seconds from the workload's, its name, tenant and figures."""

    at_s: float
    cause: str
    tenant: str
    detail: str


@dataclass(frozen=True, slots=True)
class Calls:
    """Requests, one entry each; every array has shape (calls,), -1 stands for none.

    Attributes:
        sender: index into the senders of the workload.
        arrived_s, finished_s: seconds from the start.
        prompt, cached, limit, output: tokens.
        session: number of the session.
        outcome: index into OUTCOMES.

    """

    sender: Ints
    arrived_s: Floats
    prompt: Ints
    cached: Ints
    limit: Ints
    output: Ints
    session: Ints
    outcome: Ints
    finished_s: Floats

    def __len__(self) -> int:
        return len(self.sender)

    def take(self, which: NDArray[np.bool_] | Ints) -> "Calls":
        """Those calls, in that order."""
        return Calls(*(getattr(self, field.name)[which] for field in fields(self)))


def join(parts: list[Calls]) -> Calls:
    """All calls of all parts."""
    return Calls(*(np.concatenate([getattr(p, field.name) for p in parts]) for field in fields(Calls)))


def end(random: np.random.Generator, output: Ints) -> tuple[Ints, Ints]:
    """Outcome and realised output: about 1 % fail and 1 % are aborted, with a part of their output."""
    draw = random.random(len(output))
    outcome = np.where(
        draw < FAILED_SHARE, FAILED, np.where(draw < FAILED_SHARE + ABORTED_SHARE, ABORTED, SERVED)
    )
    part = np.floor(output * random.random(len(output))).astype(np.int64)
    return outcome.astype(np.int64), np.where(outcome == SERVED, output, part)


def service_s(random: np.random.Generator, uncached: Ints, output: Ints) -> Floats:
    """Seconds from arrival to the last token: prefill of what isn't cached, then decode, with 5 % noise."""
    prefill = PREFILL_S + PREFILL_S_PER_TOKEN * uncached
    decode = random.uniform(*DECODE_S_PER_TOKEN, len(output)) * output
    return (prefill + decode) * np.exp(0.05 * random.standard_normal(len(output)))


def limit_of(mean_tokens: Floats) -> Ints:
    """A client's usual limit on output: the power of two from four times its mean on, 64 to 8,192 tokens."""
    limit: Floats = np.clip(2 ** np.ceil(np.log2(4 * mean_tokens)), 64, 8192)
    return limit.astype(np.int64)


def single_calls(
    random: np.random.Generator, sender: Ints, arrived_s: Floats, prompt: Ints, output: Ints, limit: Ints
) -> Calls:
    """Calls without a session or a cached prefix; ``limit`` is -1 where the client sets none."""
    capped = np.where(limit == NONE, output, np.minimum(output, limit))
    outcome, output = end(random, capped)
    none = np.full(len(sender), NONE, dtype=np.int64)
    return Calls(
        sender=sender,
        arrived_s=arrived_s,
        prompt=prompt,
        cached=np.zeros(len(sender), dtype=np.int64),
        limit=limit,
        output=output,
        session=none,
        outcome=outcome,
        finished_s=arrived_s + service_s(random, prompt, output),
    )
