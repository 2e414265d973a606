"""The online service behind its routes: one gate, one predictor, one meter, on one clock."""

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from models.bundle import Bundle
from serving import messages, telemetry, views
from serving.clock import Clock
from serving.controller.decide import Controller
from serving.controller.decision import Decision, RequestFacts
from serving.engine import Engine
from serving.guard_state import guard_state, load_guard, save
from serving.metering import Meter
from serving.metrics import Gauges, Metrics
from serving.offered import Offer, OfferedLoad
from serving.predictor import Predictor
from serving.settings import Settings
from serving.telemetry import Fault

ROWS_AT_ONCE = 500
"""Telemetry rows between two breaths, so that a long body doesn't hold decisions up."""
PAUSE_S = 1.0
"""Longest pause between two looks at the clock: tightening moves and the guard's state is saved on time."""

log = logging.getLogger("tidegate")


class Service:
    """What the routes call. Everything here is in-memory work; only `run` waits and writes."""

    def __init__(self, bundle: Bundle, settings: Settings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self.bundle = bundle
        guard = load_guard(settings.state_file, bundle.version, bundle.manifest)
        self.offered = OfferedLoad()
        self.meter = Meter(settings.capacity_tokens_per_s)
        self.predictor = Predictor(bundle, guard, self.offered, self.meter)
        # A name of this process: a settlement that outlived a restart must not free another's reservation.
        self.controller = Controller(settings.rules, id_prefix=f"r{secrets.token_hex(4)}-")
        self.engine = Engine(self.controller)
        self.elsewhere = telemetry.Elsewhere(self.offered, settings.max_open_requests)
        self.metrics = Metrics(self.gauges)
        self._admitted: OrderedDict[str, tuple[float, Offer]] = (
            OrderedDict()
        )  # by reservation, with lease end
        self._saved_s = clock.monotonic_s()

    def admit(self, request: messages.AdmitRequest) -> Decision:
        """Decide on a request; admitted or not, it is offered load."""
        now_us, now_s = self.clock.wall_us(), self.clock.monotonic_s()
        self._steer(now_s)
        facts = RequestFacts(
            request.prompt_tokens,
            request.tenant,
            request.model,
            request.lane,
            request.max_tokens,
            request.max_completion_tokens,
            request.n,
            deadline_ms=request.deadline_ms,
        )
        decision = self.controller.admit(facts, now_s)
        offer = self.offered.arrive(
            now_us,
            now_s,
            request.prompt_tokens,
            tenant=request.tenant,
            lane=decision.lane,
            model=request.model,
            log_type=request.log_type,
        )
        if decision.reservation_id is not None:
            self._admitted[decision.reservation_id] = (now_s + self.controller.rules.lease_s, offer)
            self.metrics.admitted.labels(decision.lane).inc()
        else:
            self.offered.finish(offer, now_us, None, None, refused=True)
            self.metrics.refused.labels(decision.lane, decision.reason).inc()
        return decision

    def settle(self, request: messages.SettleRequest) -> bool:
        """Settle a reservation with what was really used; false when there is none of that name."""
        now_us, now_s = self.clock.wall_us(), self.clock.monotonic_s()
        served = request.outcome == "served"
        # Only a served answer is as long as its flow's answers are.
        tokens = request.output_tokens if served else None
        settled = self.controller.settle(request.reservation_id, tokens, now_s)
        held = self._admitted.pop(request.reservation_id, None)
        if settled and held is not None:
            refused = request.outcome in ("shed", "failed")
            self.offered.finish(
                held[1], now_us, request.output_tokens, request.cached_tokens, refused=refused
            )
        (self.metrics.settled if settled else self.metrics.unsettled).inc()
        return settled

    async def push(self, rows: Iterable[Any]) -> messages.TelemetryResponse:
        """Take in rows of engine samples and request events."""
        accepted = 0
        refused = []
        for number, row in enumerate(rows):
            if number % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
                await asyncio.sleep(0)
            fault = self._take(row)
            if fault is None:
                accepted += 1
                self.metrics.rows.inc()
            else:
                refused.append(messages.RefusedRow(row=number, reason=fault.reason))
                self.metrics.rows_refused.labels(fault.kind).inc()
        return messages.TelemetryResponse(accepted=accepted, refused=len(refused), refused_rows=refused)

    def forecast(self) -> messages.ForecastResponse:
        """What the last tick saw."""
        return views.forecast(self.predictor, self.controller, self.clock)

    def report(self) -> messages.ReportResponse:
        """How good the alarms were."""
        return views.report(self.predictor, self.clock)

    def ready(self) -> messages.ReadyResponse:
        """Whether requests can be decided on, and by what."""
        return views.ready(self.predictor, self.clock)

    def gauges(self) -> Gauges:
        """What /metrics shows besides counters."""
        now_us = self.clock.wall_us()
        return {
            **views.gauges(self.predictor, self.controller, self.clock),
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
            caught_up = self.predictor.tick(now_us, now_s, tightened)
            if self.offered.ticked_s > before:
                self.metrics.ticks.inc()
        except Exception as error:  # the predictor has noted why and released the gate: the rules go on
            self.metrics.tick_failures.inc()
            log.error("tick failed", exc_info=error)
        self._steer(now_s)
        while self._admitted and next(iter(self._admitted.values()))[0] < now_s:
            self._admitted.popitem(last=False)
        return caught_up

    async def run(self) -> None:
        """Tick and save for as long as the service lives."""
        while True:
            caught_up = self.tick()
            if self.clock.monotonic_s() - self._saved_s >= self.settings.save_every_s:
                await asyncio.to_thread(self._save, self._snapshot())
            pause_s = min(self.predictor.next_tick_in_s(self.clock.wall_us()), PAUSE_S)
            await self.clock.sleep(pause_s if caught_up else 0.0)

    def close(self) -> None:
        """Save the guard's state for the next start."""
        self._save(self._snapshot())

    def _take(self, row: Any) -> Fault | None:
        parsed = telemetry.parse(row)
        now_us, now_s = self.clock.wall_us(), self.clock.monotonic_s()
        if isinstance(parsed, Fault):
            return parsed
        if isinstance(parsed, messages.EngineSample):
            return self.engine.take(parsed, now_us, now_s)
        return self.elsewhere.take(parsed, now_us, now_s)

    def _steer(self, now_s: float) -> None:
        """Move the gate towards what the last tick asked for: 0 once that tick is too old."""
        self.controller.set_tightening(self.predictor.target(now_s), now_s)

    def _snapshot(self) -> dict[str, Any]:
        self._saved_s = self.clock.monotonic_s()
        return guard_state(self.bundle.version, self.predictor.guard)

    def _save(self, state: dict[str, Any]) -> None:
        if self.settings.state_file is None:
            return
        try:
            save(self.settings.state_file, state)
        except OSError as error:
            # Deciding goes on; the file from before still holds most of the budget.
            log.error("guard state not saved", extra={"fields": {"reason": str(error)}})
