"""What the service tells about itself: forecast, report, readiness, gauges; unknown is null."""

import math
from datetime import UTC, datetime

from models.guard.intervals import Estimate
from models.guard.skill import SkillGate
from models.guard.tripwire import TRIPS_AT, TripWire
from serving.clock import Clock
from serving.controller.decide import Controller
from serving.controller.decision import Decision
from serving.forecast.metering import MATURE_S
from serving.forecast.offered import US
from serving.forecast.predictor import Predictor, Seen
from serving.http import messages
from serving.metrics import Gauges


def forecast(predictor: Predictor, controller: Controller, clock: Clock) -> messages.ForecastResponse:
    """What the last tick saw, and where the gate stands."""
    now_us, now_s = clock.wall_us(), clock.monotonic_s()
    seen = predictor.seen or Seen(0, 0)
    status = predictor.status(now_us, now_s)
    return messages.ForecastResponse(
        tick_at=None if predictor.seen is None else datetime.fromtimestamp(seen.at_us / US, UTC),
        tick_age_s=predictor.tick_age_s(now_s),
        next_tick_in_s=predictor.next_tick_in_s(now_us),
        p_onset=seen.p_onset,
        peak_load_tokens_per_s=None if seen.peak_load is None else dict(seen.peak_load),
        baseline_tokens_per_s=seen.baseline,
        score=seen.score,
        threshold=predictor.guard.threshold,
        alarm=seen.alarm,
        denied=seen.denied,
        would_alarm=seen.would_alarm,
        tightening_target=predictor.target(now_s),
        tightening=controller.snapshot(now_s).tightening,
        advisory=status.state != "active",
        state=status.state,
        reason=status.reason,
        retrain=predictor.guard.muted,
    )


def report(predictor: Predictor, clock: Clock) -> messages.ReportResponse:
    """How good the alarms of the last day were, and what is left of the false-alarm budget."""
    status = predictor.status(clock.wall_us(), clock.monotonic_s())
    tally, ledger = predictor.meter.tally(), predictor.guard.ledger
    return messages.ReportResponse(
        false_alarm_rate=tally.false_alarm_rate.value,
        strict_false_alarm_rate=tally.strict_false_alarm_rate.value,
        recall=tally.recall.value,
        random_recall=tally.random_recall,
        base_rate=tally.base_rate,
        alarm_share=tally.alarm_share,
        precision=tally.precision.value,
        lead_s=tally.lead_s(),
        intervals=messages.Intervals(
            false_alarm_rate=_interval(tally.false_alarm_rate),
            strict_false_alarm_rate=_interval(tally.strict_false_alarm_rate),
            recall=_interval(tally.recall),
            precision=_interval(tally.precision),
        ),
        rests_on=tally.rests_on,
        counts=messages.Counts(
            ticks=tally.ticks,
            eligible_ticks=tally.eligible,
            negative_ticks=tally.negatives,
            late_ticks=tally.lates,
            positive_ticks=tally.positives,
            false_alarm_ticks=tally.false_alarms,
            releasing_negative_ticks=tally.releasing,
            onsets=tally.onsets,
            anticipated_onsets=tally.anticipated,
            alarm_episodes=tally.episodes,
            right_alarm_episodes=tally.right_episodes,
        ),
        matures_after_s=MATURE_S,
        advisory=status.state != "active",
        state=status.state,
        reason=status.reason,
        retrain=predictor.guard.muted,
        ledger=messages.LedgerReport(
            share_by_window={
                f"{length_s} s": _known(ledger.share(length_s)) for length_s, _ in ledger.windows
            },
            limit_by_window={f"{length_s} s": share for length_s, share in ledger.windows},
            remaining_alarm_ticks=ledger.remaining(),
            charges=ledger.charges,
            denials=predictor.guard.would_ledger.denials,
        ),
        skill_gate=_skill(predictor.guard.skill),
        trip_wire=_wire(predictor.guard.wire),
        late_rows=predictor.offered.live.late,
    )


def admitted(decision: Decision, lease_s: float) -> messages.AdmitResponse:
    """The answer to a request that may go to the engine.

    Raises:
        ValueError: when the decision refused.

    """
    if decision.reservation_id is None:
        raise ValueError("a refused request has no reservation")
    degraded = None
    if decision.degradation or decision.clamp_output_tokens is not None:
        degraded = messages.Degraded(
            step=decision.degradation,
            clamp_output_tokens=decision.clamp_output_tokens,
            continuation=decision.continuation,
            model=decision.model,
            pool=decision.pool,
        )
    return messages.AdmitResponse(
        reservation_id=decision.reservation_id,
        lane=decision.lane,
        expected_output_tokens=decision.expected_output_tokens,
        tightening=decision.tightening,
        backpressure=decision.backpressure,
        lease_s=lease_s,
        degraded=degraded,
    )


def ready(predictor: Predictor, clock: Clock, lake: str | None) -> messages.ReadyResponse:
    """What decides; the rules alone are enough to be ready."""
    status = predictor.status(clock.wall_us(), clock.monotonic_s())
    return messages.ReadyResponse(
        ready=True,
        deciding_by="rules and forecast" if status.state == "active" else "rules",
        bundle=predictor.bundle.version,
        providers=predictor.bundle.providers,
        lake=lake,
        predictor=status.state,
        reason=status.reason,
        retrain=predictor.guard.muted,
    )


def gauges(predictor: Predictor, controller: Controller, clock: Clock) -> Gauges:
    """Gauges for /metrics."""
    now_us, now_s = clock.wall_us(), clock.monotonic_s()
    seen, tally = predictor.seen or Seen(0, 0), predictor.meter.tally()
    gate = controller.snapshot(now_s)
    guard, state = predictor.guard, predictor.status(now_us, now_s).state
    return {
        "tidegate_tightening": ("Level that the forecast applies to the rules.", gate.tightening),
        "tidegate_backpressure": ("B in [0, 1], over its known terms.", gate.backpressure),
        "tidegate_held_tokens": ("Tokens reserved.", float(gate.held_tokens)),
        "tidegate_capacity_tokens": ("Tokens that may be reserved.", float(gate.capacity_tokens)),
        "tidegate_usable_tokens": (
            "Those of them that failures for want of KV blocks leave.",
            float(gate.usable_tokens),
        ),
        "tidegate_degradation_step": ("Step of the ladder, 0 to 3.", float(gate.degradation)),
        "tidegate_lane_breached": (
            "The lane misses its target for the first token so often that its answers are clamped.",
            {name: float(lane.breached) for name, lane in gate.lanes.items()},
        ),
        "tidegate_open_continuations": (
            "Clamped answers whose rest may be asked for.",
            float(gate.continuations),
        ),
        "tidegate_unknown_continuations": (
            "Requests that named a continuation which does not stand.",
            float(gate.unknown_continuations),
        ),
        "tidegate_decode_learned": (
            "The engine's decode steps are known from its own samples.",
            float(gate.decode_learned.enough),
        ),
        "tidegate_prefill_learned": (
            "The engine's prefill is known from its own samples.",
            float(gate.prefill_learned.enough),
        ),
        "tidegate_open_reservations": ("Admitted and not settled.", float(gate.reservations)),
        "tidegate_expired_reservations": ("Ran out of lease.", float(gate.expired)),
        "tidegate_p_onset": ("Probability of an onset within 60 s.", seen.p_onset),
        "tidegate_alarm": ("The forecast tightens the gate.", float(seen.alarm)),
        "tidegate_predictor_active": ("Forecasts may tighten the gate.", float(state == "active")),
        "tidegate_predictor_late": ("No tick in time: the rules alone decide.", float(state == "late")),
        "tidegate_predictor_dead": ("The last tick failed: the rules alone decide.", float(state == "dead")),
        "tidegate_predictor_blind": (
            "No scraped engine tells anything: the rules alone decide.",
            float(predictor.blind is not None),
        ),
        "tidegate_tick_age_seconds": ("Time since the last tick.", predictor.tick_age_s(now_s)),
        "tidegate_false_alarm_rate": ("Of the last day, matured.", tally.false_alarm_rate.value),
        "tidegate_recall": ("Of the last day, matured.", tally.recall.value),
        "tidegate_precision": ("Of the last day, matured.", tally.precision.value),
        **_ends("false_alarm_rate", tally.false_alarm_rate),
        **_ends("recall", tally.recall),
        **_ends("precision", tally.precision),
        "tidegate_ledger_remaining_ticks": (
            "Alarm ticks left in the budget.",
            float(guard.ledger.remaining()),
        ),
        "tidegate_would_alarm": (
            "Threshold and budget let an alarm stand, advisory or not.",
            float(seen.would_alarm),
        ),
        "tidegate_skill_gate_open": (
            "Alarms anticipate bursts better than chance.",
            None if guard.skill is None else float(guard.skill.open),
        ),
        "tidegate_guard_tripped": (
            "The trip wire is crossed: the predictor is muted until a new bundle is loaded.",
            float(guard.muted),
        ),
        "tidegate_late_rows": (
            "Arrivals and ends too late for the forecast to count.",
            float(predictor.offered.live.late),
        ),
    }


def _ends(rate: str, estimate: Estimate) -> Gauges:
    return {
        f"tidegate_{rate}_low": ("Lower end of its 90 % interval.", estimate.low),
        f"tidegate_{rate}_high": ("Upper end of its 90 % interval.", estimate.high),
    }


def _interval(estimate: Estimate) -> messages.Interval | None:
    if estimate.low is None or estimate.high is None:
        return None
    return messages.Interval(low=estimate.low, high=estimate.high)


def _skill(gate: SkillGate | None) -> messages.SkillReport | None:
    if gate is None:
        return None
    return messages.SkillReport(
        open=gate.open,
        onsets=len(gate.onsets),
        anticipated_onsets=gate.anticipated,
        recall=_known(gate.recall),
        random_recall=_known(gate.chance),
        luck=gate.luck,
        reason=gate.reason,
    )


def _wire(wire: TripWire | None) -> messages.WireReport | None:
    if wire is None:
        return None
    return messages.WireReport(
        tripped=wire.tripped,
        evidence=max(wire.over.wealth, wire.strict.wealth),
        trips_at=TRIPS_AT,
        over_threshold_rate=_known(wire.over.share),
        strict_over_threshold_rate=_known(wire.strict.share),
        reason=wire.reason,
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
