"""The controller's state for metrics: read at one instant, changes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass

from serving.controller.decision import Reason
from serving.controller.engine_model import EngineProfile, saturation_concurrency
from serving.controller.gate import Gate
from serving.controller.lanes import REFERENCE_OUTPUT_TOKENS, REFERENCE_PROMPT_TOKENS, Lane
from serving.controller.learned_profile import Learned, LearnedProfile


@dataclass(frozen=True, slots=True)
class LaneSnapshot:
    """One lane.

    Attributes:
        held_tokens: tokens reserved now.
        share_tokens: its weighted share of the capacity.
        drain_tokens_per_s: rate at which it gives tokens back.
        admitted: requests let through since the start.
        refused: requests refused since the start, by reason.
        tightened: those of them that only the forecast refused.
        ttft_met: settlements that reported a time to first token within the lane's target.
        ttft_missed: settlements that reported one beyond it.
        breached: it misses its target so often that its answers are clamped.
        waiting: requests that wait for their turn.
        waiting_tokens: tokens that they ask for.
        saturation_requests: requests of 1,024 prompt tokens that may arrive together and meet the target, by
            what is known of the engine.

    """

    held_tokens: int
    share_tokens: int
    drain_tokens_per_s: float
    admitted: int
    refused: Mapping[Reason, int]
    tightened: int
    ttft_met: int
    ttft_missed: int
    breached: bool
    waiting: int
    waiting_tokens: int
    saturation_requests: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The controller.

    Attributes:
        capacity_tokens: tokens that may be in flight together.
        usable_tokens: those that failures for want of KV blocks leave of them.
        held_tokens: tokens reserved now.
        reservations: requests that hold them.
        backpressure: B now.
        tightening: level now.
        tightening_target: level that it moves to.
        degradation: step of the ladder, 0 to 3.
        lanes: the lanes by name.
        expired: reservations that ran out of lease.
        unknown_reservations: settlements, cancellations and renewals of no open reservation.
        unknown_outputs: settlements that taught no output tokens.
        unknown_lanes: requests that named a lane which does not exist.
        dropped_readings: impossible values that the engine or the forecaster reported.
        flows: (tenant, model) pairs remembered.
        evicted_flows: those forgotten for want of room.
        tenants: tenants remembered.
        evicted_tenants: those forgotten for want of room; what they were charged is kept.
        kv_shrinks: times that the usable tokens were cut.
        continuations: clamped answers whose rest may be asked for.
        unknown_continuations: requests that named a continuation which does not stand.
        unredeemed_continuations: those that nobody asked for in time, or that made room.
        engine: what the engine can do, as far as it is learned.
        decode_learned: how much is known of its decode steps.
        prefill_learned: how much is known of its prefill.

    """

    capacity_tokens: int
    usable_tokens: int
    held_tokens: int
    reservations: int
    backpressure: float
    tightening: float
    tightening_target: float
    degradation: int
    lanes: Mapping[str, LaneSnapshot]
    expired: int
    unknown_reservations: int
    unknown_outputs: int
    unknown_lanes: int
    dropped_readings: int
    flows: int
    evicted_flows: int
    tenants: int
    evicted_tenants: int
    kv_shrinks: int
    continuations: int
    unknown_continuations: int
    unredeemed_continuations: int
    engine: EngineProfile
    decode_learned: Learned
    prefill_learned: Learned


def take_snapshot(gate: Gate, learned: LearnedProfile, unknown_outputs: int, now_s: float) -> Snapshot:
    """Read the gate's state at a time that it has reached."""
    tau, ladders, continuations = (
        gate.tightening.level(now_s),
        gate.overload.ladders,
        gate.overload.continuations,
    )
    return Snapshot(
        capacity_tokens=gate.rules.capacity,
        usable_tokens=gate.ledger.capacity_tokens,
        held_tokens=gate.ledger.held_tokens,
        reservations=len(gate.ledger),
        backpressure=gate.pressure(now_s),
        tightening=tau,
        tightening_target=gate.tightening.target(now_s),
        degradation=ladders.step(now_s, tau),
        lanes={name: _lane(gate, lane, learned.profile, now_s) for name, lane in gate.lanes.by_name.items()},
        expired=gate.expired,
        unknown_reservations=gate.unknown_reservations,
        unknown_outputs=unknown_outputs,
        unknown_lanes=gate.unknown_lanes,
        dropped_readings=gate.backpressure.dropped
        + gate.tightening.ignored
        + ladders.dropped
        + gate.headroom.dropped
        + learned.dropped,
        flows=len(gate.outputs),
        evicted_flows=gate.outputs.evicted,
        tenants=len(gate.tenants),
        evicted_tenants=gate.tenants.evicted,
        kv_shrinks=gate.headroom.shrinks,
        continuations=len(continuations),
        unknown_continuations=continuations.unknown,
        unredeemed_continuations=continuations.unredeemed,
        engine=learned.profile,
        decode_learned=learned.decode,
        prefill_learned=learned.prefill,
    )


def _lane(gate: Gate, lane: Lane, profile: EngineProfile, now_s: float) -> LaneSnapshot:
    queue = gate.waiting.by_lane[lane.name]
    return LaneSnapshot(
        held_tokens=lane.held_tokens,
        share_tokens=lane.share_tokens,
        drain_tokens_per_s=lane.drain.rate(lane.held_tokens, now_s),
        admitted=lane.admitted,
        refused=dict(lane.refused),
        tightened=lane.tightened,
        ttft_met=lane.ttft_met,
        ttft_missed=lane.ttft_missed,
        breached=lane.breach.until_s > now_s,
        waiting=len(queue),
        waiting_tokens=queue.tokens,
        saturation_requests=saturation_concurrency(
            profile,
            REFERENCE_PROMPT_TOKENS,
            REFERENCE_OUTPUT_TOKENS,
            ttft_target_s=lane.rule.ttft_target_ms / 1e3,
        ),
    )
