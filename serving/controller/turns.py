"""Turns: who of those that wait may go now.

A protected lane goes first within its share, which nobody else could use. The others go in fair order. One
that does not fit is passed by smaller ones, until it has waited for half of its time or another tenant, or
lane, has been given as much more as it asks for. Then nothing that has its turn later passes it: in its own
lane, and in all of them where it is room of theirs that it waits for.

What the forecast alone holds back keeps its place: nobody else gets its tokens in the same round. So what
goes under more tightening would go under less as well, and at level 0 the order is that of the rules.
"""

import math

from serving.controller.decision import Decision, Reason
from serving.controller.gate import Gate
from serving.controller.waiting import Ticket

Answers = list[tuple[Ticket, Decision]]


def give_turns(gate: Gate, now_s: float, answers: Answers) -> None:
    """Let in all that wait and may go; their decisions are added to ``answers``."""
    if not gate.waiting.count:
        return
    round_ = _Round(gate, now_s, answers)
    if not round_.somebody_fits():
        return
    try:
        round_.protected()
        round_.fair()
    finally:
        round_.end()


class _Round:
    def __init__(self, gate: Gate, now_s: float, answers: Answers) -> None:
        self._gate = gate
        self._now_s = now_s
        self._tau = gate.tightening.level(now_s)
        self._answers = answers
        self._kept: list[tuple[Ticket, int]] = []  # tokens that nobody else gets in this round
        self._queues = [queue for queue in gate.waiting.by_lane.values() if len(queue)]

    def somebody_fits(self) -> bool:
        """Whether the smallest of some lane fits in what is free; if not, looking who is next is in vain."""
        ledger, lanes = self._gate.ledger, self._gate.lanes
        free = ledger.capacity_tokens - ledger.held_tokens
        shared = min(free, lanes.shared_tokens - lanes.shared_held_tokens)
        return any(
            queue.smallest_tokens() <= (free if queue.lane.rule.protected else shared)
            for queue in self._queues
        )

    def protected(self) -> None:
        for queue in self._queues:
            lane = queue.lane
            if not lane.rule.protected:
                continue
            turns = queue.in_turn()
            for ticket in turns:
                if lane.held_tokens + ticket.tokens <= lane.share_tokens:
                    self._try(ticket)
            turns.close()

    def fair(self) -> None:
        turns = {queue: queue.in_turn() for queue in self._queues}
        going = list(self._queues)
        tenants_up_to = dict.fromkeys(going, math.inf)  # counters up to which a passed request may be passed
        lanes_up_to = math.inf
        while going:
            queue = min(going, key=lambda queue: queue.virtual)
            ticket = next(turns[queue], None)
            if ticket is None or queue.virtual > lanes_up_to or queue.counter(ticket) > tenants_up_to[queue]:
                going.remove(queue)
                continue
            reason = self._try(ticket)
            if reason is None:
                if not self.somebody_fits():
                    break
                continue
            of_all, aged = self._of_all(ticket, reason), self._now_s >= ticket.aged_s
            if aged and of_all:
                break
            if aged:
                going.remove(queue)
            tenants_up_to[queue] = min(tenants_up_to[queue], queue.counter(ticket, ticket.tokens))
            if of_all:
                lanes_up_to = min(lanes_up_to, queue.virtual + ticket.tokens / queue.weight)
        for iterator in turns.values():
            iterator.close()

    def end(self) -> None:
        for ticket, tokens in self._kept:
            self._hold(ticket, -tokens)
            if ticket.placed:
                ticket.placed = False
                self._gate.waiting.by_lane[ticket.lane.name].uncount(ticket.account, tokens)

    def _try(self, ticket: Ticket) -> Reason | None:
        """Let a ticket in, or keep its place; the rules' reason where they refuse."""
        gate, now_s = self._gate, self._now_s
        pressure = gate.pressure(now_s)
        refusal = gate.refusal(ticket, 0.0, pressure, now_s)
        if refusal is not None:
            return refusal[0]
        if self._tau > 0 and gate.refusal(ticket, self._tau, pressure, now_s) is not None:
            ticket.placed = True
            gate.waiting.by_lane[ticket.lane.name].count(ticket.account, ticket.tokens)
            self._keep(ticket, ticket.tokens)
            return None
        gate.waiting.remove(ticket)
        before = gate.ledger.held_tokens
        self._answers.append((ticket, gate.let_in(ticket, self._tau, pressure, now_s)))
        clamped = ticket.tokens - (gate.ledger.held_tokens - before)
        if clamped > 0:
            self._keep(ticket, clamped)
        return None

    def _keep(self, ticket: Ticket, tokens: int) -> None:
        self._hold(ticket, tokens)
        self._kept.append((ticket, tokens))

    def _hold(self, ticket: Ticket, tokens: int) -> None:
        self._gate.ledger.held_tokens += tokens
        self._gate.lanes.hold(ticket.lane, tokens)

    def _of_all(self, ticket: Ticket, reason: Reason) -> bool:
        """Whether it waits for room that all lanes share, not for its lane alone."""
        lanes = self._gate.lanes
        return reason == "saturated" or (
            reason == "lane_budget" and lanes.shared_held_tokens + ticket.tokens > lanes.shared_tokens
        )
