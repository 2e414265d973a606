"""The play: calls, gate and engines from event to event, on simulated time."""

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from random import Random

from features.ticks import TICK_S
from pipeline.play.retries import delay_s
from pipeline.simulate.calls import Call
from pipeline.simulate.fleet import Fleet, Scrapes
from serving.controller.decide import Controller
from serving.controller.decision import Decision, RequestFacts
from serving.controller.rules import Rules
from serving.controller.waiting import Ticket
from serving.engine_sim.core import EngineSim
from serving.engine_sim.request import Request

PROGRESS_CALLS = 1_000
RENEWALS = 3
"""In the time of a lease: no gateway lets the one of an answer that runs end."""


class Play:
    """One run of calls through a gate.

    A client tries again as the OpenAI SDK does, and asks for the rest of a clamped answer at once. The gate
    reads the engines and the forecast every tick, hears of every end at once, renews the leases of answers
    that run, and sends a request to the replica with the fewest. The same arguments give the same run.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        fleet: Fleet,
        rules: Rules,
        tightening: Mapping[int, float],
        *,
        waits: bool,
        seed: int,
    ) -> None:
        """Prepare a run.

        Args:
            calls: in order of time; the run writes into them what becomes of each.
            fleet: that serves them.
            rules: of the gate.
            tightening: what the forecast asks for, by tick; 0 at every other tick.
            waits: a request may wait at the gate for its lane's target; else it is decided on at once.
            seed: of clients' patience and of the jitter in advice.

        """
        self.controller = Controller(rules, random=Random(seed))
        self.engines: list[EngineSim] = fleet.engines()
        self._calls, self._tightening, self._waits = calls, tightening, waits
        self._random = Random(seed + 1)
        self._scrapes = Scrapes(self.engines)
        self._running: dict[Request, Call] = {}
        self._waiting: dict[Ticket, Call] = {}
        self._returns: list[tuple[float, int, Call]] = []
        self._returned = 0
        self._now_s = self._renewed_s = 0.0

    def run(self, progress: Callable[[float], None] = lambda share: None) -> None:
        """Play until every call has ended; ``progress`` is told the share of them that were sent."""
        sent, coming = 0, iter(self._calls)
        call = next(coming, None)
        tick_s = 0.0 if call is None else call.at_s // TICK_S * TICK_S
        while True:
            arrival_s = math.inf if call is None else call.at_s
            return_s = self._returns[0][0] if self._returns else math.inf
            step_s = min((e.next_s for e in self.engines if e.next_s is not None), default=math.inf)
            now_s = min(arrival_s, return_s, step_s, self._due_s())
            if now_s == math.inf:
                return
            self._now_s = now_s = min(now_s, tick_s)
            if now_s == step_s:
                self._step()
            elif now_s == tick_s:
                self._tick(round(tick_s))
                tick_s += TICK_S
            elif call is not None and now_s == arrival_s:
                self._send(call)
                call, sent = next(coming, None), sent + 1
                if sent % PROGRESS_CALLS == 0:
                    progress(sent / len(self._calls))
            elif now_s == return_s:
                self._send(heapq.heappop(self._returns)[2])
            if self._waiting:
                for ticket, decision in self.controller.advance(now_s):
                    self._decided(self._waiting.pop(ticket), decision)

    def _due_s(self) -> float:
        """When the gate answers one that waits, if nothing happens before."""
        if not self._waiting:
            return math.inf
        in_s = self.controller.next_due_s(self._now_s)
        return math.inf if in_s is None else self._now_s + in_s

    def _tick(self, t_s: int) -> None:
        self._scrapes.read(self.controller, self._now_s, self._running.values())
        self.controller.set_tightening(self._tightening.get(t_s, 0.0), self._now_s)
        if self._now_s - self._renewed_s > self.controller.rules.lease_s / RENEWALS:
            self._renewed_s = self._now_s
            for call in self._running.values():
                self.controller.renew(call.reservation, self._now_s)

    def _step(self) -> None:
        """End the steps that end now, and with them the requests that have their last token."""
        for engine in self.engines:
            if engine.next_s is not None and engine.next_s <= self._now_s:
                for request in engine.advance(self._now_s):
                    self._ended(self._running.pop(request), request)

    def _ended(self, call: Call, request: Request) -> None:
        call.generated_tokens += request.output_tokens
        first_s = request.first_token_s
        if call.first_token_s is None:
            call.first_token_s = first_s
        self.controller.settle(
            call.reservation,
            request.output_tokens,
            self._now_s,
            None if first_s is None else (first_s - call.sent_s) * 1e3,
            learn=call.left_tokens == 0,
        )
        if call.left_tokens == 0:
            self._end(call, "served")
        elif call.continuation is None:
            self._end(call, "failed")
        else:
            call.tries = 0
            self._send(call)

    def _send(self, call: Call) -> None:
        call.sent_s = self._now_s
        call.tries += 1
        limit = None if call.max_tokens is None else max(1, call.max_tokens - call.generated_tokens)
        facts = RequestFacts(
            call.prompt_tokens + call.generated_tokens,
            call.tenant,
            call.model,
            call.lane,
            limit,
            cached_tokens=call.cached_tokens,
            continuation=call.continuation,
        )
        if not self._waits:
            self._decided(call, self.controller.admit(facts, self._now_s))
            return
        decision = self.controller.enqueue(facts, self._now_s)
        if isinstance(decision, Ticket):
            self._waiting[decision] = call
        else:
            self._decided(call, decision)

    def _decided(self, call: Call, decision: Decision) -> None:
        if decision.reservation_id is None:
            self._refused(call, decision)
            return
        clamp = decision.clamp_output_tokens
        call.reservation, call.continuation = decision.reservation_id, decision.continuation
        engine = min(self.engines, key=lambda one: one.waiting + one.running)
        request = engine.submit(
            self._now_s,
            prompt_tokens=call.to_prefill,
            output_tokens=call.left_tokens if clamp is None else min(clamp, call.left_tokens),
        )
        self._running[request] = call
        self._scrapes.sent(call)

    def _refused(self, call: Call, decision: Decision) -> None:
        call.refusals += 1
        if decision.tightened and call.restrained_s is None:
            call.restrained_s = self._now_s
        headers = {"x-should-retry": str(decision.retry).lower()}
        if decision.retry_after_ms is not None:
            headers["retry-after-ms"] = str(decision.retry_after_ms)
        wait_s = delay_s(429, headers, call.tries - 1, self._random)
        if wait_s is None:
            self._end(call, "refused" if call.first_token_s is None else "failed")
            return
        self._returned += 1
        heapq.heappush(self._returns, (self._now_s + wait_s, self._returned, call))

    def _end(self, call: Call, how: str) -> None:
        call.ended_s, call.end = self._now_s, how
