"""Sections of `tidegate.yaml` on who is let in: what an operator may set, and within which bounds.

Sections, and keys that operators know from published checklists, keep those names, such as `sla_ms`.
Units stand in names; where they don't, `tidegate config explain` tells them.
"""

from typing import Literal

from data.config import Name, Section
from serving.config.keys import HEADER, Float, Int, key
from serving.controller.rules import Rules

LaneName = Literal["premium", "standard", "batch"]

_RULES = Rules()


class Service(Section):
    """The process."""

    source: Name = key("Settings.source", "Name of this service's rows in the lake.")
    capacity_tokens_per_s: Float | None = key(
        "Settings.capacity_tokens_per_s",
        "Work that the engines can do; bursts under 70 % of it don't count. null: not known.",
        gt=0,
        allow_inf_nan=False,
    )
    tenant_header: str = key(
        "Settings.tenant_header",
        "Request header in which a gateway names the tenant; it must take it away from clients.",
        pattern=HEADER,
    )
    save_every_s: Float = key(
        "Settings.save_every_s",
        "How often the guard's false-alarm budget is written, besides at shutdown.",
        gt=0,
    )
    max_body_bytes: Int = key("Settings.max_body_bytes", "Longest request body that is read.", gt=0)
    max_header_bytes: Int = key("Settings.max_header_bytes", "Most that a request's headers may hold.", gt=0)
    max_url_bytes: Int = key("Settings.max_url_bytes", "Longest path and query that are answered.", gt=0)
    max_requests: Int = key(
        "Settings.max_requests",
        "Requests that are answered at one time; up to half of them wait for their turn.",
        "requests",
        gt=0,
    )
    body_timeout_s: Float = key("Settings.body_timeout_s", "Time for a request's body to come whole.", gt=0)
    max_open_requests: Int = key(
        "Settings.max_open_requests",
        "Requests told to the service that may wait for their end.",
        "requests",
        gt=0,
    )
    max_recent_requests: Int = key(
        "Settings.max_recent_requests", "Requests that are known again when told twice.", "requests", gt=0
    )
    max_waiting_rows: Int = key(
        "Settings.max_waiting_rows",
        "Rows that may wait for the lake before senders must come back.",
        "rows",
        gt=0,
    )


class Engine(Section):
    """What one replica can do, and which readings of it count."""

    profile: str = key(
        "Rules.engine",
        "h100, a100, or a file written by `tidegate profile fit`, sought beside this one.",
        default="h100",
        min_length=1,
    )
    capacity_tokens: Int | None = key(
        "Rules.capacity_tokens", "Tokens that may be in flight together. null: the profile's KV room.", gt=0
    )
    max_batch_tokens: Int | None = key(
        "Rules.max_batch_tokens", "Tokens in the engine's batch that count as full. null: the capacity.", gt=0
    )
    queue_capacity: Int = key(
        "Rules.queue_capacity", "Waiting requests in the engine that count as full.", "requests", gt=0
    )
    stale_s: Float = key("Rules.engine_stale_s", "Age at which a reading of the engine is unknown.", gt=0)


class Lane(Section):
    """One SLO class; what isn't set is that lane's own default."""

    name: LaneName = key("", "The lane.")
    weight: Float = key(
        "LaneRule.weight",
        "Its share of the capacity; the three sum to 1.",
        "share",
        default_factory=lambda told: _lane_default(told, "weight"),
        ge=0,
        le=1,
    )
    sla_ms: Float = key(
        "LaneRule.ttft_target_ms",
        "Time to first token that its requests are meant to see.",
        default_factory=lambda told: _lane_default(told, "ttft_target_ms"),
        gt=0,
        allow_inf_nan=False,
    )
    tightening_cut: Float = key(
        "LaneRule.cut",
        "Part of its budget that full tightening takes away.",
        "share",
        default_factory=lambda told: _lane_default(told, "cut"),
        ge=0,
        le=1,
    )


def _lane_default(told: dict[str, str], attribute: str) -> float:
    default: float = getattr(_RULES.lane(told["name"]), attribute)
    return default


class Backpressure(Section):
    """The score B = alpha * batch + beta * queue + gamma * KV misses, and where it refuses."""

    alpha: Float = key(
        "Rules.alpha", "Weight of the batch: its tokens over max_batch_tokens.", "share", gt=0, le=1
    )
    beta: Float = key(
        "Rules.beta", "Weight of the queue: its depth over queue_capacity.", "share", ge=0, le=1
    )
    gamma: Float = key("Rules.gamma", "Weight of the KV cache's miss rate.", "share", ge=0, le=1)
    hard_reject_above: Float = key(
        "Rules.hard_reject_above",
        "B over which all but premium are refused, with Retry-After.",
        "share",
        ge=0,
        le=1,
    )
    hard_reject_cut: Float = key(
        "Rules.hard_reject_cut", "How far full tightening lowers hard_reject_above.", "share", ge=0, le=1
    )


class Reservations(Section):
    """Tokens held for admitted requests."""

    lease_s: Float = key("Rules.lease_s", "How long a reservation lives without settlement or renewal.", gt=0)
    output_prior_tokens: Int = key(
        "Rules.output_prior_tokens",
        "Output expected of a tenant and model before anything was learned.",
        gt=0,
    )
    output_quantile: Float = key(
        "Rules.output_quantile", "Quantile of the learned output that is reserved.", "share", gt=0, lt=1
    )
    max_flows: Int = key(
        "Rules.max_flows", "Pairs of tenant and model whose outputs are remembered.", "pairs", gt=0
    )
    drain_memory_s: Float = key(
        "Rules.drain_memory_s", "Time constant of the measured drain rate, which Retry-After rests on.", gt=0
    )


class Tightening(Section):
    """How fast a forecast moves the rules."""

    max_change_per_s: Float = key(
        "Rules.max_tightening_change_per_s", "Bound on the change of the level, up and down.", gt=0
    )
    hold_s: Float = key("Rules.tightening_hold_s", "A level that isn't renewed for so long is let go.", gt=0)
    spares_s: Float = key(
        "Rules.tightening_spares_s",
        "A request that should have ended within this time is not tightened; 0 tightens all.",
        ge=0,
    )
