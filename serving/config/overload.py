"""Sections of `tidegate.yaml` on overload: what degrades, how the capacity shrinks, which KV blocks leave."""

import re
from typing import Annotated

from pydantic import AfterValidator

from data.config import Section
from serving.config.keys import Float, Int, key


def parse_trigger(text: str) -> tuple[float, float]:
    """Queue depth and GPU use over which requests are degraded.

    >>> parse_trigger("queue_depth > 5000 OR gpu_util > 0.92")
    (5000.0, 0.92)

    Raises:
        ValueError: a sentence, when it reads otherwise.

    """
    above = {}
    for part in re.split(r"\s+or\s+", text.strip(), flags=re.IGNORECASE):
        term = re.fullmatch(r"(queue_depth|gpu_util)\s*>\s*(\d[\d_]*(?:\.\d+)?)", part.strip())
        if term is None or term[1] in above:
            break
        above[term[1]] = float(term[2])
    else:
        if len(above) == 2 and above["queue_depth"] > 0 and 0 < above["gpu_util"] <= 1:
            return above["queue_depth"], above["gpu_util"]
    raise ValueError(
        "must be written as 'queue_depth > 5000 OR gpu_util > 0.92', the depth over 0 and the use in (0, 1], "
        f"for either is enough; got {text!r}"
    )


def _trigger(text: str) -> str:
    parse_trigger(text)
    return text


class Degradation(Section):
    """When an overloaded engine degrades requests, and how."""

    trigger: Annotated[str, AfterValidator(_trigger)] = key(
        "DegradationRules.trigger",
        "Queue depth (requests) or GPU use (share) over which the ladder is climbed.",
        default="queue_depth > 5000 OR gpu_util > 0.92",
    )
    max_token_per_request: Int = key(
        "DegradationRules.most_request_tokens",
        "While degraded, prompt and expected output over which one request is refused.",
        "tokens",
        gt=0,
    )
    paging_threshold_tokens: Int = key(
        "DegradationRules.clamp_output_tokens",
        "While degraded, output of one answer before it must be continued.",
        gt=0,
    )
    tightening_cut: Float = key(
        "DegradationRules.cut",
        "Part of both thresholds that full tightening takes away.",
        "share",
        ge=0,
        le=1,
    )
    calm_below: Float = key(
        "DegradationRules.calm_below",
        "Part of both thresholds under which the engine is calm.",
        "share",
        ge=0,
        le=1,
    )
    climb_s: Float = key("DegradationRules.climb_s", "Time over a threshold before the next step up.", gt=0)
    calm_s: Float = key(
        "DegradationRules.calm_s",
        "Time of calm before the next step down; also time without a reading.",
        gt=0,
    )
    smaller_models: dict[str, str] = key(
        "DegradationRules.smaller_models", "Second step: a model, and the smaller one that stands in for it."
    )
    hot_tokens: Int = key(
        "DegradationRules.hot_tokens", "Third step: work that the hot pool still takes.", gt=0
    )
    hot_prefix_share: Float = key(
        "DegradationRules.hot_prefix_share",
        "Third step: share of the prompt in cache from which a request stays in the hot pool.",
        "share",
        ge=0,
        le=1,
    )
    continuation_s: Float = key(
        "DegradationRules.continuation_s", "How long the rest of a clamped answer may be asked for.", gt=0
    )
    max_continuations: Int = key(
        "DegradationRules.max_continuations", "Clamped answers that are remembered.", "answers", gt=0
    )


class KvHeadroom(Section):
    """How failures for want of KV blocks shrink the capacity."""

    floor: Float = key(
        "HeadroomRules.floor", "The usable share of the capacity never falls below it.", "share", gt=0, le=1
    )
    shrink: Float = key(
        "HeadroomRules.shrink",
        "Factor on the share when the engine failed for want of blocks.",
        "share",
        gt=0,
        le=1,
    )
    shrink_every_s: Float = key("HeadroomRules.shrink_every_s", "It shrinks at most once in this time.", gt=0)
    recover_per_s: Float = key(
        "HeadroomRules.recover_per_s", "Share that comes back in a second free of failures.", gt=0
    )
    vouched_s: Float = key(
        "HeadroomRules.vouched_s", "A reading speaks for at most this long before it.", gt=0
    )
    silence_s: Float = key(
        "HeadroomRules.silence_s", "After this long without a reading the whole capacity counts again.", gt=0
    )


class Breach(Section):
    """When a lane misses its target for the first token so often that its answers are clamped."""

    memory_s: Float = key(
        "BreachRules.memory_s",
        "Time over which settlements are forgotten; a breach outlasts the last sign of it by as long.",
        gt=0,
    )
    least_requests: Float = key(
        "BreachRules.least_requests",
        "Settlements, of those remembered, without which nothing is said.",
        "requests",
        gt=0,
    )
    begins_over: Float = key(
        "BreachRules.begins_over",
        "Share of them that missed sla_ms over which a breach begins; 1: never.",
        "share",
        gt=0,
        le=1,
    )
    ends_under: Float = key(
        "BreachRules.ends_under", "Share that missed it under which a breach is over.", "share", gt=0, le=1
    )


class TenantBlocks(Section):
    """KV blocks of one tenant."""

    floor_blocks: Int = key(
        "TenantBlocks.floor", "Blocks that it keeps against others' needs.", default=0, ge=0
    )
    ceiling_blocks: Int | None = key(
        "TenantBlocks.ceiling", "Blocks that it may hold at most. null: no bound.", default=None, ge=0
    )


class CacheEviction(Section):
    """The policy that a KV cache embeds: `serving.controller.eviction`."""

    low_load_threshold: Float = key(
        "LoadBands.edges[0]", "Load at which the middle band begins.", "share", default=0.50, gt=0, le=1
    )
    high_load_threshold: Float = key(
        "LoadBands.edges[1]", "Load at which the highest band begins.", "share", default=0.85, gt=0, le=1
    )
    min_reuse_rate: Float = key(
        "LoadBands.floors[0]",
        "Chance of reuse under which a block may leave at any load.",
        "share",
        default=0.05,
        ge=0,
        le=1,
    )
    middle_reuse_rate: Float = key(
        "LoadBands.floors[1]", "The same in the middle band.", "share", default=0.15, ge=0, le=1
    )
    high_reuse_rate: Float = key(
        "LoadBands.floors[2]", "The same in the highest band.", "share", default=0.30, ge=0, le=1
    )
    block_tokens: Int = key("EvictionRules.block_tokens", "Tokens in a full block.", gt=0)
    short_tokens: Int = key(
        "EvictionRules.short_tokens", "A request with at most so many new tokens is of the short kind.", gt=0
    )
    remembered_blocks: Int = key(
        "EvictionRules.remembered_blocks",
        "Evicted blocks that it still knows, to learn from.",
        "blocks",
        ge=0,
    )
    tenants: dict[str, TenantBlocks] = key(
        "EvictionRules.tenants", "Blocks of single tenants; others share what is left."
    )
