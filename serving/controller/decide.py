"""The controller: whether a request may in now, has to wait or is refused, and why."""

import threading
from collections.abc import Callable
from random import Random
from typing import TypeVar, Unpack

from serving.controller.decision import Decision, RequestFacts
from serving.controller.gate import CAN_WAIT, Gate
from serving.controller.learned_profile import EngineReadings, LearnedProfile
from serving.controller.rules import Rules
from serving.controller.snapshot import Snapshot, take_snapshot
from serving.controller.tenants import TenantLimits
from serving.controller.turns import Answers, give_turns
from serving.controller.waiting import Ticket

T = TypeVar("T")

TURNS_EVERY_S = 0.01
"""Where nothing but time has changed, turns are given at most so often."""


class Controller:
    """Admission to one engine: a decision is a few sums in memory, and admitting reserves in the same step.

    Every call takes the time from the caller, monotonic seconds. Calls may come from several threads.

    >>> controller = Controller(Rules(capacity_tokens=50_000), random=Random(7))
    >>> decision = controller.admit(RequestFacts(prompt_tokens=488, lane="premium"), now_s=0.0)
    >>> decision.admitted, decision.expected_output_tokens, controller.snapshot(0.0).held_tokens
    (True, 512, 1000)
    >>> controller.settle(decision.reservation_id, output_tokens=90, now_s=2.0)
    True
    >>> controller.snapshot(2.0).held_tokens
    0
    """

    answered: Callable[[], None]
    """Called when `advance` has something to tell: within a call, from any thread. It may not call back."""

    def __init__(
        self,
        rules: Rules | None = None,
        *,
        random: Random | None = None,
        id_prefix: str = "r",
        wall_offset_s: float = 0.0,
    ) -> None:
        """Start with nothing reserved.

        Args:
            rules: settings; the defaults when None.
            random: source of the jitter in retry advice and of continuations' handles; seed it to repeat a
                run. With None handles come from the operating system, and nobody can guess another's.
            id_prefix: start of every reservation id. Make it unique to the process, so that a settlement
                that outlived a restart is unknown instead of someone else's.
            wall_offset_s: seconds since the Unix epoch, UTC, when the caller's clock reads 0: it tells
                quotas where the hours and days of the calendar begin.

        """
        self.rules = rules = rules or Rules()
        self.answered: Callable[[], None] = _nothing
        self._gate = Gate(rules, random, id_prefix, wall_offset_s)
        self._learned = LearnedProfile(rules.engine)
        self._lock = threading.Lock()
        self._answers: Answers = []
        self._turns_due_s = 0.0
        self._unknown_outputs = 0

    def admit(self, request: RequestFacts, now_s: float) -> Decision:
        """Decide on a request at once; when it is admitted its tokens are reserved.

        Where others wait, it passes only those that one that starts to wait would pass at once.
        """
        with self._lock:
            now_s = self._advance(now_s)
            decision = self._decide(self._gate.ticket(request, now_s), 0.0, now_s)
            if isinstance(decision, Ticket):
                raise RuntimeError("a request that must not wait was let wait")
            return decision

    def enqueue(
        self, request: RequestFacts, now_s: float, max_wait_ms: float | None = None
    ) -> Decision | Ticket:
        """Decide on a request, or let it wait for room; `advance` tells when it may go or is refused.

        Args:
            request: as for `admit`. One with ``deadline_ms`` waits until prefill must start; the rest of a
                clamped answer does not wait; one whose handle does not stand is a request like others.
            now_s: monotonic seconds.
            max_wait_ms: longest wait, up to that of the rules; the lane's target for the first token when
                None.

        """
        with self._lock:
            now_s = self._advance(now_s)
            ticket = self._gate.ticket(request, now_s)
            wait_ms = ticket.lane.rule.ttft_target_ms if max_wait_ms is None else max_wait_ms
            wait_ms = min(wait_ms, self.rules.max_wait_ms)
            if request.deadline_ms is not None:
                prefill_ms = self.rules.engine.prefill_s(request.prompt_tokens) * 1e3
                left_ms = request.deadline_ms - prefill_ms
                wait_ms = min(left_ms, self.rules.max_wait_ms if max_wait_ms is None else wait_ms)
            wait_s = wait_ms / 1e3 if ticket.rest is None else 0.0
            ticket.expected |= wait_s > 0  # one that is here can be served before one that may come
            return self._decide(ticket, wait_s, now_s)

    def leave(self, ticket: Ticket, now_s: float) -> bool:
        """Stop waiting: nothing is held or charged. False when it waits no longer: then it has an answer."""
        with self._lock:
            now_s = self._advance(now_s)
            if not ticket.number:
                return False
            self._gate.leave(ticket, now_s)
            self._give_turns(now_s)
            return True

    def advance(self, now_s: float) -> Answers:
        """Let time pass; the tickets that were answered since the last call, each with its decision.

        Call it after `settle`, `cancel`, `leave`, `enqueue` and `admit` while something waits, after the
        engine was observed or the tightening moved, and when `next_due_s` has passed.
        """
        with self._lock:
            now_s = self._advance(now_s)
            if now_s >= self._turns_due_s:
                self._give_turns(now_s)
            answers, self._answers = self._answers, []
            return answers

    def next_due_s(self, now_s: float) -> float | None:
        """Seconds until `advance` has an answer, if nothing happens before; None while nothing waits."""
        with self._lock:
            now_s = self._advance(now_s)
            if self._answers:
                return 0.0
            ends_s = self._gate.waiting.next_end_s()
            if ends_s is None:
                return None
            return max(0.0, min(ends_s, self._gate.ledger.next_end_s) - now_s)

    def set_tenant(self, tenant: str, limits: TenantLimits | None, now_s: float) -> None:
        """Change a tenant's limits, or with None return it to the default; what it was charged stays."""
        with self._lock:
            wall_s = self._advance(now_s) + self._gate.wall_offset_s
            self._gate.tenants.set(tenant, limits, wall_s)
            self._turns_due_s = 0.0

    def settle(
        self,
        reservation_id: str,
        output_tokens: int | None,
        now_s: float,
        ttft_ms: float | None = None,
        *,
        learn: bool = True,
    ) -> bool:
        """Free the reservation of a request that ended, and learn from its output; False when it is unknown.

        Its tenant is charged the prompt and the output; where that is unknown, what was expected stays.

        Args:
            reservation_id: from the decision.
            output_tokens: tokens generated, all answers together; None when unknown.
            now_s: monotonic seconds.
            ttft_ms: time to first token, where it was measured.
            learn: the answer is as long as such answers are; False for one that was cut short.

        """
        with self._lock:
            gate, now_s = self._gate, self._advance(now_s)
            reservation = gate.release(reservation_id, now_s)
            if reservation is None:
                return False
            known = output_tokens is not None and output_tokens >= 0
            used = reservation.prompt_tokens + (output_tokens or 0) if known else None
            gate.charge_really(reservation, used, now_s)
            if gate.waiting.count:
                self._give_turns(now_s)
            if not learn or output_tokens is None or output_tokens <= 0:  # failed: says nothing about output
                self._unknown_outputs += 1
            else:
                gate.outputs.learn(
                    reservation.flow, output_tokens / reservation.answers, reservation.limit_tokens
                )
            if ttft_ms is not None:
                lane = gate.lanes.by_name[reservation.lane]
                missed = ttft_ms > lane.rule.ttft_target_ms
                lane.ttft_missed += missed
                lane.ttft_met += not missed
                lane.breach.note(missed=missed, now_s=now_s)
            return True

    def cancel(self, reservation_id: str, now_s: float) -> bool:
        """Free the reservation of a request that was left or never reached the engine; False when unknown."""
        with self._lock:
            gate, now_s = self._gate, self._advance(now_s)
            reservation = gate.release(reservation_id, now_s)
            if reservation is None:
                return False
            gate.charge_really(reservation, 0, now_s)
            self._give_turns(now_s)
            return True

    def renew(self, reservation_id: str, now_s: float) -> bool:
        """Start the lease of a stream that is still running anew; False when it is unknown."""
        with self._lock:
            known = self._gate.ledger.renew(reservation_id, self._advance(now_s))
            self._gate.unknown_reservations += not known
            return known

    def observe_engine(
        self,
        now_s: float,
        *,
        queue_depth: float | None = None,
        batch_tokens: float | None = None,
        kv_miss_rate: float | None = None,
        gpu_util: float | None = None,
        preemptions_per_s: float | None = None,
        allocation_failures: float | None = None,
    ) -> None:
        """Take one scrape of the engine; what it does not say is unknown, and all of it is after a while.

        Args:
            now_s: monotonic seconds.
            queue_depth: requests waiting in the engine.
            batch_tokens: tokens in its running batch.
            kv_miss_rate: share of prompt tokens not served from cache, in [0, 1].
            gpu_util: share of time the GPU was busy.
            preemptions_per_s: requests that lost their KV blocks since the scrape before.
            allocation_failures: counter of allocations that found no KV blocks.

        """
        with self._lock:
            now_s = self._advance(now_s)
            self._gate.backpressure.observe(
                now_s, queue_depth=queue_depth, batch_tokens=batch_tokens, kv_miss_rate=kv_miss_rate
            )
            self._gate.overload.observe(now_s, self._gate.tightening.level(now_s), queue_depth, gpu_util)
            self._gate.headroom.observe(
                now_s, preemptions_per_s=preemptions_per_s, allocation_failures=allocation_failures
            )
            self._gate.resize(now_s)
            self._give_turns(now_s)

    def learn_engine(self, **readings: Unpack[EngineReadings]) -> None:
        """Learn from one sample of one engine what it can do; see `LearnedProfile.observe`."""
        with self._lock:
            self._learned.observe(**readings)

    def set_tightening(self, target: float, now_s: float) -> None:
        """Move the tightening towards ``target`` in [0, 1]; renew it while the alarm stands."""
        with self._lock:
            now_s = self._advance(now_s)
            self._gate.tightening.set(target, now_s)
            self._turns_due_s = now_s

    def on_gate(self, step: Callable[[Gate, float], T], now_s: float) -> T:
        """Take a step on the gate's state, for what shares its limits; who waits gets what that frees."""
        with self._lock:
            now_s = self._advance(now_s)
            result = step(self._gate, now_s)
            self._give_turns(now_s)
            return result

    def snapshot(self, now_s: float) -> Snapshot:
        """State of the controller for metrics."""
        with self._lock:
            now_s = self._advance(now_s)
            return take_snapshot(self._gate, self._learned, self._unknown_outputs, now_s)

    def _give_turns(self, now_s: float) -> None:
        give_turns(self._gate, now_s, self._answers)
        self._turns_due_s = now_s + TURNS_EVERY_S
        if self._answers:
            self.answered()

    def _decide(self, ticket: Ticket, wait_s: float, now_s: float) -> Decision | Ticket:
        gate = self._gate
        tau, pressure = gate.tightening.level(now_s), gate.pressure(now_s)
        refusal = gate.refusal(ticket, tau, pressure, now_s)
        tightened = False
        if refusal is not None:
            tightened = tau > 0 and gate.refusal(ticket, 0.0, pressure, now_s) is None
            if wait_s <= 0 or refusal[0] not in CAN_WAIT:
                return gate.refuse(ticket, *refusal, tau, pressure, now_s, tightened=tightened)
        elif not gate.waiting.count:
            return gate.let_in(ticket, tau, pressure, now_s)
        gate.wait(ticket, max(0.0, wait_s), now_s, calls_back=refusal is not None and not tightened)
        if refusal is None:
            before = len(self._answers)
            self._give_turns(now_s)
            for number in range(before, len(self._answers)):
                if self._answers[number][0] is ticket:
                    return self._answers.pop(number)[1]
            if wait_s <= 0:
                gate.waiting.remove(ticket)
                return gate.refuse(ticket, "waiting_ahead", 0.0, tau, pressure, now_s, tightened=False)
        last = gate.waiting.overflow(ticket, self.rules.max_waiting, self.rules.waiting_grace)
        if last is not None:
            gate.waiting.remove(last)
            decision = gate.refuse(last, "queue_full", 0.0, tau, pressure, now_s, tightened=False)
            if last is ticket:
                return decision
            self._answers.append((last, decision))
            self.answered()
        return ticket

    def _advance(self, now_s: float) -> float:
        gate, expired = self._gate, self._gate.expired
        now_s = gate.at(now_s)
        if gate.waiting.count:
            for ticket in gate.waiting.expired(now_s):
                self._answers.append((ticket, self._too_late(ticket, now_s)))
            if gate.expired > expired:
                self._give_turns(now_s)
            if self._answers:
                self.answered()
        return now_s

    def _too_late(self, ticket: Ticket, now_s: float) -> Decision:
        gate = self._gate
        tau, pressure = gate.tightening.level(now_s), gate.pressure(now_s)
        refusal = gate.refusal(ticket, tau, pressure, now_s)
        backlog = refusal[1] if refusal else 0.0
        tightened = tau > 0 and refusal is not None and gate.refusal(ticket, 0.0, pressure, now_s) is None
        return gate.refuse(ticket, "wait_expired", backlog, tau, pressure, now_s, tightened=tightened)


def _nothing() -> None:
    """Nobody waits to be told."""
