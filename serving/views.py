"""What the service tells about itself: forecast, report, readiness, gauges; unknown is null."""

import math
from datetime import UTC, datetime

from serving import messages
from serving.clock import Clock
from serving.controller.decide import Controller
from serving.metering import MATURE_S
from serving.metrics import Gauges
from serving.offered import US
from serving.predictor import Predictor, Seen


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
        tightening_target=predictor.target(now_s),
        tightening=controller.snapshot(now_s).tightening,
        advisory=status.state != "active",
        state=status.state,
        reason=status.reason,
    )


def report(predictor: Predictor, clock: Clock) -> messages.ReportResponse:
    """How good the alarms of the last day were, and what is left of the false-alarm budget."""
    status = predictor.status(clock.wall_us(), clock.monotonic_s())
    tally, ledger = predictor.meter.tally(), predictor.guard.ledger
    return messages.ReportResponse(
        false_alarm_rate=tally.false_alarm_rate,
        strict_false_alarm_rate=tally.strict_false_alarm_rate,
        recall=tally.recall,
        random_recall=tally.random_recall,
        base_rate=tally.base_rate,
        alarm_share=tally.alarm_share,
        precision=tally.precision,
        lead_s=tally.lead_s(),
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
        ledger=messages.LedgerReport(
            share_by_window={
                f"{length_s} s": _known(ledger.share(length_s)) for length_s, _ in ledger.windows
            },
            limit_by_window={f"{length_s} s": share for length_s, share in ledger.windows},
            remaining_alarm_ticks=ledger.remaining(),
            charges=ledger.charges,
            denials=ledger.denials,
        ),
        late_rows=predictor.offered.live.late,
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
    )


def gauges(predictor: Predictor, controller: Controller, clock: Clock) -> Gauges:
    """Gauges for /metrics."""
    now_us, now_s = clock.wall_us(), clock.monotonic_s()
    seen, tally = predictor.seen or Seen(0, 0), predictor.meter.tally()
    gate = controller.snapshot(now_s)
    active = predictor.status(now_us, now_s).state == "active"
    return {
        "tidegate_tightening": ("Level that the forecast applies to the rules.", gate.tightening),
        "tidegate_backpressure": ("B in [0, 1], over its known terms.", gate.backpressure),
        "tidegate_held_tokens": ("Tokens reserved.", float(gate.held_tokens)),
        "tidegate_capacity_tokens": ("Tokens that may be reserved.", float(gate.capacity_tokens)),
        "tidegate_open_reservations": ("Admitted and not settled.", float(gate.reservations)),
        "tidegate_expired_reservations": ("Ran out of lease.", float(gate.expired)),
        "tidegate_p_onset": ("Probability of an onset within 60 s.", seen.p_onset),
        "tidegate_alarm": ("The forecast tightens the gate.", float(seen.alarm)),
        "tidegate_predictor_active": ("Forecasts may tighten the gate.", float(active)),
        "tidegate_tick_age_seconds": ("Time since the last tick.", predictor.tick_age_s(now_s)),
        "tidegate_false_alarm_rate": ("Of the last day, matured.", tally.false_alarm_rate),
        "tidegate_recall": ("Of the last day, matured.", tally.recall),
        "tidegate_precision": ("Of the last day, matured.", tally.precision),
        "tidegate_ledger_remaining_ticks": (
            "Alarm ticks left in the budget.",
            float(predictor.guard.ledger.remaining()),
        ),
        "tidegate_late_rows": ("Rows that came too late to count.", float(predictor.offered.live.late)),
    }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
