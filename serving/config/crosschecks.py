"""What must hold between the keys of a section, beyond the bounds of each."""

import math
from collections.abc import Iterator
from urllib.parse import urlsplit

from data.config import Section, Telemetry
from data.schema import LANES
from serving.config.faults import Fault, dotted
from serving.config.overload import Breach, CacheEviction, Degradation
from serving.config.scrub import scrubbed
from serving.config.sections import Backpressure, Lane
from serving.config.yaml_file import Place


def telemetry(told: Telemetry) -> Iterator[Fault]:
    """Names that must differ, and addresses with a host."""
    for position, target in enumerate(told.scrape):
        if not _has_host(target.url):
            place: Place = ("telemetry", "scrape", position, "url")
            yield _fault(place, f"must name a host, and a port up to 65535; got '{scrubbed(target.url)}'")
    for name, attribute, entries in (("scrape", "name", told.scrape), ("logs", "source", told.logs)):
        seen: set[str] = set()
        for position, entry in enumerate(entries):
            value = getattr(entry, attribute)
            if value in seen:
                place = ("telemetry", name, position, attribute)
                yield _fault(place, f"must differ from the others; got {value!r} again")
            seen.add(value)


def lanes(told: tuple[Lane, ...]) -> Iterator[Fault]:
    """Each lane once, and all of the capacity."""
    names = [lane.name for lane in told]
    if sorted(names) != sorted(LANES):
        got = ", ".join(names) or "none"
        yield _fault(("priority_queues",), f"must have the lanes {', '.join(LANES)} once each; got {got}")
    elif not _one(*(lane.weight for lane in told)):
        yield _fault(
            ("priority_queues",),
            f"must have weights that sum to 1; got {_sum(*(lane.weight for lane in told))}",
        )


def backpressure(told: Backpressure) -> Iterator[Fault]:
    """Weights of a mean, and a threshold that stays above 0."""
    parts = (told.alpha, told.beta, told.gamma)
    if not _one(*parts):
        yield _fault(("backpressure",), f"must have alpha, beta and gamma that sum to 1; got {_sum(*parts)}")
    if told.hard_reject_cut > told.hard_reject_above:
        yield _over("backpressure", told, "hard_reject_cut", "hard_reject_above")


def degradation(told: Degradation) -> Iterator[Fault]:
    """Clamped answers fit, and no stand-in needs one."""
    if told.paging_threshold_tokens > told.max_token_per_request:
        yield _over("degradation", told, "paging_threshold_tokens", "max_token_per_request")
    for model, smaller in told.smaller_models.items():
        if smaller in told.smaller_models:
            place = ("degradation", "smaller_models", model)
            yield _fault(place, f"must name a model that isn't swapped itself; got {smaller!r}")


def breach(told: Breach) -> Iterator[Fault]:
    """A breach begins at a larger share than it ends at."""
    if told.ends_under > told.begins_over:
        yield _over("breach", told, "ends_under", "begins_over")


def cache_eviction(told: CacheEviction) -> Iterator[Fault]:
    """Bands in order, floors that rise with load, room between a tenant's bounds."""
    if not told.low_load_threshold < told.high_load_threshold:
        yield _fault(
            ("cache_eviction", "low_load_threshold"),
            f"must be under high_load_threshold ({told.high_load_threshold}); got {told.low_load_threshold}",
        )
    for lower, higher in (("min_reuse_rate", "middle_reuse_rate"), ("middle_reuse_rate", "high_reuse_rate")):
        if getattr(told, lower) > getattr(told, higher):
            yield _over("cache_eviction", told, lower, higher)
    for name, blocks in told.tenants.items():
        if blocks.ceiling_blocks is not None and blocks.ceiling_blocks < blocks.floor_blocks:
            yield _fault(
                ("cache_eviction", "tenants", name, "ceiling_blocks"),
                f"must not be under floor_blocks ({blocks.floor_blocks}); got {blocks.ceiling_blocks}",
            )


def _has_host(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _over(section: str, told: Section, smaller: str, larger: str) -> Fault:
    return _fault(
        (section, smaller),
        f"must not be over {larger} ({getattr(told, larger)}); got {getattr(told, smaller)}",
    )


def _fault(place: Place, sentence: str) -> Fault:
    return Fault(place, f"{dotted(place)} {sentence}")


def _one(*parts: float) -> bool:
    return math.isclose(sum(parts), 1.0, abs_tol=1e-9)


def _sum(*parts: float) -> str:
    return f"{' + '.join(map(str, parts))} = {sum(parts):g}"
