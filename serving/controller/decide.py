"""The decision: whether a request may in now, and why not.

The rules are asked in this order, and the first that refuses names the reason.

1. deadline: prefill alone would take longer than the client's own deadline, even on an idle engine.
2. too_large: prompt and expected output exceed the most that the lane could ever hold.
3. degraded: the engine is overloaded and the request very large. Premium is not asked.
4. saturated: they exceed what is free of the engine's true capacity.
5. backpressure: B is over the threshold of hard rejection. Premium is not asked.
6. lane_budget: they exceed the lane's share and what it may borrow. Premium is not asked.

The first two can never be met by coming back. Tightening only lowers the thresholds of degradation and of
the last two, so a forecast can refuse what the rules admit and never the reverse; at level 0 every threshold
is the rules' own. The rest of a clamped answer was let in before: tightening and backpressure are not asked.
"""

import math
import threading
from random import Random, SystemRandom
from typing import Unpack

from serving.controller.backpressure import Backpressure
from serving.controller.budget import Ledger, Reservation
from serving.controller.decision import Decision, Reason, RequestFacts
from serving.controller.elapsed import Elapsed
from serving.controller.engine_model import saturation_concurrency
from serving.controller.kv_headroom import KvHeadroom
from serving.controller.lanes import REFERENCE_OUTPUT_TOKENS, REFERENCE_PROMPT_TOKENS, Lane, Lanes
from serving.controller.learned_profile import EngineReadings, LearnedProfile
from serving.controller.outputs import OutputTable, limit_of
from serving.controller.overload import NO_MEASURES, Overload, capped
from serving.controller.rules import Rules
from serving.controller.snapshot import LaneSnapshot, Snapshot
from serving.controller.tightening import Tightening

DEFAULT_LANE = "standard"


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

    def __init__(
        self, rules: Rules | None = None, *, random: Random | None = None, id_prefix: str = "r"
    ) -> None:
        """Start with nothing reserved.

        Args:
            rules: settings; the defaults when None.
            random: source of the jitter in retry advice; seed it to repeat a run.
            id_prefix: start of every reservation id. Make it unique to the process, so that a settlement
                that outlived a restart is unknown instead of someone else's.

        """
        self.rules = rules = rules or Rules()
        self._lanes = Lanes(rules, random or Random())
        self._ledger = Ledger(rules.capacity, rules.lease_s, id_prefix)
        self._outputs = OutputTable(rules.output_prior_tokens, rules.output_quantile, rules.max_flows)
        self._backpressure = Backpressure(rules)
        self._tightening = Tightening(rules.max_tightening_change_per_s, rules.tightening_hold_s)
        self._overload = Overload(rules.degradation, random or SystemRandom())  # handles can't be guessed
        self._headroom = KvHeadroom(rules.headroom)
        self._shrunk = False
        self._learned = LearnedProfile(rules.engine)
        self._elapsed = Elapsed()
        self._lock = threading.Lock()
        self._expired = 0
        self._unknown_reservations = 0
        self._unknown_outputs = 0
        self._unknown_lanes = 0

    def admit(self, request: RequestFacts, now_s: float) -> Decision:
        """Decide on a request; when it is admitted its tokens are reserved."""
        with self._lock:
            now_s = self._advance(now_s)
            rest = None if request.continuation is None else self._overload.rest(request, now_s)
            lane = self._lane(request.lane if rest is None else rest.lane)
            flow = self._outputs.flow(request.tenant, request.model)
            limit = limit_of(request.max_tokens, request.max_completion_tokens)
            if rest is not None:
                limit = capped(limit, rest.left_tokens)
            answers = max(request.n or 1, request.best_of or 1, 1)
            prompt_tokens = max(request.prompt_tokens, 0)
            one = self._outputs.expected_tokens(flow, limit)
            expected = answers * one
            size = tokens = prompt_tokens + expected
            tau = self._tightening.level(now_s)
            step = own_step = 0
            if self._overload.degraded:
                own_step = self._overload.own_step(now_s)
                step = self._overload.step(now_s, tau, protected=lane.rule.protected)
                expected = answers * self._overload.judged_tokens(one, own_step)
                tokens = prompt_tokens + expected
            pressure = self._backpressure.score(self._ledger.held_tokens, now_s)

            if rest is None:
                refusal = self._refusal(request, lane, size, tokens, pressure, tau, step, now_s)
            else:
                refusal = self._refusal(request, lane, size, tokens, 0.0, 0.0, 0, now_s)
            if refusal is None:
                measures = NO_MEASURES
                if step or rest is not None:
                    measures = self._overload.measures(
                        request, lane.name, limit, size, step, rest, now_s, protected=lane.rule.protected
                    )
                    limit = capped(limit, measures.clamp_output_tokens)
                    expected = answers * (one if limit is None else min(one, limit))
                    tokens = prompt_tokens + expected
                reservation_id = self._ledger.reserve(lane.name, tokens, now_s, flow, limit, answers)
                self._lanes.take(lane, tokens, now_s)
                return Decision(
                    True,
                    lane.name,
                    None,
                    reservation_id,
                    None,
                    False,
                    tau,
                    pressure,
                    False,
                    expected,
                    *measures,
                )
            reason, backlog = refusal
            tightened = (
                tau > 0
                and rest is None
                and self._refusal(request, lane, size, tokens, pressure, 0.0, own_step, now_s) is None
            )
            lane.refused[reason] += 1
            lane.tightened += tightened
            retry = reason not in ("deadline", "too_large")
            retry_after_ms = None
            if retry:
                drain_tokens_per_s = lane.drain.rate(lane.held_tokens, now_s)
                retry_after_ms = lane.returns.advise_ms(backlog, tokens, drain_tokens_per_s, now_s)
                if reason not in ("backpressure", "degraded") and not tightened:
                    self._lanes.call_back(lane, tokens, until_s=now_s + retry_after_ms / 1e3 + 1.0)
            return Decision(
                False,
                lane.name,
                reason,
                None,
                retry_after_ms,
                retry,
                tau,
                pressure,
                tightened,
                expected,
                step,
            )

    def settle(
        self, reservation_id: str, output_tokens: int | None, now_s: float, ttft_ms: float | None = None
    ) -> bool:
        """Free the reservation of a request that ended, and learn from its output; False when it is unknown.

        Args:
            reservation_id: from the decision.
            output_tokens: tokens generated, all answers together; None when unknown.
            now_s: monotonic seconds.
            ttft_ms: time to first token, where it was measured.

        """
        with self._lock:
            reservation = self._release(reservation_id, now_s)
            if reservation is None:
                return False
            if output_tokens is None or output_tokens <= 0:  # failed requests say nothing about output
                self._unknown_outputs += 1
            else:
                self._outputs.learn(
                    reservation.flow, output_tokens / reservation.answers, reservation.limit_tokens
                )
            if ttft_ms is not None:
                lane = self._lanes.by_name[reservation.lane]
                if ttft_ms <= lane.rule.ttft_target_ms:
                    lane.ttft_met += 1
                else:
                    lane.ttft_missed += 1
            return True

    def cancel(self, reservation_id: str, now_s: float) -> bool:
        """Free the reservation of a request that was left or never reached the engine; False when unknown."""
        with self._lock:
            return self._release(reservation_id, now_s) is not None

    def renew(self, reservation_id: str, now_s: float) -> bool:
        """Start the lease of a stream that is still running anew; False when it is unknown."""
        with self._lock:
            known = self._ledger.renew(reservation_id, self._advance(now_s))
            self._unknown_reservations += not known
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
            self._backpressure.observe(
                now_s, queue_depth=queue_depth, batch_tokens=batch_tokens, kv_miss_rate=kv_miss_rate
            )
            self._overload.ladders.observe(now_s, self._tightening.level(now_s), queue_depth, gpu_util)
            self._headroom.observe(
                now_s, preemptions_per_s=preemptions_per_s, allocation_failures=allocation_failures
            )
            self._resize(now_s)

    def learn_engine(self, **readings: Unpack[EngineReadings]) -> None:
        """Learn from one sample of one engine what it can do; see `LearnedProfile.observe`."""
        with self._lock:
            self._learned.observe(**readings)

    def set_tightening(self, target: float, now_s: float) -> None:
        """Move the tightening towards ``target`` in [0, 1]; renew it while the alarm stands."""
        with self._lock:
            self._tightening.set(target, self._advance(now_s))

    def snapshot(self, now_s: float) -> Snapshot:
        """State of the controller for metrics."""
        with self._lock:
            now_s = self._advance(now_s)
            return Snapshot(
                capacity_tokens=self.rules.capacity,
                usable_tokens=self._ledger.capacity_tokens,
                held_tokens=self._ledger.held_tokens,
                reservations=len(self._ledger),
                backpressure=self._backpressure.score(self._ledger.held_tokens, now_s),
                tightening=self._tightening.level(now_s),
                tightening_target=self._tightening.target(now_s),
                degradation=self._overload.ladders.step(now_s, self._tightening.level(now_s)),
                lanes={name: self._lane_snapshot(lane, now_s) for name, lane in self._lanes.by_name.items()},
                expired=self._expired,
                unknown_reservations=self._unknown_reservations,
                unknown_outputs=self._unknown_outputs,
                unknown_lanes=self._unknown_lanes,
                dropped_readings=self._backpressure.dropped
                + self._tightening.ignored
                + self._overload.ladders.dropped
                + self._headroom.dropped
                + self._learned.dropped,
                flows=len(self._outputs),
                evicted_flows=self._outputs.evicted,
                kv_shrinks=self._headroom.shrinks,
                continuations=len(self._overload.continuations),
                unknown_continuations=self._overload.continuations.unknown,
                unredeemed_continuations=self._overload.continuations.unredeemed,
                engine=self._learned.profile,
                decode_learned=self._learned.decode,
                prefill_learned=self._learned.prefill,
            )

    def _refusal(
        self,
        request: RequestFacts,
        lane: Lane,
        size: int,
        tokens: int,
        pressure: float,
        tau: float,
        step: int,
        now_s: float,
    ) -> tuple[Reason, float] | None:
        """Reason to refuse and the tokens that must leave first; None to admit. Changes nothing.

        ``size`` is what the request would take in calm, ``tokens`` what it takes now.
        """
        rules = self.rules
        deadline_ms = request.deadline_ms
        if deadline_ms is not None and rules.engine.prefill_s(request.prompt_tokens) * 1e3 > deadline_ms:
            return "deadline", 0.0
        if tokens > lane.most_tokens:
            return "too_large", 0.0
        protected = lane.rule.protected
        if step and not protected and size > self.rules.degradation.most_request_tokens:
            return "degraded", math.inf
        over = self._ledger.held_tokens + tokens - self._ledger.capacity_tokens
        if over > 0:
            return "saturated", over
        if protected:
            return None
        threshold = rules.hard_reject_above - rules.hard_reject_cut * tau
        if pressure > threshold:
            return "backpressure", self._backpressure.excess_tokens(pressure, threshold, now_s) + tokens
        over_budget = self._lanes.overflow_tokens(lane, tokens, tau, now_s)
        return ("lane_budget", over_budget) if over_budget > 0 else None

    def _release(self, reservation_id: str, now_s: float) -> Reservation | None:
        now_s = self._advance(now_s)
        reservation = self._ledger.release(reservation_id)
        if reservation is None:
            self._unknown_reservations += 1
        else:
            self._lanes.give_back(self._lanes.by_name[reservation.lane], reservation.tokens, now_s)
        return reservation

    def _advance(self, now_s: float) -> float:
        now_s = self._elapsed.at(now_s)
        if self._shrunk:
            self._resize(now_s)
        for reservation in self._ledger.expired(now_s):
            lane = self._lanes.by_name[reservation.lane]
            self._lanes.expire(lane, reservation.tokens, reservation.expires_s)
            self._expired += 1
        return now_s

    def _resize(self, now_s: float) -> None:
        """Let the capacity follow what can really be used of it."""
        usable_tokens = round(self._headroom.share(now_s) * self.rules.capacity)
        if usable_tokens != self._ledger.capacity_tokens:
            self._shrunk = usable_tokens < self.rules.capacity
            self._ledger.capacity_tokens = usable_tokens
            self._lanes.resize(usable_tokens)
            self._backpressure.resize(usable_tokens)

    def _lane(self, name: str | None) -> Lane:
        if name is None:
            return self._lanes.by_name[DEFAULT_LANE]
        lane = self._lanes.by_name.get(name)
        if lane is None:
            self._unknown_lanes += 1
            return self._lanes.by_name[DEFAULT_LANE]
        return lane

    def _lane_snapshot(self, lane: Lane, now_s: float) -> LaneSnapshot:
        return LaneSnapshot(
            held_tokens=lane.held_tokens,
            share_tokens=lane.share_tokens,
            drain_tokens_per_s=lane.drain.rate(lane.held_tokens, now_s),
            admitted=lane.admitted,
            refused=dict(lane.refused),
            tightened=lane.tightened,
            ttft_met=lane.ttft_met,
            ttft_missed=lane.ttft_missed,
            saturation_requests=saturation_concurrency(
                self._learned.profile,
                REFERENCE_PROMPT_TOKENS,
                REFERENCE_OUTPUT_TOKENS,
                ttft_target_s=lane.rule.ttft_target_ms / 1e3,
            ),
        )
