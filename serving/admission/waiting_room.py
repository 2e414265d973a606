"""Where clients wait for an answer of the controller: woken by it, never by polling."""

import asyncio
from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry, Gauge

from data.schema import LANES
from serving.clock import Clock
from serving.controller.decide import Controller
from serving.controller.decision import Decision
from serving.controller.waiting import Ticket
from serving.metrics import counter

LEAST_NAP_S = 0.001


class WaitingRoom:
    """Hands each client that waits its answer, in the turn of the event loop after the controller has it.

    A client that leaves is forgotten at once: nothing of it is held or charged, even if it was just let in.
    """

    def __init__(self, controller: Controller, clock: Clock, registry: CollectorRegistry) -> None:
        """Answer for ``controller``; the registry gets gauges of what waits, and a counter of what waited."""
        self._controller = controller
        self._clock = clock
        self._told: dict[Ticket, asyncio.Future[Decision]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._called = False
        self._alarm: asyncio.Task[None] | None = None
        self._rings_s = 0.0
        controller.answered = self._call
        self.waits = counter(
            registry,
            "tidegate_waits",
            "Requests that waited, by what became of them.",
            lane=LANES,
            result=("admitted", "refused", "left"),
        )
        waiting = Gauge("tidegate_waiting", "Requests that wait for their turn.", ["lane"], registry=registry)
        tokens = Gauge("tidegate_waiting_tokens", "Tokens that they ask for.", ["lane"], registry=registry)
        for lane in LANES:
            waiting.labels(lane).set_function(self._reader(lane, "waiting"))
            tokens.labels(lane).set_function(self._reader(lane, "waiting_tokens"))

    def __len__(self) -> int:
        """Clients that wait."""
        return len(self._told)

    async def wait(self, ticket: Ticket, left: Callable[[], Awaitable[None]]) -> Decision | None:
        """Wait for a ticket's answer; None when its client left first.

        Args:
            ticket: from the controller's `enqueue`, with nothing awaited since.
            left: returns when the client is gone.

        """
        self._loop = asyncio.get_running_loop()
        told = self._told[ticket] = self._loop.create_future()
        self._set_alarm(ticket.until_s)
        leaving = asyncio.ensure_future(left())
        stayed = False
        try:
            await asyncio.wait({told, leaving}, return_when=asyncio.FIRST_COMPLETED)
            stayed = not leaving.done() or (told.done() and not told.result().admitted)
        finally:
            leaving.cancel()
            if not stayed:
                self._forget(ticket, told)
            del self._told[ticket]
            result = ("admitted" if told.result().admitted else "refused") if stayed else "left"
            self.waits.labels(ticket.lane.name, result).inc()
        return told.result() if stayed else None

    def _forget(self, ticket: Ticket, told: "asyncio.Future[Decision]") -> None:
        now_s = self._clock.monotonic_s()
        if not told.done() and not self._controller.leave(ticket, now_s):
            self._take()  # it has an answer that was not handed out yet
        if told.done() and (reservation_id := told.result().reservation_id) is not None:
            self._controller.cancel(reservation_id, now_s)

    def _call(self) -> None:
        if self._told and self._loop is not None and not self._called:
            self._called = True
            self._loop.call_soon_threadsafe(self._take)

    def look(self) -> None:
        """Hand out what the controller has answered; for when time and levels have moved by themselves."""
        if self._told:
            self._take()

    def _take(self) -> None:
        self._called = False
        for ticket, decision in self._controller.advance(self._clock.monotonic_s()):
            told = self._told.get(ticket)
            if told is not None and not told.done():
                told.set_result(decision)

    def _set_alarm(self, until_s: float) -> None:
        """See that somebody looks at the controller when the next deadline, or lease, is over."""
        if self._alarm is None or self._alarm.done() or until_s < self._rings_s:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = asyncio.create_task(self._ring())

    async def _ring(self) -> None:
        while self._told:
            now_s = self._clock.monotonic_s()
            due_s = self._controller.next_due_s(now_s)
            if due_s is None:
                return
            self._rings_s = now_s + due_s
            await self._clock.sleep(max(due_s, LEAST_NAP_S))
            self._take()

    def _reader(self, lane: str, name: str) -> Callable[[], float]:
        def read() -> float:
            lanes = self._controller.snapshot(self._clock.monotonic_s()).lanes
            return float(getattr(lanes[lane], name))

        return read
