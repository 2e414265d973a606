"""What engines call their metrics: one table a kind of engine, and what a scrape says by it.

Sources of the names: vLLM's `v1/metrics/loggers.py` and its deprecations, SGLang's `metrics_collector.py`,
TensorRT-LLM's `metrics/collector.py` and the metrics of its Triton backend.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from data.live.exposition import Exposition, ScrapeError, Series
from data.live.ranges import fault

MOST_ENGINES = 256
"""More engines than this behind one address are no engines: a label there holds something else."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric by its whole name; `where` is a label that must have a value, `label` one that holds it."""

    name: str
    where: tuple[str, str] | None = None
    label: str | None = None


Table = Mapping[str, tuple[Metric, ...]]
"""Signal to the metrics that carry it, best first: the first that is exported counts, never two together."""


def _names(*names: str) -> tuple[Metric, ...]:
    return tuple(Metric(name) for name in names)


def _histogram(signal: str, *names: str) -> dict[str, tuple[Metric, ...]]:
    """Sum and count of a histogram; its buckets are not read."""
    return {f"{signal}_{part}": _names(*(f"{name}_{part}" for name in names)) for part in ("sum", "count")}


VLLM: Table = {
    # Requests that wait by reason "deferred" are chunked prefills, no congestion.
    "waiting": (
        Metric("vllm:num_requests_waiting_by_reason", where=("reason", "capacity")),
        Metric("vllm:num_requests_waiting"),
    ),
    "running": _names("vllm:num_requests_running"),
    "kv_cache_usage": _names("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "kv_blocks": (Metric("vllm:cache_config_info", label="num_gpu_blocks"),),
    "kv_block_tokens": (Metric("vllm:cache_config_info", label="block_size"),),
    "hit_rate": _names("vllm:gpu_prefix_cache_hit_rate"),
    "cached_tokens": _names("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "looked_up_tokens": _names("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prompt_tokens": _names("vllm:prompt_tokens_total"),
    "output_tokens": _names("vllm:generation_tokens_total"),
    "requests": _names("vllm:request_success_total"),
    "preemptions": _names("vllm:num_preemptions_total"),
    **_histogram("ttft", "vllm:time_to_first_token_seconds"),
    **_histogram("tpot", "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    **_histogram("queue_time", "vllm:request_queue_time_seconds", "vllm:time_in_queue_requests"),
}
SGLANG: Table = {
    "waiting": _names("sglang:num_queue_reqs"),
    "running": _names("sglang:num_running_reqs"),
    "kv_cache_usage": _names("sglang:token_usage"),
    "kv_blocks": (
        Metric("sglang:num_pages"),
        Metric("sglang:cache_config_info", label="num_pages"),
    ),
    "kv_block_tokens": (
        Metric("sglang:page_size"),
        Metric("sglang:cache_config_info", label="page_size"),
    ),
    "hit_rate": _names("sglang:cache_hit_rate"),
    "cached_tokens": _names("sglang:cached_tokens_total"),
    "looked_up_tokens": _names("sglang:prompt_tokens_total"),
    "prompt_tokens": _names("sglang:prompt_tokens_total"),
    "output_tokens": _names("sglang:generation_tokens_total"),
    "requests": _names("sglang:num_requests_total"),
    "preemptions": _names("sglang:num_retracted_requests_total"),
    **_histogram("ttft", "sglang:time_to_first_token_seconds"),
    **_histogram("tpot", "sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
    **_histogram("queue_time", "sglang:queue_time_seconds"),
}
TRTLLM: Table = {
    "waiting": _names("trtllm_num_requests_waiting"),
    "running": _names("trtllm_num_requests_running"),
    "kv_cache_usage": _names("trtllm_kv_cache_utilization"),
    "kv_blocks": _names("trtllm_kv_cache_max_blocks"),
    "kv_block_tokens": _names("trtllm_kv_cache_tokens_per_block"),
    "hit_rate": _names("trtllm_kv_cache_hit_rate"),
    "cached_tokens": _names("trtllm_prompt_cached_tokens_total"),
    "looked_up_tokens": _names("trtllm_prompt_tokens_total"),
    "prompt_tokens": _names("trtllm_prompt_tokens_total"),
    "output_tokens": _names("trtllm_generation_tokens_total"),
    "requests": _names("trtllm_request_success_total"),
    **_histogram("ttft", "trtllm_time_to_first_token_seconds"),
    **_histogram("tpot", "trtllm_time_per_output_token_seconds"),
    **_histogram("queue_time", "trtllm_request_queue_time_seconds"),
}
_TRITON_BLOCKS, _TRITON_REQUESTS = "nv_trt_llm_kv_cache_block_metrics", "nv_trt_llm_request_metrics"
TRITON: Table = {
    "waiting": (Metric(_TRITON_REQUESTS, where=("request_type", "waiting")),),
    "running": (Metric(_TRITON_REQUESTS, where=("request_type", "scheduled")),),
    "kv_cache_usage": (Metric(_TRITON_BLOCKS, where=("kv_cache_block_type", "fraction")),),
    "kv_blocks": (Metric(_TRITON_BLOCKS, where=("kv_cache_block_type", "max")),),
    "kv_block_tokens": (Metric(_TRITON_BLOCKS, where=("kv_cache_block_type", "tokens_per")),),
}
TABLES: Mapping[str, Table] = {"vllm": VLLM, "sglang": SGLANG, "trtllm": TRTLLM, "triton": TRITON}

STARTED = "process_start_time_seconds"
_NOT_ADDED = {"kv_cache_usage": max, "kv_block_tokens": max, "hit_rate": min}
"""Signals whose series within an engine don't add up: the worst one speaks. All others do add up."""
_RANKS = ("tp_rank", "pp_rank", "moe_ep_rank")
"""Ranks of one parallel engine that each tell the same; the lowest one speaks."""
_ENGINE_LABELS = ("instance", "WorkerId", "engine")


def _spellings(name: str) -> tuple[str, ...]:
    """A name as engines export it, as some exporters escape it, and as Ray does; best first.

    Ray has counters with and without `_total`.

    >>> _spellings("vllm:prompt_tokens_total")[:3]
    ('vllm:prompt_tokens_total', 'vllm_prompt_tokens_total', 'ray_vllm:prompt_tokens_total')

    """
    own = (name, name.replace(":", "_"))
    ray = tuple(f"ray_{spelling}" for spelling in own)
    bare = tuple(spelling.removesuffix("_total") for spelling in ray if name.endswith("_total"))
    return tuple(dict.fromkeys((*own, *ray, *bare)))


_KNOWN: dict[str, tuple[str, str, int]] = {
    spelling: (kind, metric.name, place)
    for kind, table in TABLES.items()
    for metrics in table.values()
    for metric in metrics
    for place, spelling in enumerate(_spellings(metric.name))
}
"""Exported name to kind, the table's name and the place among its spellings."""
WANTED = frozenset(_KNOWN) | {STARTED}


@dataclass(frozen=True, slots=True)
class Reading:
    """What one engine says at one scrape.

    Attributes:
        engine: which one within the target; '' where nothing tells engines apart.
        kind: of TABLES.
        model: model that it serves, where it says so.
        values: signal to its value, unchecked; what is not exported is absent.
        started_s: Unix seconds at which its process says that it started.

    """

    engine: str
    kind: str
    model: str | None
    values: Mapping[str, float]
    started_s: float | None = None


def read(exposition: Exposition) -> list[Reading]:
    """One reading an engine, by the table of the one kind whose names are exported.

    Raises:
        ScrapeError: when no kind is known by these names, or several are.

    >>> series = (Series("vllm:num_requests_waiting", {"engine": "0", "model_name": "m"}, 3.0),)
    >>> read(Exposition(series))
    [Reading(engine='0', kind='vllm', model='m', values={'waiting': 3.0}, started_s=None)]

    """
    kinds = sorted({_KNOWN[series.name][0] for series in exposition.series if series.name in _KNOWN})
    if len(kinds) != 1:
        known = ", ".join(TABLES)
        raise ScrapeError(
            f"it exports metrics of {' and '.join(kinds)}: give each engine a target of its own"
            if kinds
            else f"it exports no metric of a known engine ({known}); is this the address of its metrics? "
            "(trtllm-serve has them at /prometheus/metrics)"
        )
    engines: dict[str, list[Series]] = defaultdict(list)
    for series in exposition.series:
        if series.name in _KNOWN:
            engines[_engine(series, kinds[0])].append(series)
    if len(engines) > MOST_ENGINES:
        raise ScrapeError(f"it exports {len(engines)} engines, at most {MOST_ENGINES} are taken")
    if len(engines) > 1 and all(_is_config(series) for series in engines.get("", ())):
        # Older vLLM describes the cache once, with no engine's label, for all of them.
        shared = engines.pop("", [])
        engines = {engine: own + shared for engine, own in engines.items()}
    started_s = next((s.value for s in exposition.series if s.name == STARTED), None)
    return [_reading(engine, kinds[0], own, started_s) for engine, own in sorted(engines.items())]


def _engine(series: Series, kind: str) -> str:
    labels = ("model",) if kind == "triton" else _ENGINE_LABELS
    return "/".join(series.labels[label] for label in labels if series.labels.get(label))


def _is_config(series: Series) -> bool:
    return series.name.endswith("_config_info")


def _reading(engine: str, kind: str, own: list[Series], started_s: float | None) -> Reading:
    by_name: dict[str, dict[int, list[Series]]] = defaultdict(lambda: defaultdict(list))
    for series in own:
        _, metric_name, place = _KNOWN[series.name]
        by_name[metric_name][place].append(series)
    # Of one metric in several spellings, the first alone.
    exported = {name: places[min(places)] for name, places in by_name.items()}
    values = {}
    for signal, metrics in TABLES[kind].items():
        for metric in metrics:
            if found := list(_values(metric, exported.get(metric.name, []))):
                # One impossible part makes the whole impossible: it must not vanish in a sum or a maximum.
                bad = next((value for value in found if fault(signal, value)), None)
                values[signal] = _NOT_ADDED.get(signal, sum)(found) if bad is None else bad
                break
    models = sorted({name for s in own if (name := s.labels.get("model_name") or s.labels.get("model"))})
    return Reading(engine, kind, ",".join(models) or None, values, started_s)


def _values(metric: Metric, exported: list[Series]) -> Iterable[float]:
    chosen: dict[tuple[tuple[str, str], ...], Series] = {}
    for series in exported:
        labels = series.labels
        # SGLang repeats its queue by priority beside the total, whose priority is ''.
        if labels.get("priority") or (metric.where and labels.get(metric.where[0]) != metric.where[1]):
            continue
        place = tuple(sorted((name, value) for name, value in labels.items() if name not in _RANKS))
        if place not in chosen or _rank(series) < _rank(chosen[place]):
            chosen[place] = series
    for series in chosen.values():
        if metric.label is None:
            yield series.value
        elif series.labels.get(metric.label, "").isdecimal():  # 'None' until it is known
            yield float(series.labels[metric.label])


def _rank(series: Series) -> tuple[int, ...]:
    ranks = (series.labels.get(name, "") for name in _RANKS)
    return tuple(int(rank) if rank.isdecimal() and len(rank) < 9 else -1 for rank in ranks)
