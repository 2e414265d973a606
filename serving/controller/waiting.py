"""Requests that wait for their turn: fair by tokens between tenants and lanes, each with a deadline.

Turns follow virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024,
https://www.usenix.org/conference/osdi24/presentation/sheng): every tenant of a lane has a counter of the
tokens that it was given while others waited, over its weight, and the least counter goes first; so do lanes
among one another, by their weights. Whoever starts to wait is lifted to the least counter that waits, so
that nobody saves turns up.
"""

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import islice

from serving.controller.lanes import Lane
from serving.controller.outputs import OutputQuantile
from serving.controller.tenants import Account, Charge

LOOKS = 16
"""Requests of a lane that are looked at for one that fits; what stands further back can't pass."""
LEAST_WEIGHT = 0.01
"""A lane without weight gets the turns of this one: nothing starves."""


class Ticket:
    """One waiting request. For callers it is a name to know it by.

    Attributes:
        lane: the lane that it waits in.
        tokens: prompt and expected output.
        since_s: when it came.
        aged_s: from then on nothing behind it passes.
        until_s: then it is refused.

    """

    __slots__ = (
        "aged_s",
        "answers",
        "charge",
        "expected",
        "flow",
        "lane",
        "limit_tokens",
        "number",
        "since_s",
        "tokens",
        "until_s",
    )

    def __init__(
        self,
        lane: Lane,
        tokens: int,
        since_s: float,
        aged_s: float,
        until_s: float,
        flow: OutputQuantile,
        limit_tokens: int | None,
        answers: int,
        expected: int,
        charge: Charge,
    ) -> None:
        self.lane = lane
        self.tokens = tokens
        self.since_s = since_s
        self.aged_s = aged_s
        self.until_s = until_s
        self.flow = flow
        self.limit_tokens = limit_tokens
        self.answers = answers
        self.expected = expected
        self.charge = charge
        self.number = 0  # 0: it waits no longer

    @property
    def account(self) -> Account:
        """Who pays."""
        return self.charge.account


class _TenantQueue:
    """What one tenant has waiting in one lane, oldest first."""

    __slots__ = ("account", "tickets")

    def __init__(self, account: Account) -> None:
        self.account = account
        self.tickets: OrderedDict[int, Ticket] = OrderedDict()


class LaneQueue:
    """What waits in one lane."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.tokens = 0
        self.virtual = 0.0
        self._weight = max(lane.rule.weight, LEAST_WEIGHT)
        self._tickets: OrderedDict[int, Ticket] = OrderedDict()  # oldest first
        self._tenants: dict[Account, _TenantQueue] = {}
        self._heap: list[tuple[float, int, _TenantQueue]] = []  # each tenant that waits once, and ended ones
        self._floor = 0.0  # counter of the tenant that went last

    def __len__(self) -> int:
        return len(self._tickets)

    def add(self, ticket: Ticket) -> None:
        """Take a ticket in, at the end of its tenant's line."""
        account, name = ticket.account, self.lane.name
        queue = self._tenants.get(account)
        if queue is None:
            account.virtual[name] = max(account.virtual.get(name, 0.0), self._least())
            queue = self._tenants[account] = _TenantQueue(account)
            queue.tickets[ticket.number] = ticket
            self._push(queue)
        else:
            queue.tickets[ticket.number] = ticket
        self._tickets[ticket.number] = ticket
        self.tokens += ticket.tokens

    def remove(self, ticket: Ticket) -> None:
        """Take a ticket out, wherever it stands."""
        del self._tickets[ticket.number]
        self.tokens -= ticket.tokens
        queue = self._tenants[ticket.account]
        del queue.tickets[ticket.number]
        if not queue.tickets:
            del self._tenants[ticket.account]

    def count(self, account: Account, tokens: float) -> None:
        """Count tokens that a tenant was given while others waited; below 0 they are given back."""
        virtual = account.virtual.get(self.lane.name, 0.0)
        account.virtual[self.lane.name] = virtual + tokens / account.limits.weight
        self.virtual += tokens / self._weight

    def newest(self) -> Ticket:
        """The ticket that came last."""
        return next(reversed(self._tickets.values()))

    def in_turn(self) -> Iterator[Ticket]:
        """Tickets in turn, until 16 were passed: one that isn't taken out before the next is asked for is.

        Close it when done: those who stayed keep their place.
        """
        stayed, looks = [], LOOKS
        try:
            while self._heap and looks > 0:
                counter, _, queue = heappop(self._heap)
                for ticket in tuple(islice(queue.tickets.values(), looks)):
                    yield ticket
                    if not ticket.number:
                        self._floor = max(self._floor, counter)
                        break
                    looks -= 1
                else:
                    stayed.append(queue)
                    continue
                self._push(queue)
        finally:
            for queue in stayed:
                self._push(queue)

    def _least(self) -> float:
        """Least counter of those who wait; of the last who did, where nobody waits."""
        heap = self._heap
        while heap and not heap[0][-1].tickets:
            heappop(heap)
        return heap[0][0] if heap else self._floor

    def _push(self, queue: _TenantQueue) -> None:
        if not queue.tickets:
            return
        if len(self._heap) > 2 * len(self._tenants) + 64:  # many left before their turn
            self._heap = [entry for entry in self._heap if entry[-1].tickets]
            heapify(self._heap)
        first = next(iter(queue.tickets))
        heappush(self._heap, (queue.account.virtual[self.lane.name], first, queue))


class Waiting:
    """All that waits, in its lanes."""

    def __init__(self, lanes: list[Lane]) -> None:
        self.by_lane = {lane.name: LaneQueue(lane) for lane in lanes}
        self._issued = 0
        self._count = 0
        self._ends: list[tuple[float, int, Ticket]] = []  # by deadline, and tickets that went before it

    def __len__(self) -> int:
        return self._count

    def add(self, ticket: Ticket) -> None:
        """Let a request wait."""
        self._issued += 1
        ticket.number = self._issued
        queue = self.by_lane[ticket.lane.name]
        if not len(queue):
            others = [other.virtual for other in self.by_lane.values() if len(other)]
            queue.virtual = max(queue.virtual, min(others, default=queue.virtual))
        queue.add(ticket)
        self._count += 1
        heappush(self._ends, (ticket.until_s, ticket.number, ticket))
        if len(self._ends) > 2 * self._count + 64:
            self._ends = [end for end in self._ends if end[-1].number]
            heapify(self._ends)

    def remove(self, ticket: Ticket) -> None:
        """Let it wait no longer."""
        self.by_lane[ticket.lane.name].remove(ticket)
        ticket.number = 0
        self._count -= 1

    def expired(self, now_s: float) -> Iterator[Ticket]:
        """Take out and yield the requests whose deadline has come, in order of their deadlines."""
        while self._ends and self._ends[0][0] <= now_s:
            ticket = heappop(self._ends)[-1]
            if ticket.number:
                self.remove(ticket)
                yield ticket

    def next_end_s(self) -> float | None:
        """The next deadline; None when nothing waits."""
        while self._ends and not self._ends[0][-1].number:
            heappop(self._ends)
        return self._ends[0][0] if self._ends else None
