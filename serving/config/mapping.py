"""From the sections of a configuration file to the rules and settings that the service takes."""

from pathlib import Path

from serving.config.file import File, read
from serving.config.keys import arguments
from serving.config.overload import CacheEviction, Degradation, parse_trigger
from serving.config.profile import find_profile
from serving.config.tenants import Tenant
from serving.controller.breach import BreachRules
from serving.controller.degradation import DegradationRules
from serving.controller.eviction.settings import EvictionRules, LoadBands, TenantBlocks
from serving.controller.kv_headroom import HeadroomRules
from serving.controller.quota import Quota
from serving.controller.rules import LaneRule, Rules
from serving.controller.tenants import TenantLimits
from serving.settings import Settings
from serving.shared.settings import SharedSettings


def read_settings(path: Path) -> Settings:
    """Settings of the service from a configuration file.

    Raises:
        InputError: when the file, or the engine's profile that it names, can't be used.

    """
    return to_settings(read(path), path.parent)


def read_eviction_rules(path: Path) -> EvictionRules:
    """Rules of eviction from a configuration file, for the cache that embeds the policy.

    Raises:
        InputError: when the file can't be used.

    """
    return to_eviction_rules(read(path).cache_eviction)


def to_settings(file: File, folder: Path) -> Settings:
    """Settings of the service.

    Args:
        file: the configuration.
        folder: where a profile with a relative path is looked for.

    Raises:
        InputError: when the engine's profile can't be used.

    """
    return Settings(
        **arguments(file.service, "Settings"),
        rules=to_rules(file, folder),
        lake=file.telemetry.lake,
        scrape=file.telemetry.scrape,
        shared=None if file.shared is None else SharedSettings(**arguments(file.shared, "SharedSettings")),
    )


def to_rules(file: File, folder: Path) -> Rules:
    """Rules of the controller.

    >>> to_rules(File(), Path()) == Rules()
    True
    """
    told = arguments(file.engine, "Rules")
    for section in (file.waiting, file.backpressure, file.reservations, file.tightening, file.tenants):
        told |= arguments(section, "Rules")
    for lane in file.priority_queues:
        protected = Rules().lane(lane.name).protected
        told[lane.name] = LaneRule(**arguments(lane, "LaneRule"), protected=protected)
    told["default_tenant"] = to_tenant_limits(file.tenants.default)
    told["tenants"] = {name: to_tenant_limits(tenant) for name, tenant in file.tenants.by_name.items()}
    told["engine"] = find_profile(file.engine.profile, folder)
    told["degradation"] = to_degradation_rules(file.degradation)
    told["breach"] = BreachRules(**arguments(file.breach, "BreachRules"))
    told["headroom"] = HeadroomRules(**arguments(file.kv_headroom, "HeadroomRules"))
    return Rules(**told)


def to_tenant_limits(told: Tenant) -> TenantLimits:
    """Limits of a tenant.

    >>> to_tenant_limits(Tenant()) == TenantLimits()
    True
    """
    given = arguments(told, "TenantLimits")
    for name, quota in (("hourly", told.hourly), ("daily", told.daily)):
        given[name] = None if quota is None else Quota(**arguments(quota, "Quota"))
    return TenantLimits(**given)


def to_degradation_rules(told: Degradation) -> DegradationRules:
    """Rules of degradation.

    >>> to_degradation_rules(Degradation()) == DegradationRules()
    True
    """
    given = arguments(told, "DegradationRules")
    del given["trigger"]
    queue_depth, gpu_util = parse_trigger(told.trigger)
    return DegradationRules(queue_depth_above=queue_depth, gpu_util_above=gpu_util, **given)


def to_eviction_rules(told: CacheEviction) -> EvictionRules:
    """Rules of eviction.

    >>> to_eviction_rules(CacheEviction()) == EvictionRules()
    True
    """
    bands = LoadBands(
        edges=(told.low_load_threshold, told.high_load_threshold),
        floors=(told.min_reuse_rate, told.middle_reuse_rate, told.high_reuse_rate),
    )
    tenants = {
        name: TenantBlocks(**arguments(blocks, "TenantBlocks")) for name, blocks in told.tenants.items()
    }
    return EvictionRules(**arguments(told, "EvictionRules") | {"bands": bands, "tenants": tenants})
