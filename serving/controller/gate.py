"""The gate: what is held, the rules that are asked of a request, and what letting in and refusing change.

The rules are asked in this order, and the first that refuses names the reason.

1. deadline: prefill alone would take longer than the client's own deadline, even on an idle engine.
2. too_large: prompt and expected output exceed the most that the lane could ever hold.
3. tenant_quota: they exceed what its tenant has left of the hour or the day.
4. degraded: the engine is overloaded and the request very large. Premium is not asked.
5. saturated: they exceed what is free of the engine's true capacity.
6. backpressure: B is over the threshold of hard rejection. Premium is not asked.
7. lane_budget: they exceed the lane's share and what it may borrow. Premium is not asked.
8. waiting_ahead: what is free is kept for clients that come back as they were told. Neither these nor
   premium, nor what can wait, are asked.

The first two can never be met by coming back, nor can a quota that the request alone exceeds. Tightening only
lowers the thresholds of degradation and of the last three, so a forecast can refuse what the rules admit and
never the reverse; at level 0 every threshold is the rules' own. Who will have ended before the burst comes is
not tightened: refused, it would come back in the middle of it. The rest of a clamped answer was let in
before: tightening, degradation and backpressure are not asked.

A lane that misses its own target for the first token clamps its answers, as an overloaded engine does, and so
has room for more of them before it refuses. It refuses nothing for that, and the other lanes go on.
"""

import math
from random import Random, SystemRandom

from serving.controller.backpressure import Backpressure
from serving.controller.budget import Ledger, Reservation
from serving.controller.decision import Decision, Reason, RequestFacts
from serving.controller.degradation import CLAMP
from serving.controller.elapsed import Elapsed
from serving.controller.kv_headroom import KvHeadroom
from serving.controller.lanes import REFERENCE_BATCH, Lane, Lanes
from serving.controller.outputs import OutputTable, limit_of
from serving.controller.overload import NO_MEASURES, Overload, capped
from serving.controller.retry_after import quota_wait_ms
from serving.controller.rules import Rules
from serving.controller.shared_limits import SharedLimits
from serving.controller.tenants import Tenants
from serving.controller.tightening import Tightening
from serving.controller.waiting import Ticket, Waiting

CAN_WAIT: frozenset[Reason] = frozenset({"saturated", "lane_budget"})
"""What a request may wait for: room. Hard rejection by backpressure stays one."""
NEVER: frozenset[Reason] = frozenset({"deadline", "too_large"})
"""Reasons that coming back does not mend."""
NO_ROOM: frozenset[Reason] = CAN_WAIT | {"waiting_ahead", "queue_full", "wait_expired"}
"""Reasons for which a lane calls back what it lent."""

CALL_BACK_S = 5.0
"""Longest that one waiting request keeps others from borrowing."""


class Gate:
    """State of the controller and the steps that change it; not safe to call from several threads."""

    def __init__(self, rules: Rules, random: Random | None, id_prefix: str, wall_offset_s: float) -> None:
        self.rules = rules
        self.random = random or Random()
        self.wall_offset_s = wall_offset_s
        self.lanes = Lanes(rules, self.random)
        self.ledger = Ledger(rules.capacity, rules.lease_s, id_prefix)
        self.outputs = OutputTable(rules.output_prior_tokens, rules.output_quantile, rules.max_flows)
        self.tenants = Tenants(rules.default_tenant, rules.tenants, rules.max_tenants)
        self.waiting = Waiting(list(self.lanes.by_name.values()))
        self.backpressure = Backpressure(rules)
        self.tightening = Tightening(rules.max_tightening_change_per_s, rules.tightening_hold_s)
        self.overload = Overload(rules.degradation, random or SystemRandom())  # handles can't be guessed
        self.headroom = KvHeadroom(rules.headroom)
        self.expired = 0
        self.unknown_reservations = 0
        self.unknown_lanes = 0
        self.shared: SharedLimits | None = None  # where replicas hold the limits together
        self._elapsed = Elapsed()
        self._shrunk = False

    def share(self, shared: SharedLimits, now_s: float) -> None:
        """Hold the capacity and the tenants' quotas together with other replicas from now on."""
        self.shared = shared
        self.tenants.share(shared, now_s + self.wall_offset_s)
        self.resize(now_s)

    def at(self, now_s: float) -> float:
        """Time that the gate goes by when the clock reads ``now_s``; ends the leases that are over."""
        now_s = self._elapsed.at(now_s)
        if self._shrunk:
            self.resize(now_s)
        if now_s < self.ledger.next_expiry_s:
            return now_s
        for reservation in self.ledger.expired(now_s):
            lane = self.lanes.by_name[reservation.lane]
            self.lanes.expire(lane, reservation.tokens, reservation.expires_s)
            self.charge_really(reservation, 0, now_s)
            self.expired += 1
        return now_s

    def ticket(self, request: RequestFacts, now_s: float) -> Ticket:
        """What a request asks for: its lane and tenant, and the tokens that it is judged by."""
        rest = None if request.continuation is None else self.overload.rest(request, now_s)
        account = self.tenants.account(request.tenant, now_s + self.wall_offset_s)
        name = request.lane if rest is None else rest.lane
        lane = self.lanes.by_name.get(account.limits.lane if name is None else name) or self._unknown_lane()
        flow = self.outputs.flow(request.tenant, request.model)
        limit: int | None = request.max_tokens
        if request.max_completion_tokens is not None or (limit is not None and limit < 1):
            limit = limit_of(limit, request.max_completion_tokens)
        if rest is not None:
            limit = capped(limit, rest.left_tokens)
        answers = 1
        if request.n is not None or request.best_of is not None:
            answers = max(request.n or 1, request.best_of or 1, 1)
        one = self.outputs.expected_tokens(flow, limit)
        size = (request.prompt_tokens if request.prompt_tokens > 0 else 0) + answers * one
        tokens = size
        breached = lane.breach.until_s > now_s
        if breached or self.overload.degraded:
            own_step = CLAMP if breached else self.overload.own_step(now_s)
            tokens = size - answers * (one - self.overload.judged_tokens(one, own_step))
        ticket = Ticket(request, rest, lane, account, flow, limit, answers, one, size, tokens)
        if lane.claims.count:
            ticket.expected = lane.claims.redeem(request.tenant, request.prompt_tokens, now_s)
        return ticket

    def pressure(self, now_s: float) -> float:
        """Backpressure now."""
        held_tokens = self.ledger.held_tokens
        if self.shared is not None:
            held_tokens += self.shared.held_elsewhere_tokens
        return self.backpressure.score(held_tokens, now_s)

    def refusal(
        self, ticket: Ticket, tau: float, pressure: float, now_s: float
    ) -> tuple[Reason, float] | None:
        """Reason to refuse and the tokens that must leave first; None to admit. Changes nothing.

        Of a quota it is the seconds that must pass. A ticket that waits has been charged already.
        """
        rules, lane, tokens = self.rules, ticket.lane, ticket.tokens
        request = ticket.request
        if (
            request.deadline_ms is not None
            and rules.engine.prefill_s(request.prompt_tokens) * 1e3 > request.deadline_ms
        ):
            return "deadline", 0.0
        if tokens > lane.most_tokens:
            return "too_large", 0.0
        if ticket.charge is None and ticket.account.limited:
            new_tokens = tokens if ticket.rest is None else tokens - _paid_tokens(ticket)
            wait_s = ticket.account.wait_s(new_tokens, now_s + self.wall_offset_s)
            if wait_s > 0:
                return "tenant_quota", wait_s
        if ticket.rest is not None:
            tau = pressure = 0.0
        elif tau > 0 and self.time_in_engine_s(ticket) < rules.tightening_spares_s:
            tau = 0.0
        protected = lane.rule.protected
        if (
            self.overload.degraded
            and ticket.size > rules.degradation.most_request_tokens
            and not protected
            and self.step(ticket, tau, now_s)
        ):
            return "degraded", math.inf
        over = self.ledger.held_tokens + tokens - self.ledger.capacity_tokens
        if over > 0:
            return "saturated", over
        if protected:
            return None
        threshold = rules.hard_reject_threshold(tau)
        if pressure > threshold:
            return "backpressure", self.backpressure.excess_tokens(pressure, threshold, now_s) + tokens
        over_budget = self.lanes.overflow_tokens(lane, tokens, tau, now_s)
        if over_budget > 0:
            return "lane_budget", over_budget
        if lane.claims.count and not ticket.expected:
            kept_tokens = round(lane.claims.kept_tokens(now_s))
            if kept_tokens:
                over_budget = self.lanes.overflow_tokens(lane, tokens + kept_tokens, tau, now_s)
                return ("waiting_ahead", over_budget) if over_budget > 0 else None
        return None

    def time_in_engine_s(self, ticket: Ticket) -> float:
        """How long a request is expected to run, by the engine model and at its reference batch."""
        engine, prompt_tokens = self.rules.engine, ticket.request.prompt_tokens
        return engine.prefill_s(prompt_tokens) + ticket.one * engine.decode_step_s(REFERENCE_BATCH)

    def step(self, ticket: Ticket, tau: float, now_s: float) -> int:
        """Step of degradation that holds for a ticket; none refuses the rest of an answer."""
        if ticket.rest is not None or not self.overload.degraded:
            return 0
        return self.overload.step(now_s, tau, protected=ticket.lane.rule.protected)

    def let_in(self, ticket: Ticket, tau: float, pressure: float, now_s: float) -> Decision:
        """Reserve and charge what a ticket asks for."""
        request, lane, limit = ticket.request, ticket.lane, ticket.limit_tokens
        waited, one, tokens = ticket.charge is not None, ticket.one, ticket.tokens
        measures = NO_MEASURES
        breached = lane.breach.until_s > now_s
        if breached or self.overload.degraded or ticket.rest is not None:
            protected = lane.rule.protected
            step = self.overload.step(now_s, tau, protected=protected) if self.overload.degraded else 0
            step = max(step, CLAMP) if breached else step
            measures = self.overload.measures(
                request, lane.name, limit, ticket.size, step, ticket.rest, now_s, protected=protected
            )
            limit = capped(limit, measures.clamp_output_tokens)
            one = one if limit is None else min(one, limit)
            now_tokens = ticket.size - ticket.answers * (ticket.one - one)
            tokens = min(tokens, now_tokens) if waited else now_tokens
        prompt_tokens = ticket.size - ticket.answers * ticket.one
        paid = 0 if ticket.rest is None else _paid_tokens(ticket)
        charge = ticket.charge or self.tenants.charge(
            ticket.account, tokens - paid, now_s + self.wall_offset_s
        )
        reservation_id = self.ledger.reserve(
            lane.name, tokens, now_s, ticket.flow, limit, ticket.answers, charge, prompt_tokens - paid, waited
        )
        self.lanes.take(lane, tokens, now_s)
        if self.shared is not None:
            self.shared.held(lane).taken(tokens)
        if waited:
            self.waiting.by_lane[lane.name].count(ticket.account, tokens)
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
            tokens - prompt_tokens,
            *measures,
        )

    def refuse(
        self,
        ticket: Ticket,
        reason: Reason,
        backlog_tokens: float,
        tau: float,
        pressure: float,
        now_s: float,
        *,
        tightened: bool,
    ) -> Decision:
        """Give a charged ticket its charge back, count the refusal, and say when to come back."""
        lane, tokens = ticket.lane, ticket.tokens
        if ticket.charge is not None:
            self.tenants.settle(ticket.charge, 0, now_s + self.wall_offset_s)
            ticket.charge = None
        if self.shared is not None:
            self.shared.missed(ticket, reason)
        lane.refused[reason] += 1
        lane.tightened += tightened
        retry_after_ms = None
        if reason == "tenant_quota":
            if backlog_tokens < math.inf:
                retry_after_ms = quota_wait_ms(backlog_tokens, self.random)
        elif reason not in NEVER:
            backlog_tokens += self.waiting.by_lane[lane.name].tokens
            drain_tokens_per_s = lane.drain.rate(lane.held_tokens, now_s)
            returns = lane.returns
            retry_after_ms = returns.advise_ms(
                backlog_tokens, tokens, drain_tokens_per_s, now_s, first=ticket.expected
            )
            if reason in NO_ROOM and not tightened:
                if returns.in_line and not lane.rule.protected:
                    request = ticket.request
                    due_s = now_s + retry_after_ms / 1e3
                    lane.claims.add(request.tenant, request.prompt_tokens, tokens, due_s)
                self.lanes.call_back(lane, tokens, until_s=now_s + retry_after_ms / 1e3 + 1.0)
        return Decision(
            False,
            lane.name,
            reason,
            None,
            retry_after_ms,
            retry_after_ms is not None,
            tau,
            pressure,
            tightened,
            tokens - (ticket.size - ticket.answers * ticket.one),
            self.step(ticket, tau, now_s),
        )

    def wait(self, ticket: Ticket, wait_s: float, now_s: float, *, calls_back: bool) -> None:
        """Charge a ticket and let it wait; a lane that waits within its share calls back what it lent."""
        ticket.charge = self.tenants.charge(ticket.account, ticket.tokens, now_s + self.wall_offset_s)
        ticket.aged_s = now_s + self.rules.aged_after * wait_s
        ticket.until_s = now_s + wait_s
        self.waiting.add(ticket)
        if calls_back:
            self.lanes.call_back(ticket.lane, ticket.tokens, min(ticket.until_s, now_s + CALL_BACK_S))

    def leave(self, ticket: Ticket, now_s: float) -> None:
        """Let a ticket wait no longer and give its charge back."""
        self.waiting.remove(ticket)
        if ticket.charge is not None:
            self.tenants.settle(ticket.charge, 0, now_s + self.wall_offset_s)
            ticket.charge = None

    def release(self, reservation_id: str, now_s: float) -> Reservation | None:
        """Free what a reservation holds; its charge stands until `charge_really`."""
        reservation = self.ledger.release(reservation_id)
        if reservation is None:
            self.unknown_reservations += 1
        else:
            if self.shared is not None and self.shared.exact:
                self.shared.wake()  # others may need it
            self.lanes.give_back(self.lanes.by_name[reservation.lane], reservation.tokens, now_s)
        return reservation

    def charge_really(self, reservation: Reservation, used_tokens: int | None, now_s: float) -> None:
        """Charge what a reservation that ended really used; None is unknown: what was expected stays."""
        charge = reservation.charge
        if charge is None:
            return
        used = reservation.tokens if used_tokens is None else used_tokens
        self.tenants.settle(charge, used, now_s + self.wall_offset_s)
        if reservation.contended and used_tokens is not None:
            self.waiting.by_lane[reservation.lane].count(charge.account, used - reservation.tokens)

    def resize(self, now_s: float) -> None:
        """Let the capacity follow what can really be used of it."""
        if self.shared is not None:
            self._resize_shared(self.shared, self.headroom.share(now_s))
            return
        usable_tokens = round(self.headroom.share(now_s) * self.rules.capacity)
        if usable_tokens != self.ledger.capacity_tokens:
            self._shrunk = usable_tokens < self.rules.capacity
            self.ledger.capacity_tokens = usable_tokens
            self.lanes.resize(usable_tokens)
            self.backpressure.resize(usable_tokens)

    def _resize_shared(self, shared: SharedLimits, usable: float) -> None:
        self._shrunk = usable < 1.0
        rest_tokens = round(usable * max(0, shared.rest.ceiling_tokens))
        protected_tokens = round(usable * max(0, shared.protected.ceiling_tokens))
        self.ledger.capacity_tokens = protected_tokens + rest_tokens
        self.lanes.allot(rest_tokens, shared.rest.limit_tokens)
        # While the store is lost nobody knows what others hold: then it is measured against the own share.
        parts = shared.replicas if shared.lost else 1
        self.backpressure.resize(max(1, round(usable * self.rules.capacity / parts)))

    def _unknown_lane(self) -> Lane:
        self.unknown_lanes += 1
        return self.lanes.by_name["standard"]


def _paid_tokens(ticket: Ticket) -> int:
    """Tokens of the prompt that were charged with the parts of the answer before."""
    prompt_tokens = ticket.size - ticket.answers * ticket.one
    return 0 if ticket.rest is None else min(prompt_tokens, ticket.rest.paid_tokens)
