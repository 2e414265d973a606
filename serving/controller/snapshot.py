"""The controller's state for metrics: read at one instant, changes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass

from serving.controller.decision import Reason
from serving.controller.engine_model import EngineProfile
from serving.controller.learned_profile import Learned


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
    kv_shrinks: int
    continuations: int
    unknown_continuations: int
    unredeemed_continuations: int
    engine: EngineProfile
    decode_learned: Learned
    prefill_learned: Learned
