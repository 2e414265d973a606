"""Requests that wait for their turn: fair by tokens between tenants and lanes, each with a deadline.

Turns follow virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024,
https://www.usenix.org/conference/osdi24/presentation/sheng): every tenant of a lane has a counter of the
tokens that it was given while others waited, over its weight, and the least counter goes first; so do lanes
among one another, by their weights. Whoever starts to wait is lifted to the least counter that waits, so
that nobody saves turns up.
"""

import math
from collections import OrderedDict
from collections.abc import Generator, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice

from serving.controller.continuations import Continuation
from serving.controller.decision import RequestFacts
from serving.controller.lanes import Lane
from serving.controller.outputs import OutputQuantile
from serving.controller.tenants import Account, Charge

LOOKS = 16
"""Requests of a lane that are looked at for one that fits; what stands further back can't pass."""
LEAST_WEIGHT = 0.01
"""A lane without weight gets the turns of this one: nothing starves."""


class Ticket:
    """What one request asks for, and its place where it waits. For callers it is a name to know it by.

    Attributes:
        request: as it came.
        rest: what it continues.
        lane: the lane that it is judged in.
        account: who pays.
        flow: what its output will teach.
        limit_tokens: limit on the output of one answer.
        answers: answers asked for.
        one: output expected of one answer.
        size: prompt and all expected output.
        tokens: those that it is judged by: less where an overloaded engine clamps answers.
        charge: what its tenant was charged when it began to wait.
        number: its number while it waits, else 0.
        aged_s: from then on nothing that has its turn later passes it.
        until_s: then it is refused.
        expected: room is kept for it: it comes when it was told to, or waits here.
        placed: the forecast alone holds it back this time; its place is kept.

    """

    __slots__ = (
        "account",
        "aged_s",
        "answers",
        "charge",
        "expected",
        "flow",
        "lane",
        "limit_tokens",
        "number",
        "one",
        "placed",
        "request",
        "rest",
        "size",
        "tokens",
        "until_s",
    )

    def __init__(
        self,
        request: RequestFacts,
        rest: Continuation | None,
        lane: Lane,
        account: Account,
        flow: OutputQuantile,
        limit_tokens: int | None,
        answers: int,
        one: int,
        size: int,
        tokens: int,
    ) -> None:
        self.request = request
        self.rest = rest
        self.lane = lane
        self.account = account
        self.flow = flow
        self.limit_tokens = limit_tokens
        self.answers = answers
        self.one = one
        self.size = size
        self.tokens = tokens
        self.charge: Charge | None = None
        self.number = 0
        self.aged_s = self.until_s = 0.0
        self.expected = self.placed = False


class _TenantQueue:
    """What one tenant has waiting in one lane, oldest first."""

    __slots__ = ("account", "key", "tickets")

    def __init__(self, account: Account) -> None:
        self.account = account
        self.key = -1.0  # of its entry in the heap; others are void
        self.tickets: OrderedDict[int, Ticket] = OrderedDict()


class LaneQueue:
    """What waits in one lane."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.tokens = 0
        self.virtual = 0.0
        self.weight = max(lane.rule.weight, LEAST_WEIGHT)
        self._tickets: OrderedDict[int, Ticket] = OrderedDict()  # oldest first
        self._tenants: dict[Account, _TenantQueue] = {}
        self._heap: list[tuple[float, int, _TenantQueue]] = []  # each tenant that waits once, and void ones
        self._sizes: list[tuple[int, int, Ticket]] = []  # by tokens, and tickets that wait no longer
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
        if len(self._sizes) > 2 * len(self._tickets) + 64:
            self._sizes = [size for size in self._sizes if size[-1].number == size[1]]
            heapify(self._sizes)
        heappush(self._sizes, (ticket.tokens, ticket.number, ticket))

    def remove(self, ticket: Ticket) -> None:
        """Take a ticket out, wherever it stands."""
        del self._tickets[ticket.number]
        self.tokens -= ticket.tokens
        queue = self._tenants[ticket.account]
        del queue.tickets[ticket.number]
        if not queue.tickets:
            del self._tenants[ticket.account]

    def counter(self, ticket: Ticket, more_tokens: int = 0) -> float:
        """Counter of a ticket's tenant, as if it had been given ``more_tokens``."""
        account = ticket.account
        return account.virtual[self.lane.name] + more_tokens / account.limits.weight

    def count(self, account: Account, tokens: float) -> None:
        """Count tokens that a tenant was given while others waited; below 0 they are given back."""
        virtual = account.virtual.get(self.lane.name, 0.0)
        account.virtual[self.lane.name] = virtual + tokens / account.limits.weight
        self.virtual += tokens / self.weight

    def uncount(self, account: Account, tokens: float) -> None:
        """Take back what was counted for a tenant that waits, and with it its place."""
        self.count(account, -tokens)
        queue = self._tenants.get(account)
        if queue is not None and queue.key != account.virtual[self.lane.name]:
            self._push(queue)

    def smallest_tokens(self) -> float:
        """Least tokens that a ticket here asks for; infinite where nothing waits."""
        sizes = self._sizes
        while sizes and sizes[0][-1].number != sizes[0][1]:
            heappop(sizes)
        return sizes[0][0] if sizes else math.inf

    def newest(self) -> Ticket:
        """The ticket that came last."""
        return next(reversed(self._tickets.values()))

    def in_turn(self) -> Generator[Ticket, None, None]:
        """Tickets in turn, until 16 were passed: not taken out, or placed, before the next is asked for.

        Close it when done: those who stayed keep their place.
        """
        stayed, looks = [], LOOKS
        try:
            while self._heap and looks > 0:
                counter, _, queue = heappop(self._heap)
                if counter != queue.key:
                    continue
                queue.key = -1.0
                stayed.append(queue)
                unplaced = (ticket for ticket in queue.tickets.values() if not ticket.placed)
                for ticket in tuple(islice(unplaced, looks)):
                    yield ticket
                    if not ticket.number or ticket.placed:
                        self._floor = max(self._floor, counter)
                        self._push(stayed.pop())
                        break
                    looks -= 1
        finally:
            for queue in stayed:
                self._push(queue)

    def _least(self) -> float:
        """Least counter of those who wait; of the last who went, where nobody waits."""
        heap = self._heap
        while heap and not _stands(heap[0]):
            heappop(heap)
        return heap[0][0] if heap else self._floor

    def _push(self, queue: _TenantQueue) -> None:
        if not queue.tickets:
            return
        if len(self._heap) > 2 * len(self._tenants) + 64:  # many left before their turn
            self._heap = [entry for entry in self._heap if _stands(entry)]
            heapify(self._heap)
        queue.key = queue.account.virtual[self.lane.name]
        heappush(self._heap, (queue.key, next(iter(queue.tickets)), queue))


def _stands(entry: tuple[float, int, _TenantQueue]) -> bool:
    return bool(entry[-1].tickets) and entry[0] == entry[-1].key


class Waiting:
    """All that waits, ``count`` requests, in its lanes."""

    def __init__(self, lanes: list[Lane]) -> None:
        self.by_lane = {lane.name: LaneQueue(lane) for lane in lanes}
        self._issued = 0
        self.count = 0
        self._ends: list[tuple[float, int, Ticket]] = []  # by deadline, and tickets that went before it

    def add(self, ticket: Ticket) -> None:
        """Let a ticket wait until its deadline."""
        self._issued += 1
        ticket.number = self._issued
        queue = self.by_lane[ticket.lane.name]
        if not len(queue):
            others = [other.virtual for other in self.by_lane.values() if len(other)]
            queue.virtual = max(queue.virtual, min(others, default=queue.virtual))
        queue.add(ticket)
        self.count += 1
        heappush(self._ends, (ticket.until_s, ticket.number, ticket))
        if len(self._ends) > 2 * self.count + 64:
            self._ends = [end for end in self._ends if end[-1].number == end[1]]
            heapify(self._ends)

    def remove(self, ticket: Ticket) -> None:
        """Let it wait no longer."""
        self.by_lane[ticket.lane.name].remove(ticket)
        ticket.number = 0
        self.count -= 1

    def overflow(self, ticket: Ticket, most: int, grace: int) -> Ticket | None:
        """Who has to go when ``ticket`` came last and more than ``most`` wait; None when nobody has to.

        The newest of the lowest lane that has more than its weight of the places. A protected lane is not
        touched; where only it has more, it may take ``grace`` places beyond, and then the last one goes.
        """
        if self.count <= most:
            return None
        for queue in reversed(self.by_lane.values()):
            if not queue.lane.rule.protected and len(queue) > queue.lane.rule.weight * most:
                return queue.newest()
        return None if ticket.lane.rule.protected and self.count <= most + grace else ticket

    def expired(self, now_s: float) -> Iterator[Ticket]:
        """Take out and yield the tickets whose deadline has come, in order of their deadlines."""
        while self._ends and self._ends[0][0] <= now_s:
            _, number, ticket = heappop(self._ends)
            if ticket.number == number:
                self.remove(ticket)
                yield ticket

    def next_end_s(self) -> float | None:
        """The next deadline; None when nothing waits."""
        while self._ends and self._ends[0][-1].number != self._ends[0][1]:
            heappop(self._ends)
        return self._ends[0][0] if self._ends else None
