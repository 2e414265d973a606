"""The rules of admission: every number that an operator may set, checked when the controller is made."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from data.errors import InputError
from data.schema import LANES
from serving.controller.breach import BreachRules
from serving.controller.degradation import DegradationRules
from serving.controller.engine_model import H100, EngineProfile
from serving.controller.kv_headroom import HeadroomRules
from serving.controller.tenants import TenantLimits


@dataclass(frozen=True, slots=True)
class LaneRule:
    """One SLO class.

    Attributes:
        weight: its share of the capacity; the three weights sum to 1.
        ttft_target_ms: time to first token that it is meant to see; settlements are counted against it.
        cut: part of its budget that full tightening takes away.
        protected: its share is never lent, and backpressure never refuses it.

    """

    weight: float
    ttft_target_ms: float
    cut: float = 0.0
    protected: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings of the controller.

    Attributes:
        engine: what one replica can do.
        capacity_tokens: tokens that may be in flight together; None takes the engine's KV room.
        max_batch_tokens: tokens in the engine's batch that count as full; None takes the capacity.
        queue_capacity: waiting requests in the engine that count as full.
        premium: rule of the lane.
        standard: rule of the lane.
        batch: rule of the lane.
        alpha: weight of the batch term in backpressure; it is always known, so it must be over 0.
        beta: weight of the queue term.
        gamma: weight of the KV miss term.
        hard_reject_above: backpressure over which all but premium are refused.
        hard_reject_cut: how far full tightening lowers that threshold.
        lease_s: how long a reservation lives without settlement or renewal.
        engine_stale_s: age at which an observation of the engine is unknown.
        max_tightening_change_per_s: bound on the rate of change, up and down.
        tightening_hold_s: a target not renewed for this long is 0.
        tightening_spares_s: a request that is expected to have ended within this time is not tightened: it
            will be gone when the burst comes. With 0 all are.
        drain_memory_s: time constant of the measured drain rate.
        output_prior_tokens: expected output before anything was learned.
        output_quantile: quantile of the output tokens that a reservation covers.
        max_flows: (tenant, model) pairs whose outputs are remembered.
        tenants: limits of tenants by name.
        default_tenant: limits of all others, each for itself.
        max_tenants: others that are remembered.
        max_waiting: requests that may wait, in all lanes together.
        waiting_grace: places beyond, for premium alone.
        max_wait_ms: longest wait, whatever a request asks for.
        aged_after: share of its longest wait after which nothing passes a request any more.
        degradation: when an overloaded engine degrades requests, and how.
        headroom: how failures for want of KV blocks shrink the capacity.
        breach: when a lane that misses its target clamps its answers.

    """

    engine: EngineProfile = H100
    capacity_tokens: int | None = None
    max_batch_tokens: int | None = None
    queue_capacity: int = 5_000
    premium: LaneRule = LaneRule(0.40, 200.0, protected=True)
    standard: LaneRule = LaneRule(0.45, 800.0, cut=0.3)
    batch: LaneRule = LaneRule(0.15, 5_000.0, cut=0.8)
    alpha: float = 0.4
    beta: float = 0.3
    gamma: float = 0.3
    hard_reject_above: float = 0.85
    hard_reject_cut: float = 0.15
    lease_s: float = 120.0
    engine_stale_s: float = 15.0
    max_tightening_change_per_s: float = 0.2
    tightening_hold_s: float = 15.0
    tightening_spares_s: float = 15.0
    drain_memory_s: float = 10.0
    output_prior_tokens: int = 512
    output_quantile: float = 0.9
    max_flows: int = 50_000
    tenants: Mapping[str, TenantLimits] = field(default_factory=dict)
    default_tenant: TenantLimits = field(default_factory=TenantLimits)
    max_tenants: int = 50_000
    max_waiting: int = 5_000
    waiting_grace: int = 250
    max_wait_ms: float = 30_000.0
    aged_after: float = 0.5
    degradation: DegradationRules = field(default_factory=DegradationRules)
    headroom: HeadroomRules = field(default_factory=HeadroomRules)
    breach: BreachRules = field(default_factory=BreachRules)

    def __post_init__(self) -> None:
        for name in _OVER_ZERO:
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"Rule {name} must be over 0 and finite; got {value!r}.")
        for name in ("beta", "gamma", "hard_reject_above", "hard_reject_cut", "aged_after"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"Rule {name} must be in [0, 1]; got {getattr(self, name)!r}.")
        if self.hard_reject_cut > self.hard_reject_above:
            raise InputError(
                "Rule hard_reject_cut must not be over hard_reject_above "
                f"({self.hard_reject_above!r}); got {self.hard_reject_cut!r}."
            )
        for name in ("waiting_grace", "tightening_spares_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"Rule {name} must be 0 or more and finite; got {getattr(self, name)!r}.")
        if not self.output_quantile < 1:
            raise InputError(f"Rule output_quantile must be in (0, 1); got {self.output_quantile!r}.")
        for name in LANES:
            lane: LaneRule = getattr(self, name)
            if not (0 <= lane.weight <= 1 and 0 <= lane.cut <= 1 and lane.ttft_target_ms > 0):
                raise InputError(
                    f"Rule {name} must have weight and cut in [0, 1] and ttft_target_ms over 0; got {lane!r}."
                )
        _sums_to_one("lane weights", *(getattr(self, name).weight for name in LANES))
        _sums_to_one("alpha, beta and gamma", self.alpha, self.beta, self.gamma)

    @property
    def capacity(self) -> int:
        """Tokens that may be in flight together.

        >>> Rules().capacity, Rules(capacity_tokens=50_000).capacity
        (1336000, 50000)
        """
        return self.engine.capacity_tokens if self.capacity_tokens is None else self.capacity_tokens

    def hard_reject_threshold(self, tightening: float) -> float:
        """Backpressure over which all but premium are refused, at a level of tightening in [0, 1].

        >>> Rules().hard_reject_threshold(0.0), round(Rules().hard_reject_threshold(1.0), 6)
        (0.85, 0.7)
        """
        return self.hard_reject_above - self.hard_reject_cut * tightening

    def lane(self, name: str) -> LaneRule:
        """Rule of the lane of that name."""
        rule: LaneRule = getattr(self, name)
        return rule


_OVER_ZERO = (
    "capacity_tokens",
    "max_batch_tokens",
    "queue_capacity",
    "alpha",
    "lease_s",
    "engine_stale_s",
    "max_tightening_change_per_s",
    "tightening_hold_s",
    "drain_memory_s",
    "output_prior_tokens",
    "output_quantile",
    "max_flows",
    "max_tenants",
    "max_waiting",
    "max_wait_ms",
)


def _sums_to_one(what: str, *parts: float) -> None:
    if not math.isclose(sum(parts), 1.0, abs_tol=1e-9):
        raise InputError(f"Rules: {what} must sum to 1; got {' + '.join(map(str, parts))} = {sum(parts):g}.")
