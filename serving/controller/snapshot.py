"""The controller's state for metrics: read at one instant, changes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass

from serving.controller.decision import Reason


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

    """

    held_tokens: int
    share_tokens: int
    drain_tokens_per_s: float
    admitted: int
    refused: Mapping[Reason, int]
    tightened: int
    ttft_met: int
    ttft_missed: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The controller.

    Attributes:
        capacity_tokens: tokens that may be in flight together.
        held_tokens: tokens reserved now.
        reservations: requests that hold them.
        backpressure: B now.
        tightening: level now.
        tightening_target: level that it moves to.
        lanes: the lanes by name.
        expired: reservations that ran out of lease.
        unknown_reservations: settlements, cancellations and renewals of no open reservation.
        unknown_outputs: settlements that taught no output tokens.
        unknown_lanes: requests that named a lane which does not exist.
        dropped_readings: impossible values that the engine or the forecaster reported.
        flows: (tenant, model) pairs remembered.
        evicted_flows: those forgotten for want of room.

    """

    capacity_tokens: int
    held_tokens: int
    reservations: int
    backpressure: float
    tightening: float
    tightening_target: float
    lanes: Mapping[str, LaneSnapshot]
    expired: int
    unknown_reservations: int
    unknown_outputs: int
    unknown_lanes: int
    dropped_readings: int
    flows: int
    evicted_flows: int
