"""Sharing: a replica's exchanges with the store, beside its decisions and never in their way.

Leased, the default: decisions are in memory; every ``exchange_s``, and at once when a request lacked room
that others have, one call tells what is used and fetches room. Exact: no room is kept ready; a request that
lacks some waits up to ``deadline_ms`` for the exchange that asks for just that, together with all others that
came meanwhile. In both, a request of a tenant that the store was not asked about yet waits in this way once.

A store that has not answered for a lease is lost: the limits are then this replica's share, until it is back
and has been told what is used.
"""

import asyncio
import logging
import secrets
from contextlib import suppress
from dataclasses import replace

from serving.clock import Clock
from serving.controller.decide import Controller
from serving.controller.decision import RequestFacts
from serving.controller.gate import Gate
from serving.controller.pool import Pool
from serving.controller.shared_limits import SharedLimits
from serving.shared.settings import SharedSettings
from serving.shared.store import Answer, Store, StoreError

GAP_S = 0.005
"""Shortest time between two exchanges of a leased replica."""
STEP_S = 0.05
"""A clock of the store that is so far from ours is followed: its hours and days hold for all replicas."""

log = logging.getLogger("tidegate")


class Sharing:
    """Holds a controller's limits together with those of other replicas.

    Attributes:
        exchanges: calls that the store answered.
        failures: calls that it did not.
        waited: requests that waited for an answer.
        late: those of them that were decided without it.

    """

    def __init__(self, controller: Controller, settings: SharedSettings, clock: Clock) -> None:
        self.exchanges = self.failures = self.waited = self.late = 0
        self._controller = controller
        self._settings = settings
        self._clock = clock
        self._store = Store(settings, secrets.token_hex(8))
        self._limits = SharedLimits(controller.rules, settings.replicas, exact=settings.mode == "exact")
        self._good_s = float("-inf")
        self._everything = True
        self._turn = asyncio.Lock()
        self._woken = asyncio.Event()
        self._next: asyncio.Task[bool] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        controller.on_gate(lambda gate, now_s: gate.share(self._limits, now_s), clock.monotonic_s())

    @property
    def lost(self) -> bool:
        """The store is lost, or has never answered: this replica goes by its share."""
        return self._limits.lost

    @property
    def replicas(self) -> int:
        """Replicas that the share is reckoned for: configured, or more where more were seen."""
        return self._limits.replicas

    async def run(self) -> None:
        """Exchange for as long as the service lives, then part."""
        self._loop = asyncio.get_running_loop()
        self._limits.wake = self._wake
        task = asyncio.current_task()
        try:
            while (
                task is None or not task.cancelling()
            ):  # redis-py may swallow what cancels it as it connects
                answered = await self.exchange()
                hungry = answered and self._limits.hungry
                if not self._limits.exact or hungry:
                    await asyncio.sleep(GAP_S)
                if not hungry:
                    with suppress(TimeoutError):  # before Python 3.12, wait_for may lose a cancellation
                        async with asyncio.timeout(self._settings.exchange_s):
                            await self._woken.wait()
                self._woken.clear()
        finally:
            await self.close()

    async def exchange(self) -> bool:
        """Tell what is used and take what is granted; False when the store gave no answer."""
        async with self._turn:
            sent_s = self._clock.monotonic_s()
            everything = self._everything
            asks, asked_s = self._controller.on_gate(
                lambda gate, now_s: (self._limits.asks(gate, now_s, all_of_them=everything), now_s), sent_s
            )
            try:
                answer = await self._store.exchange(asks)
            except StoreError as error:
                self._failed(error)
                return False
            if answer.overtaken:
                return False
            self._take(answer, asked_s)
            self._good_s = sent_s
            return True

    async def make_room(self, facts: RequestFacts) -> None:
        """Fetch the room that a request lacks before it is decided, if that is to be waited for."""
        if self.lost:
            return
        lacking, tokens = self._controller.on_gate(
            lambda gate, now_s: self._lacking(gate, facts, now_s), self._clock.monotonic_s()
        )
        if not lacking:
            return
        self.waited += 1
        for pool in lacking:
            pool.pending.append(tokens)
        try:
            async with asyncio.timeout(self._settings.deadline_ms / 1e3):
                await asyncio.shield(self._joined())
        except TimeoutError:
            self.late += 1
        finally:
            for pool in lacking:
                pool.pending.remove(tokens)

    async def close(self) -> None:
        """Give all room back and part; what was used of quotas stays told."""
        asks = self._controller.on_gate(
            lambda gate, now_s: self._limits.asks(gate, now_s, all_of_them=True), self._clock.monotonic_s()
        )
        try:
            await self._store.exchange(asks, leaving=True)
        except StoreError as error:
            log.warning("left without a word", extra={"fields": {"reason": _told(error)}})
        await self._store.close()

    def gauges(self) -> dict[str, tuple[str, float | None]]:
        """What /metrics shows of sharing."""
        return {
            "tidegate_shared_store_lost": (
                "The shared store gives no answer: limits are this replica's share.",
                float(self.lost),
            ),
            "tidegate_shared_replicas": ("Replicas that the share is reckoned for.", float(self.replicas)),
            "tidegate_shared_exchanges": ("Exchanges that the store answered.", float(self.exchanges)),
            "tidegate_shared_failures": ("Exchanges that it did not answer.", float(self.failures)),
            "tidegate_shared_waited": ("Requests that waited for room.", float(self.waited)),
            "tidegate_shared_late": ("Requests decided without the room they waited for.", float(self.late)),
        }

    def _lacking(self, gate: Gate, facts: RequestFacts, now_s: float) -> tuple[list[Pool], int]:
        ticket = gate.ticket(replace(facts, continuation=None), now_s)
        for pool in self._limits.pools(ticket)[1:]:
            pool.touch()
        lacking = [
            pool
            for pool in self._limits.lacks(ticket, gate, now_s)
            if self._limits.exact or (pool.window is not None and not pool.seen)
        ]
        return lacking, ticket.tokens

    def _joined(self) -> asyncio.Task[bool]:
        """The next exchange that has not begun: whoever comes before it begins is told with it."""
        if self._next is None:
            self._next = asyncio.create_task(self._one())
        return self._next

    async def _one(self) -> bool:
        while self._turn.locked():
            async with self._turn:
                pass
        self._next = None
        return await self.exchange()

    def _take(self, answer: Answer, asked_s: float) -> None:
        def take(gate: Gate, now_s: float) -> None:
            ours_s = (asked_s + now_s) / 2 + gate.wall_offset_s
            ahead_s = answer.store_time_us / 1e6 - ours_s
            if abs(ahead_s) > STEP_S:
                gate.wall_offset_s += ahead_s
            self._limits.granted(gate, now_s, answer.grants, answer.live_replicas)
            self._limits.recalled(answer.recalled)

        was_lost = self.lost
        self._controller.on_gate(take, self._clock.monotonic_s())
        self.exchanges += 1
        self._everything = not answer.known
        if answer.recalled or self._everything:
            self._woken.set()
        if was_lost:
            log.info("shared store answers", extra={"fields": {"replicas": answer.live_replicas}})

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        now_s = self._clock.monotonic_s()
        self._controller.on_gate(lambda _gate, _now_s: self._limits.untold(), now_s)
        if self.failures == 1 and not self.exchanges:
            log.warning("shared store gives no answer yet", extra={"fields": {"reason": _told(error)}})
        if not self.lost and now_s - self._good_s > self._settings.lease_s:
            self._controller.on_gate(self._limits.lose, now_s)
            fields = {"reason": _told(error), "share_of": self.replicas}
            log.warning("shared store lost; limits are this replica's share", extra={"fields": fields})

    def _wake(self) -> None:
        if self._loop is not None and not self._woken.is_set():
            self._loop.call_soon_threadsafe(self._woken.set)


def _told(error: Exception) -> str:
    """What an error says; the client's errors name host and port, and no password."""
    return f"{type(error).__name__}: {error}"
