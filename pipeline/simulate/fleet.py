"""Replicas of a simulated engine behind one gate: how large they are, and what a scrape of them reads."""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from data.errors import InputError
from pipeline.simulate.calls import Call
from serving.controller.decide import Controller
from serving.controller.engine_model import EngineProfile
from serving.engine_sim.core import EngineSim
from serving.engine_sim.request import Request

MAX_BATCH = 256
CHUNK_TOKENS = 2_048
"""Prompt tokens that a step may prefill beside its decodes."""
SAMPLE = 4_000
"""Calls by which the throughput of a saturated replica is taken."""
UNBOUNDED_BLOCKS = 10_000_000


@dataclass(frozen=True, slots=True)
class Fleet:
    """Equal replicas.

    Attributes:
        profile: of one replica.
        replicas: of them.
        load: work that is offered over what the replicas can do of it, both in calls per second.
        slowed: how many times as long as the profile that was given theirs takes for everything.

    """

    profile: EngineProfile
    replicas: int
    load: float
    slowed: float = 1.0

    @property
    def capacity_tokens(self) -> int:
        """Tokens that the KV caches hold."""
        return self.replicas * self.profile.capacity_tokens

    def engines(self) -> list[EngineSim]:
        """Idle replicas."""
        return [_engine(self.profile) for _ in range(self.replicas)]


def sized(
    calls: Sequence[Call], profile: EngineProfile, *, replicas: int | None, load: float, kv_room: float | None
) -> Fleet:
    """A fleet for calls: as many replicas as asked for, or so that the calls load it as asked for.

    Without a number of replicas there are as few as can take the load, and all their times are stretched or
    shrunk alike to meet it exactly: a burst weighs the same on a small trace as on a large one.

    Args:
        calls: in order of time.
        profile: of one replica.
        replicas: number of them, each as the profile says; None goes by ``load``.
        load: share of a saturated fleet's throughput that the calls need on average.
        kv_room: KV room of a replica, as a share of what the calls would hold at their peak; None leaves the
            profile's.

    Raises:
        InputError: when a number is out of range, or there is no time between the calls.

    """
    if replicas is not None and replicas < 1:
        raise InputError(f"A fleet must have 1 or more replicas; got {replicas}.")
    if not 0 < load < math.inf:
        raise InputError(f"The load must be over 0, such as 0.6; got {load:g}.")
    if kv_room is not None and not 0 < kv_room <= 1:
        raise InputError(f"The KV room must be over 0 and at most 1; got {kv_room:g}.")
    span_s = calls[-1].at_s - calls[0].at_s if calls else 0.0
    if span_s <= 0:
        raise InputError("The calls to play must be two or more, at different times.")
    need = len(calls) / span_s / saturated_calls_per_s(calls, profile)
    factor = 1.0
    if replicas is None:
        replicas = max(1, math.ceil(need / load))
        factor = load * replicas / need
        profile = slowed(profile, factor)
    else:
        load = need / replicas
    if kv_room is not None:
        largest = max(call.prompt_tokens + call.output_tokens for call in calls)
        blocks = max(
            round(kv_room * peak_blocks(calls, profile, replicas)), -(-largest // profile.block_tokens) + 1
        )
        profile = replace(profile, kv_blocks=blocks)
    return Fleet(profile, replicas, load, factor)


def slowed(profile: EngineProfile, factor: float) -> EngineProfile:
    """The same engine, which takes ``factor`` times as long for everything."""
    times = (
        "prefill_base_s",
        "prefill_s_per_token",
        "prefill_floor_s",
        "decode_base_s",
        "decode_s_per_request",
    )
    return replace(
        profile,
        name=f"{profile.name}, {1 / factor:.2f} times as fast",
        **{name: factor * getattr(profile, name) for name in times},
    )


def saturated_calls_per_s(calls: Sequence[Call], profile: EngineProfile) -> float:
    """Calls that one replica ends per second while its line never empties, KV room aside."""
    engine = _engine(replace(profile, kv_blocks=UNBOUNDED_BLOCKS))
    for call in calls[:: -(-len(calls) // SAMPLE)]:
        engine.submit(0.0, prompt_tokens=call.to_prefill, output_tokens=call.output_tokens)
    ended_s = sorted(_end_s(request) for request in engine.advance(math.inf))
    busy = max(1, 9 * len(ended_s) // 10)  # at the end the batch runs empty
    return busy / ended_s[busy - 1]


def peak_blocks(calls: Sequence[Call], profile: EngineProfile, replicas: int) -> int:
    """KV blocks that one replica has in use at most where none is ever short of them, cached prompts too."""
    engine, most, besides = _engine(replace(profile, kv_blocks=UNBOUNDED_BLOCKS)), 1, 0
    cached: dict[Request, int] = {}
    line: deque[Request] = deque()  # in the order in which they are let in; who waits holds nothing yet
    for call in calls[::replicas]:
        request = engine.submit(call.at_s, prompt_tokens=call.to_prefill, output_tokens=call.output_tokens)
        cached[request] = -(-call.held_besides // profile.block_tokens)
        line.append(request)
        while line and line[0].state != "waiting":
            besides += cached[line.popleft()]
        besides -= sum(cached.pop(ended) for ended in engine.advance(call.at_s))
        most = max(most, engine.blocks.used + besides)
    return most


class Scrapes:
    """What the gate reads of the replicas, as a scrape of each would tell it."""

    def __init__(self, engines: Sequence[EngineSim]) -> None:
        self._engines = engines
        self._preemptions = 0
        self._read_s: float | None = None
        self._prompt_tokens = self._cached_tokens = 0

    def sent(self, call: Call) -> None:
        """Note a call that went to a replica: what of its prompt is cached is the trace's word."""
        self._prompt_tokens += call.prompt_tokens
        self._cached_tokens += call.cached_tokens or 0

    def read(self, controller: Controller, now_s: float, running: Iterable[Call]) -> None:
        """Scrape all replicas, which hold what is cached of the calls that run."""
        preemptions = sum(engine.totals.preemptions for engine in self._engines)
        since_s = None if self._read_s is None else now_s - self._read_s
        controller.observe_engine(
            now_s,
            queue_depth=float(sum(engine.waiting for engine in self._engines)),
            batch_tokens=float(
                sum(engine.blocks.used * engine.profile.block_tokens for engine in self._engines)
                + sum(call.held_besides for call in running)
            ),
            kv_miss_rate=1.0 - self._cached_tokens / self._prompt_tokens if self._prompt_tokens else None,
            preemptions_per_s=(preemptions - self._preemptions) / since_s if since_s else None,
        )
        self._preemptions, self._read_s = preemptions, now_s
        self._prompt_tokens = self._cached_tokens = 0


def _engine(profile: EngineProfile) -> EngineSim:
    # What of a prompt is cached is the trace's word: engines aren't told of it, its KV room is counted here.
    return EngineSim(profile, max_batch=MAX_BATCH, chunk_tokens=CHUNK_TOKENS, prefix_cache=False)


def _end_s(request: Request) -> float:
    if request.finished_s is None:
        raise ValueError("a request that was handed out as finished has no end")
    return request.finished_s
