"""The online service behind its routes: one gate, one predictor, one meter, on one clock."""

import asyncio
import logging
import secrets
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import duckdb

from data.errors import InputError
from data.writer import LakeWriter
from models.bundle import Bundle
from serving.admission import settling
from serving.admission.facts import facts_of
from serving.admission.stalls import Stalls
from serving.admission.waiting_room import WaitingRoom
from serving.clock import Clock
from serving.controller.decide import Controller
from serving.controller.decision import Decision
from serving.controller.waiting import Ticket
from serving.forecast.guard_state import load_guards, save
from serving.forecast.metering import Meter
from serving.forecast.offered import Offer, OfferedLoad
from serving.forecast.predictor import Forecasts, Predictor
from serving.http import messages, views
from serving.metrics import Gauges, Metrics
from serving.settings import Settings
from serving.shared.optional import sharing_of
from serving.telemetry.elsewhere import Elsewhere
from serving.telemetry.engine import Engine
from serving.telemetry.pushes import Pushes
from serving.telemetry.recording import Recording, recent_requests
from serving.telemetry.scraping import Scraping

START_PATIENCE_S = 10.0
"""The lake has this long to answer at the start."""
PAUSE_S = 1.0
"""Longest pause between two looks at the clock: tightening moves and the guard's state is saved on time."""
BLIND = "none of the engines that are scraped tells anything: what a forecast would do to them can't be seen"

log = logging.getLogger("tidegate")


class _Admitted(NamedTuple):
    lease_ends_s: float
    offer: Offer
    request_id: str  # in the lake; '' where nothing is recorded


class Service:
    """What the routes call. Deciding is in-memory work; only `run` waits and writes.

    Raises:
        InputError: when the guard's state on disk is damaged, or two scrape targets share a name.

    """

    def __init__(self, bundle: Bundle, settings: Settings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self.guards = load_guards(settings.state_file, bundle.version, bundle.manifest)
        self.offered = OfferedLoad()
        self.meter = Meter(settings.capacity_tokens_per_s)
        self.predictor = Predictor(bundle, self.guards.guard, self.offered, self.meter)
        # A name of this process: a settlement that outlived a restart must not free another's reservation.
        self.controller = Controller(
            settings.rules,
            id_prefix=f"r{secrets.token_hex(4)}-",
            wall_offset_s=clock.wall_us() / 1e6 - clock.monotonic_s(),
        )
        self.sharing = sharing_of(self.controller, settings.shared, clock)
        self.engine = Engine(self.controller, self.offered.live.engines)
        self.metrics = Metrics(self.gauges)
        self.stalls = Stalls()
        self.waiting = WaitingRoom(self.controller, clock, self.metrics.registry)
        # It opens the lake with the first rows: where that fails, the service decides all the same.
        self.writer: LakeWriter | None = None
        self.recording: Recording | None = None
        if settings.lake is not None:
            self.writer = LakeWriter(settings.lake, max_rows=settings.max_waiting_rows)
            self.recording = Recording(self.writer, settings.source, clock, self.metrics)
        self.elsewhere = Elsewhere(
            self.offered,
            settings.max_open_requests,
            settings.max_recent_requests,
            stores=self.writer is not None,
        )
        self.scraping: Scraping | None = None
        if settings.scrape:
            sink = self.recording.samples if self.recording else None
            self.scraping = Scraping(settings.scrape, self.engine, clock, sink)
            self.metrics.registry.register(self.scraping)
        self.pushes = Pushes(self.elsewhere, self.engine, clock, self.metrics, self.writer)
        self._admitted: OrderedDict[str, _Admitted] = OrderedDict()  # by reservation
        self._saved_s = clock.monotonic_s()
        self._saving = threading.Lock()
        self._steered = 0.0
        self.draining = False  # told to stop: everything is answered, and /readyz sends callers elsewhere

    async def make_room(self, request: messages.AdmitRequest) -> None:
        """Call it before `admit`: where replicas share limits it may wait, up to a deadline, for room."""
        if self.sharing is not None:
            await self.sharing.make_room(facts_of(request))

    @property
    def bundle(self) -> Forecasts:
        """The bundle that forecasts."""
        return self.predictor.bundle

    def swap(self, bundle: Bundle) -> None:
        """Forecast with another, warmed bundle from the next tick on; nothing that was learned is reset."""
        self.predictor.swap(bundle, self.guards.swap(bundle.version, bundle.manifest))

    def admit(self, request: messages.AdmitRequest) -> Decision:
        """Decide on a request; admitted or not, it is offered load."""
        now_us, now_s = self.clock.wall_us(), self.clock.monotonic_s()
        self._steer(now_s)
        decision = self.controller.admit(facts_of(request), now_s)
        self._decided(request, decision, self._arrived(request, decision.lane, now_us, now_s), now_us)
        return decision

    async def admit_or_wait(
        self, request: messages.AdmitRequest, left: Callable[[], Awaitable[None]]
    ) -> Decision | None:
        """Decide on a request that may wait for its turn; None when its client left meanwhile.

        Args:
            request: as for `admit`; its ``max_wait_ms`` says how long.
            left: returns when the client is gone.

        """
        now_us, now_s = self.clock.wall_us(), self.clock.monotonic_s()
        self._steer(now_s)
        answer = self.controller.enqueue(facts_of(request), now_s, request.max_wait_ms or 0.0)
        lane = answer.lane.name if isinstance(answer, Ticket) else answer.lane
        offer = self._arrived(request, lane, now_us, now_s)  # offered when it came, however long it waits
        decision = None
        try:
            decision = await self.waiting.wait(answer, left) if isinstance(answer, Ticket) else answer
        finally:
            self._decided(request, decision or self._left(lane), offer, now_us)
        return decision

    def settle(self, request: messages.SettleRequest) -> bool:
        """Settle a reservation with what was really used; false when there is none of that name."""
        now_us, now_s = self.clock.wall_us(), self.clock.monotonic_s()
        settled = settling.settle(self.controller, request, now_s)
        held = self._admitted.pop(request.reservation_id, None)
        if settled and held is not None:
            refused = request.outcome in ("shed", "failed")
            self.offered.finish(
                held.offer, now_us, request.output_tokens, request.cached_tokens, refused=refused
            )
            if self.recording:
                self.recording.ended(
                    held.request_id, now_us, request.output_tokens, request.cached_tokens, request.outcome
                )
        (self.metrics.settled if settled else self.metrics.unsettled).inc()
        return settled

    def renew(self, reservation_id: str) -> bool:
        """Start the lease of a request that is still running anew; false when there is none of that name."""
        now_s = self.clock.monotonic_s()
        renewed = self.controller.renew(reservation_id, now_s)
        held = self._admitted.get(reservation_id)
        if renewed and held is not None:
            lease_ends_s = now_s + self.controller.rules.lease_s
            self._admitted[reservation_id] = held._replace(lease_ends_s=lease_ends_s)
            self._admitted.move_to_end(reservation_id)
        return renewed

    def forecast(self) -> messages.ForecastResponse:
        """What the last tick saw."""
        return views.forecast(self.predictor, self.controller, self.clock)

    def report(self) -> messages.ReportResponse:
        """How good the alarms were."""
        return views.report(self.predictor, self.clock)

    def ready(self) -> messages.ReadyResponse:
        """Whether requests can be decided on, and by what."""
        lake = None if self.writer is None else self.writer.state().last_error or "ok"
        return views.ready(self.predictor, self.clock, lake)

    def gauges(self) -> Gauges:
        """What /metrics shows besides counters."""
        now_us = self.clock.wall_us()
        return {
            **views.gauges(self.predictor, self.controller, self.clock),
            **({} if self.sharing is None else self.sharing.gauges()),
            "tidegate_kv_cache_usage": (
                "Share of KV blocks in use, as the engine says.",
                self.engine.reading("kv_cache_usage", now_us),
            ),
            "tidegate_gpu_util": ("GPU use, as the engine says.", self.engine.reading("gpu_util", now_us)),
            "tidegate_forgotten_requests": ("Open requests dropped.", float(self.elsewhere.forgotten)),
        }

    def tick(self) -> bool:
        """Make the tick that is due and move the gate; false when there is more to do at once."""
        now_us, now_s = self.clock.wall_us(), self.clock.monotonic_s()
        before = self.offered.ticked_s
        caught_up = True
        try:
            tightened = self.controller.snapshot(now_s).tightening > 0.0
            blind = self.scraping is not None and self.engine.fleet(now_us).telling == 0
            self.predictor.blind = BLIND if blind else None
            caught_up = self.predictor.tick(now_us, now_s, tightened)
            if self.offered.ticked_s > before:
                self.metrics.ticks.inc()
                self._note_tick(now_us, now_s)
        except Exception as error:  # the predictor has noted why and released the gate: the rules go on
            self.metrics.tick_failures.inc()
            log.error("tick failed", exc_info=error)
        self._steer(now_s)
        self.waiting.look()  # the gate has moved
        while self._admitted and next(iter(self._admitted.values())).lease_ends_s < now_s:
            _, held = self._admitted.popitem(last=False)
            if self.recording:  # nobody said how it ended
                self.recording.ended(held.request_id, now_us, None, None, "aborted")
        return caught_up

    async def remember(self) -> None:
        """Look up which requests of the last hour the lake has, so that none told again is stored twice."""
        if self.settings.lake is None:
            return
        look = asyncio.to_thread(
            recent_requests, self.settings.lake, self.clock.wall_us(), self.settings.max_recent_requests
        )
        try:
            for source, request_id, ended in await asyncio.wait_for(look, START_PATIENCE_S):
                self.elsewhere.remember(source, request_id, ended=ended)
        except (InputError, duckdb.Error, OSError, TimeoutError) as error:
            # The service decides all the same; /readyz tells as soon as rows can't be written.
            reason = str(error) or f"no answer in {START_PATIENCE_S:g} s"
            log.error("lake not read at the start", extra={"fields": {"reason": reason}})

    async def run(self) -> None:
        """Tick and save for as long as the service lives."""
        while True:
            caught_up = self.tick()
            if self.clock.monotonic_s() - self._saved_s >= self.settings.save_every_s:
                await asyncio.to_thread(self._save, self._snapshot())
            pause_s = min(self.predictor.next_tick_in_s(self.clock.wall_us()), PAUSE_S)
            await self.clock.sleep(pause_s if caught_up else 0.0)

    def close(self) -> None:
        """Save the guard's state for the next start, and write what was noted."""
        self._save(self._snapshot())
        if self._admitted:  # how they end is not known here; nothing is told of them
            log.warning("stopped with open reservations", extra={"fields": {"open": len(self._admitted)}})
        if self.recording:
            self.recording.flush()
        if self.writer:
            self.writer.close()

    def _arrived(self, request: messages.AdmitRequest, lane: str, now_us: int, now_s: float) -> Offer:
        return self.offered.arrive(
            now_us,
            now_s,
            request.prompt_tokens,
            tenant=request.tenant,
            lane=lane,
            model=request.model,
            log_type=request.log_type,
            session=request.session,
        )

    def _decided(
        self, request: messages.AdmitRequest, decision: Decision, offer: Offer, arrived_us: int
    ) -> None:
        now_us, now_s = self.clock.wall_us(), self.clock.monotonic_s()
        if request.retry_count or request.retry_of is not None:
            self.metrics.retries.labels(decision.lane).inc()
        request_id = self.recording.decided(request, decision, now_us, arrived_us) if self.recording else ""
        if decision.reservation_id is not None:
            lease_ends_s = now_s + self.controller.rules.lease_s
            self._admitted[decision.reservation_id] = _Admitted(lease_ends_s, offer, request_id)
            self.metrics.admitted.labels(decision.lane).inc()
            return
        self.offered.finish(offer, now_us, None, None, refused=True)
        if decision.reason is not None:
            self.metrics.refused.labels(decision.lane, decision.reason).inc()
            if decision.tightened:
                self.metrics.refused_by_forecast.labels(decision.lane).inc()

    def _left(self, lane: str) -> Decision:
        """What is noted of a client that left while it waited: neither let in nor refused."""
        seen = self.controller.snapshot(self.clock.monotonic_s())
        return Decision(False, lane, None, None, None, False, seen.tightening, seen.backpressure, False, 0)

    def _note_tick(self, now_us: int, now_s: float) -> None:
        predictor = self.predictor
        if self.recording and predictor.seen is not None:
            state = predictor.status(now_us, now_s).state
            self.recording.ticked(predictor.seen, state, predictor.target(now_s), predictor.bundle.version)
            self.recording.judged(predictor.judged, self.offered.origin_us or 0)

    def _steer(self, now_s: float) -> None:
        """Move the gate towards what the last tick asked for: 0 once that tick is too old."""
        target = self.predictor.target(now_s)
        if target or self._steered:
            self.controller.set_tightening(target, now_s)
            self._steered = target

    def _snapshot(self) -> dict[str, Any]:
        self._saved_s = self.clock.monotonic_s()
        return self.guards.to_dict()

    def _save(self, state: dict[str, Any]) -> None:
        if self.settings.state_file is None:
            return
        try:
            with self._saving:  # a stop does not end a save that has begun: two would write into one file
                save(self.settings.state_file, state)
        except OSError as error:
            # Deciding goes on; the file from before still holds most of the budget.
            log.error("guard state not saved", extra={"fields": {"reason": str(error)}})
