"""The simulated engine itself: discrete steps on a clock that is passed in, and nothing drawn by chance.

Each step decodes one token for every running request, prefills prompts, or both. It takes the time that the
engine profile says. Requests wait in line for a place in the batch and for KV blocks; where blocks run out in
mid-decode, the request that was let in last is preempted: it loses its blocks, goes to the head of the line
and is prefilled anew, prompt and output so far, as vLLM does. A step costs the same whatever the batch, since
all that decode together advance by one shared counter.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from data.errors import Busy, InputError
from serving.controller.engine_model import EngineProfile
from serving.engine_sim.blocks import KvBlocks
from serving.engine_sim.request import Request, Totals

WATERMARK = 0.01
"""Share of the blocks that stays free when a request is let in beside others, so that these can grow."""


@dataclass(slots=True)
class _Step:
    """A step that runs: when it ends, whether it decodes, and what it prefills of which prompt."""

    end_s: float
    decodes: bool
    chunks: list[tuple[Request, int]] = field(default_factory=list)


class EngineSim:
    """One engine replica.

    Without ``chunk_tokens`` a step prefills one whole prompt, and decode waits for it. With it, a step
    decodes and prefills up to so many prompt tokens beside that, in order of arrival; the parts of a prompt
    take as long as the whole.

    >>> from serving.controller.engine_model import H100
    >>> engine = EngineSim(H100)
    >>> request = engine.submit(0.0, prompt_tokens=8_000, output_tokens=3)
    >>> engine.advance(10.0) == [request]
    True
    >>> round(request.first_token_s, 4), round(request.finished_s, 4)  # prefill, then two decode steps
    (0.7381, 0.7987)

    """

    def __init__(
        self,
        profile: EngineProfile,
        *,
        max_batch: int = 256,
        chunk_tokens: int | None = None,
        max_waiting: int | None = None,
        prefix_cache: bool = True,
    ) -> None:
        """Start idle; ``max_waiting`` bounds the line, ``prefix_cache`` False ignores every prefix.

        Raises:
            InputError: when a limit is under 1.

        """
        for name, limit in (
            ("max_batch", max_batch),
            ("chunk_tokens", chunk_tokens),
            ("max_waiting", max_waiting),
        ):
            if limit is not None and limit < 1:
                raise InputError(f"Simulated engine: {name} must be 1 or more; got {limit}.")
        self.profile = profile
        self.max_batch = max_batch
        self.chunk_tokens = chunk_tokens
        self.max_waiting = max_waiting
        self.prefix_cache = prefix_cache
        self.blocks = KvBlocks(profile.kv_blocks)
        self.totals = Totals()
        self.now_s = float("-inf")
        self._waiting: OrderedDict[Request, None] = OrderedDict()
        self._running: dict[Request, None] = {}  # in the order that they were let in
        self._prefilling: dict[Request, None] = {}
        self._decoding = 0
        self._decoded = 0  # decode steps so far: the counter that all decoding requests share
        self._ends: list[tuple[int, int, Request]] = []
        self._pushed = 0
        self._grows: Counter[int] = Counter()  # decoding requests, by the phase at which they need a block
        self._step: _Step | None = None
        self._finished: list[Request] = []

    @property
    def waiting(self) -> int:
        """Requests in line, preempted ones included."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests in the batch: prefilling or decoding."""
        return len(self._running)

    @property
    def next_s(self) -> float | None:
        """When the step that runs ends; None while idle."""
        return None if self._step is None else self._step.end_s

    def generated(self, request: Request) -> int:
        """Output tokens that a request has so far."""
        return request._generated + (self._decoded if request.state == "decoding" else 0)

    def submit(
        self, now_s: float, *, prompt_tokens: int, output_tokens: int, prefix: Sequence[Hashable] = ()
    ) -> Request:
        """Put a request in line; an idle engine begins at once.

        Keys of blocks that the prompt doesn't fill are ignored.

        Raises:
            Busy: when the line is full.
            InputError: when a count is under 1, or the engine could never hold the request.

        """
        self._run_to(now_s)
        tokens = prompt_tokens + output_tokens
        if min(prompt_tokens, output_tokens) < 1:
            raise InputError("A request must have one prompt token and one output token, or more.")
        if self._blocks_for(tokens) > self.profile.kv_blocks:
            raise InputError(
                f"A request of {tokens} tokens can't run: the engine's KV cache holds "
                f"{self.profile.capacity_tokens}."
            )
        if self.max_waiting is not None and len(self._waiting) >= self.max_waiting:
            self.totals.refused += 1
            raise Busy(f"{len(self._waiting)} requests wait already, which is the limit.")
        full = prompt_tokens // self.profile.block_tokens if self.prefix_cache else 0
        request = Request(now_s, prompt_tokens, output_tokens, prefix[:full])
        self._waiting[request] = None
        if self._step is None:
            self._begin(now_s)
        return request

    def abort(self, request: Request, now_s: float) -> bool:
        """Take a request out, and free its blocks; False where it had ended already."""
        self._run_to(now_s)
        if request.state in ("finished", "aborted"):
            return False
        if request.state == "waiting":
            del self._waiting[request]
        else:
            self._leave(request, in_step=self._step is not None and self._step.decodes)
        request.state, request.finished_s = "aborted", now_s
        self.totals.aborted += 1
        return True

    def advance(self, until_s: float) -> list[Request]:
        """Run every step that ends by then; the requests that have finished since the last call, in order."""
        self._run_to(until_s)
        finished, self._finished = self._finished, []
        return finished

    def _run_to(self, now_s: float) -> None:
        if now_s < self.now_s:
            raise ValueError(f"time goes forward only: {now_s} is before {self.now_s}")
        while self._step is not None and self._step.end_s <= now_s:
            self._end(self._step)
        self.now_s = now_s

    def _begin(self, at_s: float) -> None:
        """Choose what the next step does; none while there is nothing to do."""
        chunks: list[tuple[Request, int]] = []
        if self.chunk_tokens is None:
            if (request := self._let_in(at_s)) is not None:
                chunks.append((request, request._to_prefill))
            decodes = self._decoding > 0 and not chunks
            if decodes:
                self._grow()
        else:
            decodes = self._decoding > 0
            preempted = decodes and self._grow()
            decodes = self._decoding > 0
            budget = self.chunk_tokens
            for request in self._prefilling:
                if budget:
                    chunks.append((request, min(budget, request._to_prefill - request._prefilled)))
                    budget -= chunks[-1][1]
            while budget and not preempted and (let_in := self._let_in(at_s)) is not None:
                chunks.append((let_in, min(budget, let_in._to_prefill)))
                budget -= chunks[-1][1]
        if not decodes and not chunks:
            self._step = None
            return
        took_s = self.profile.decode_step_s(self._decoding) if decodes else 0.0
        took_s += sum(self._chunk_s(request, tokens) for request, tokens in chunks)
        self._step = _Step(at_s + took_s, decodes, chunks)

    def _end(self, step: _Step) -> None:
        """Hand out the tokens of a step, and begin the next one."""
        if step.decodes:
            self._decoded += 1
            self.totals.output_tokens += self._decoding
            while self._ends and self._ends[0][0] <= self._decoded:
                _, _, request = heapq.heappop(self._ends)
                # Aborted and preempted ones were left on the heap; a preempted one may decode again.
                if request.state == "decoding" and self.generated(request) >= request.output_tokens:
                    self._finish(request, step.end_s)
        for request, tokens in step.chunks:
            if request.state != "prefilling":  # aborted on the way
                continue
            request._prefilled += tokens
            if request._prefilled == request._to_prefill:
                self._prefill_done(request, step.end_s)
        self._begin(step.end_s)

    def _let_in(self, at_s: float) -> Request | None:
        """Move the head of the line into the batch, if there is a place and room for its tokens."""
        if not self._waiting or len(self._running) >= self.max_batch:
            return None
        request = next(iter(self._waiting))
        tokens = request.prompt_tokens + request._generated
        # The last token's outcome is wanted, so at least that one is computed.
        most = (tokens - 1) // self.profile.block_tokens
        matched = request.prefix[: self.blocks.match(request.prefix[:most])]
        private = self._blocks_for(tokens + 1) - len(matched)
        reserve = int(WATERMARK * self.blocks.total) if self._running else 0
        if self.blocks.needed(matched, private) > self.blocks.free - reserve:
            return None
        self.blocks.reference(matched)
        self.blocks.take(private)
        cached = len(matched) * self.profile.block_tokens
        request._shared, request._to_prefill, request._prefilled = len(matched), tokens - cached, 0
        if request.scheduled_s is None:
            request.scheduled_s, request.cached_tokens = at_s, cached
            self.totals.looked_up_tokens += request.prompt_tokens if self.prefix_cache else 0
            self.totals.cached_tokens += cached
        del self._waiting[request]
        self._running[request] = self._prefilling[request] = None
        request.state = "prefilling"
        return request

    def _prefill_done(self, request: Request, at_s: float) -> None:
        """The prefill's end is a token, the first one unless it was preempted; decode goes on from it."""
        self.blocks.share(request.prefix[request._shared :])
        request._shared = len(request.prefix)
        request._generated += 1
        self.totals.output_tokens += 1
        if request.first_token_s is None:
            request.first_token_s = at_s
            self.totals.prompt_tokens += request.prompt_tokens
        del self._prefilling[request]
        request.state = "decoding"
        request._generated -= self._decoded
        self._decoding += 1
        self._grows[self._phase(request)] += 1
        if self.generated(request) == request.output_tokens:
            self._finish(request, at_s)
            return
        self._pushed += 1
        heapq.heappush(self._ends, (request.output_tokens - request._generated, self._pushed, request))

    def _finish(self, request: Request, at_s: float) -> None:
        self._leave(request, in_step=False)
        request.state, request.finished_s = "finished", at_s
        self.totals.finished += 1
        self._finished.append(request)

    def _grow(self) -> bool:
        """Take the blocks that the next decode step fills; True where requests had to be preempted for it."""
        preempted = False
        phase = self._decoded % self.profile.block_tokens
        while self._grows[phase] > self.blocks.free:
            victim = next(reversed(self._running))
            self._leave(victim, in_step=False)
            victim.state = "waiting"
            victim.preemptions += 1
            self.totals.preemptions += 1
            self._waiting[victim] = None
            self._waiting.move_to_end(victim, last=False)
            preempted = True
        self.blocks.take(self._grows[phase])
        return preempted

    def _leave(self, request: Request, *, in_step: bool) -> None:
        """Take a request out of the batch, `in_step` while it decodes a token whose block is taken."""
        ahead = 1  # a prefill holds a block for the token at its end
        if request.state == "decoding":
            ahead = int(in_step)
            self._grows[self._phase(request)] -= 1
            self._decoding -= 1
            request._generated += self._decoded
        else:
            del self._prefilling[request]
        tokens = request.prompt_tokens + request._generated + ahead
        self.blocks.release(request.prefix[: request._shared], self._blocks_for(tokens) - request._shared)
        request._shared = 0
        del self._running[request]

    def _phase(self, request: Request) -> int:
        """Count of decode steps, modulo a block's tokens, at which the next one needs another block."""
        return -(request.prompt_tokens + request._generated) % self.profile.block_tokens

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.profile.block_tokens)

    def _chunk_s(self, request: Request, tokens: int) -> float:
        """Seconds of a part of a prefill: the parts add up to the profile's time for the whole."""
        before, profile = request._prefilled, self.profile
        return profile.prefill_s(before + tokens) - (profile.prefill_s(before) if before else 0.0)
