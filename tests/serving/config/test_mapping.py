from dataclasses import fields
from math import inf, nan
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from data.config import Telemetry
from data.errors import InputError
from serving.config.explain import entries
from serving.config.file import File, read
from serving.config.mapping import read_eviction_rules, read_settings, to_settings
from serving.controller.breach import BreachRules
from serving.controller.degradation import DegradationRules
from serving.controller.engine_model import A100
from serving.controller.eviction.settings import EvictionRules, TenantBlocks
from serving.controller.kv_headroom import HeadroomRules
from serving.controller.quota import Quota
from serving.controller.rules import Rules
from serving.controller.tenants import TenantLimits
from serving.profiles import write_profile
from serving.settings import Settings
from serving.shared.settings import SharedSettings

EXAMPLE = Path(__file__).parents[3] / "deploy" / "tidegate.example.yaml"


def written(folder: Path, text: str) -> Path:
    path = folder / "tidegate.yaml"
    path.write_text(text)
    return path


def test_an_empty_file_is_the_service_without_one():
    assert to_settings(File(), Path()) == Settings(lake="var/lake")


def test_the_example_is_right_and_holds_the_documented_numbers():
    told = read_settings(EXAMPLE)
    rules = told.rules

    assert [rules.lane(name).weight for name in ("premium", "standard", "batch")] == [0.40, 0.45, 0.15]
    assert [rules.lane(name).ttft_target_ms for name in ("premium", "standard", "batch")] == [200, 800, 5_000]
    assert (rules.degradation.queue_depth_above, rules.degradation.gpu_util_above) == (5_000, 0.92)
    assert (rules.degradation.most_request_tokens, rules.degradation.clamp_output_tokens) == (32_000, 1_024)
    assert read_eviction_rules(EXAMPLE).bands.edges == (0.50, 0.85)


def test_the_example_shows_the_defaults():
    """But for the engine that it names, and what the defaults are where they are not told."""
    told = read(EXAMPLE)
    assert [target.name for target in told.telemetry.scrape] == ["pool-a"]
    assert told.model_copy(update={"telemetry": Telemetry()}) == File()


def test_each_section_reaches_its_rules(tmp_path):
    told = read_settings(
        written(
            tmp_path,
            """
            telemetry: {lake: elsewhere, scrape: [{name: a, url: "http://a/metrics"}]}
            service: {source: edge, capacity_tokens_per_s: 9000}
            engine: {profile: a100, capacity_tokens: 50000, stale_s: 7}
            priority_queues:
              - {name: batch, weight: 0.2, tightening_cut: 0.5}
              - {name: premium, weight: 0.5, sla_ms: 100}
              - {name: standard, weight: 0.3}
            tenants:
              default: {hourly: {tokens: 1000}, lane: batch}
              by_name:
                acme: {daily: {tokens: 5000, sliding: true, burst_tokens: 100}, weight: 2, lane: premium}
                gone: {closed: true}
              max_remembered: 100
            waiting: {max_requests: 10, premium_grace_requests: 0, max_wait_ms: 500, aged_after: 0.25}
            backpressure: {alpha: 0.6, beta: 0.4, gamma: 0, hard_reject_above: 0.7}
            reservations: {lease_s: 30, drain_memory_s: 20}
            tightening: {max_change_per_s: 0.1}
            degradation: {trigger: gpu_util > 0.8 or queue_depth > 1_000, smaller_models: {big: small}}
            kv_headroom: {floor: 0.6}
            breach: {begins_over: 0.5, memory_s: 60}
            """,
        )
    )
    rules = told.rules

    assert (told.lake, told.source, told.capacity_tokens_per_s) == ("elsewhere", "edge", 9_000)
    assert [target.name for target in told.scrape] == ["a"]
    assert (rules.engine, rules.capacity, rules.engine_stale_s) == (A100, 50_000, 7)
    assert (rules.premium.weight, rules.premium.ttft_target_ms, rules.premium.protected) == (0.5, 100, True)
    assert (rules.batch.weight, rules.batch.ttft_target_ms, rules.batch.cut) == (0.2, 5_000, 0.5)
    assert not rules.batch.protected
    assert rules.default_tenant == TenantLimits(hourly=Quota(1_000), lane="batch")
    assert rules.tenants == {
        "acme": TenantLimits(daily=Quota(5_000, sliding=True, burst_tokens=100), weight=2, lane="premium"),
        "gone": TenantLimits(closed=True),
    }
    assert rules.max_wait_ms == 500
    assert (rules.max_tenants, rules.max_waiting, rules.waiting_grace, rules.aged_after) == (100, 10, 0, 0.25)
    assert (rules.alpha, rules.beta, rules.gamma, rules.hard_reject_above) == (0.6, 0.4, 0, 0.7)
    assert (rules.lease_s, rules.drain_memory_s, rules.max_tightening_change_per_s) == (30, 20, 0.1)
    assert (rules.degradation.queue_depth_above, rules.degradation.gpu_util_above) == (1_000, 0.8)
    assert rules.degradation.smaller_models == {"big": "small"}
    assert rules.headroom.floor == 0.6
    assert rules.breach == BreachRules(memory_s=60, begins_over=0.5)


def test_eviction_reaches_its_rules(tmp_path):
    rules = read_eviction_rules(
        written(
            tmp_path,
            """
            cache_eviction:
              {low_load_threshold: 0.4, min_reuse_rate: 0.1, block_tokens: 32,
               tenants: {acme: {floor_blocks: 10, ceiling_blocks: 20}}}
            """,
        )
    )

    assert (rules.bands.edges, rules.bands.floors) == ((0.4, 0.85), (0.1, 0.15, 0.30))
    assert (rules.block_tokens, rules.tenants) == (32, {"acme": TenantBlocks(10, 20)})


def test_a_profile_is_sought_beside_the_file(tmp_path):
    write_profile(A100, tmp_path / "ours.yaml")
    assert read_settings(written(tmp_path, "engine: {profile: ours.yaml}")).rules.engine == A100


@pytest.mark.parametrize(
    "owner",
    [
        Rules,
        TenantLimits,
        Quota,
        DegradationRules,
        HeadroomRules,
        BreachRules,
        EvictionRules,
        Settings,
        SharedSettings,
    ],
)
def test_every_setting_has_a_key(owner):
    told = {
        entry.sets.partition(".")[2] for entry in entries() if entry.sets.startswith(f"{owner.__name__}.")
    }
    by_hand = {
        Rules: {"premium", "standard", "batch", "degradation", "headroom", "breach"},
        DegradationRules: {"queue_depth_above", "gpu_util_above"},  # both stand in the trigger
        TenantLimits: set(),
        Quota: set(),
        HeadroomRules: set(),
        BreachRules: set(),
        EvictionRules: {"bands", "rebuild_cost"},  # the cost is a function: code gives it
        Settings: {
            "rules",
            "lake",
            "scrape",
            "state_file",
            "ext_proc",
            "shared",
            "bundles",
            "watch_bundle",
            "keys",
            "key_file",
        },  # rules, lake, scrape and shared have sections; the others are options of the command
        SharedSettings: set(),
    }[owner]

    assert told - {"trigger"} | by_hand == {field.name for field in fields(owner)}


NUMBERS = [
    entry
    for entry in entries()
    if entry.range.startswith(("over", "from")) and "NAME" not in entry.path and "." in entry.path
]


@settings(deadline=None)
@given(
    entry=st.sampled_from(NUMBERS), number=st.integers(-2, 2) | st.floats(-2, 2) | st.sampled_from([inf, nan])
)
def test_what_the_file_takes_the_rules_take(entry, number, tmp_path_factory):
    section, *inside = entry.path.split(".")
    if section == "priority_queues":
        told = {section: [{"name": lane, inside[0]: number} for lane in ("premium", "standard", "batch")]}
    else:
        told = {inside[-1]: number}
        for name in reversed(inside[:-1]):
            told = {name: told}
        told = {section: told}
    path = tmp_path_factory.mktemp("config") / "tidegate.yaml"
    path.write_text(yaml.safe_dump(told))
    try:
        read(path)
    except InputError:
        return  # the cases tell what is refused, and how
    read_settings(path)
    read_eviction_rules(path)


def test_shared_limits_reach_the_settings(tmp_path):
    told = "shared: {url: 'rediss://tide@store:6380/0', mode: exact, replicas: 4, lease_s: 2}"
    assert read_settings(written(tmp_path, told)).shared == SharedSettings(
        "rediss://tide@store:6380/0", "exact", 4, lease_s=2
    )
    assert read_settings(written(tmp_path, "shared:")).shared is None
