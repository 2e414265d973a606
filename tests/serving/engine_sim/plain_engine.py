"""The simulated engine as plainly as it can be said: every request is looked at in every step."""

import math
from dataclasses import dataclass

from serving.controller.engine_model import EngineProfile


@dataclass(eq=False)
class Plain:
    """A request without prefix, and when its tokens came."""

    prompt_tokens: int
    output_tokens: int
    arrives_s: float
    leaves_s: float = math.inf
    to_prefill: int = 0
    prefilled: int = 0
    blocks: int = 0
    decoding: bool = False
    times_s: tuple[float, ...] = ()
    preemptions: int = 0


def play(
    profile: EngineProfile, requests: list[Plain], max_batch: int, chunk_tokens: int | None
) -> tuple[list[Plain], int]:
    """Requests in the order that they finished, and the most blocks held at one time."""

    def blocks(tokens: int) -> int:
        return math.ceil(tokens / profile.block_tokens)

    def free() -> int:
        return profile.kv_blocks - sum(r.blocks for r in running)

    coming = sorted(requests, key=lambda r: r.arrives_s)
    waiting: list[Plain] = []
    running: list[Plain] = []
    finished: list[Plain] = []
    now_s, most = 0.0, 0

    def let_in() -> Plain | None:
        if not waiting or len(running) >= max_batch:
            return None
        first = waiting[0]
        first.to_prefill, first.prefilled = first.prompt_tokens + len(first.times_s), 0
        need = blocks(first.to_prefill + 1)
        if need > free() - (int(0.01 * profile.kv_blocks) if running else 0):
            return None
        first.blocks, first.decoding = need, False
        running.append(waiting.pop(0))
        return first

    def grow() -> bool:
        preempted = False
        while (
            sum(blocks(r.prompt_tokens + len(r.times_s) + 1) - r.blocks for r in running if r.decoding)
            > free()
        ):
            victim = running.pop()
            victim.blocks, victim.decoding, victim.preemptions = 0, False, victim.preemptions + 1
            waiting.insert(0, victim)
            preempted = True
        for r in running:
            if r.decoding:
                r.blocks = blocks(r.prompt_tokens + len(r.times_s) + 1)
        return preempted

    def leave(until_s: float, before: bool) -> None:
        """Who has come joins the line, who has gone leaves it."""
        while coming and (coming[0].arrives_s < until_s or (not before and coming[0].arrives_s == until_s)):
            waiting.append(coming.pop(0))
        for r in [*waiting, *running]:
            if r.leaves_s < until_s or (not before and r.leaves_s == until_s):
                (waiting if r in waiting else running).remove(r)
                r.blocks, r.decoding = 0, False

    while coming or waiting or running:
        if not waiting and not running:
            now_s = coming[0].arrives_s
            leave(now_s, before=False)
            if not waiting:
                continue
            waiting, rest = waiting[:1], waiting[1:]  # an idle engine begins with the first that comes
        else:
            rest = []
        chunks: list[tuple[Plain, int]] = []
        if chunk_tokens is None:
            if (r := let_in()) is not None:
                chunks = [(r, r.to_prefill)]
            decoding = [] if chunks else [r for r in running if r.decoding]
            if decoding:
                grow()
                decoding = [r for r in decoding if r.decoding]
        else:
            preempted = any(r.decoding for r in running) and grow()
            decoding = [r for r in running if r.decoding]
            budget = chunk_tokens
            for r in running:
                if not r.decoding and budget:
                    tokens = min(budget, r.to_prefill - r.prefilled)
                    chunks.append((r, tokens))
                    budget -= tokens
            while budget and not preempted and (r := let_in()) is not None:
                chunks.append((r, min(budget, r.to_prefill)))
                budget -= chunks[-1][1]
        waiting += rest
        most = max(most, sum(r.blocks for r in running))
        took_s = profile.decode_step_s(len(decoding)) if decoding else 0.0
        took_s += sum(
            profile.prefill_s(r.prefilled + tokens) - (profile.prefill_s(r.prefilled) if r.prefilled else 0.0)
            for r, tokens in chunks
        )
        now_s += took_s
        leave(now_s, before=True)
        for r in decoding:
            if r in running:
                r.times_s += (now_s,)
        for r, tokens in chunks:
            r.prefilled += tokens
            if r in running and r.prefilled == r.to_prefill:
                r.decoding = True
                r.times_s += (now_s,)
        for r in [r for r in running if len(r.times_s) == r.output_tokens]:
            running.remove(r)
            r.blocks = 0
            finished.append(r)
    return finished, most
