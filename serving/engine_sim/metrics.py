"""What the simulated engine tells of itself, under vLLM's names."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from serving.engine_sim.core import EngineSim

ENGINE = "0"
TTFT_BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2)
GAP_BUCKETS_S = (0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.4, 0.8, 1.6)


class Metrics:
    """Counts of the engine, read when someone looks, and times as they are observed, in seconds."""

    def __init__(self, engine: EngineSim, model: str) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"engine": ENGINE, "model_name": model}
        self.registry.register(_Counts(engine, self._labels))
        ProcessCollector(registry=self.registry)  # when the process started tells a restart
        self.ttft_s = self._histogram("time_to_first_token", "From arrival to first token.", TTFT_BUCKETS_S)
        self.gap_s = self._histogram("inter_token_latency", "Between two tokens.", GAP_BUCKETS_S)
        self.queue_s = self._histogram("request_queue_time", "From arrival to prefill.", TTFT_BUCKETS_S)
        self.whole_s = self._histogram("e2e_request_latency", "From arrival to end.", TTFT_BUCKETS_S)
        self.late_s = Histogram(
            "tidegate_sim_lateness_seconds",
            "How late steps were told of: a machine that is too slow, not the engine.",
            registry=self.registry,
            buckets=GAP_BUCKETS_S,
        )
        ended = Counter(
            "vllm:request_success",
            "Requests that have ended, by why.",
            [*self._labels, "finished_reason"],
            registry=self.registry,
        )
        self.ended = {
            reason: ended.labels(*self._labels.values(), reason) for reason in ("stop", "length", "abort")
        }

    def _histogram(self, name: str, meaning: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(
            f"vllm:{name}_seconds", meaning, list(self._labels), registry=self.registry, buckets=buckets
        )
        return histogram.labels(*self._labels.values())


class _Counts(Collector):
    def __init__(self, engine: EngineSim, labels: dict[str, str]) -> None:
        self._engine = engine
        self._labels = labels

    def describe(self) -> list[Metric]:
        """Nothing to describe before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Read the engine."""
        engine, totals, labels = self._engine, self._engine.totals, self._labels
        gauges = {
            "num_requests_running": ("Requests in the batch.", engine.running),
            "num_requests_waiting": ("Requests in line.", engine.waiting),
            "kv_cache_usage_perc": (
                "Share of KV blocks in use, 0 to 1.",
                engine.blocks.used / engine.blocks.total,
            ),
        }
        for name, (meaning, value) in gauges.items():
            yield _with(GaugeMetricFamily(f"vllm:{name}", meaning, labels=list(labels)), labels, value)
        waiting = GaugeMetricFamily(
            "vllm:num_requests_waiting_by_reason", "Requests in line, by why.", labels=[*labels, "reason"]
        )
        yield _with(waiting, labels | {"reason": "capacity"}, engine.waiting)
        config = {  # vLLM names no model here
            "engine": ENGINE,
            "block_size": str(engine.profile.block_tokens),
            "num_gpu_blocks": str(engine.blocks.total),
            "enable_prefix_caching": str(engine.prefix_cache),
        }
        yield _with(
            GaugeMetricFamily("vllm:cache_config_info", "The KV cache.", labels=list(config)), config, 1
        )
        counters = {
            "prompt_tokens": ("Prompt tokens prefilled, cached ones included.", totals.prompt_tokens),
            "generation_tokens": ("Output tokens generated.", totals.output_tokens),
            "prefix_cache_queries": ("Prompt tokens looked up in the cache.", totals.looked_up_tokens),
            "prefix_cache_hits": ("Prompt tokens that the cache had.", totals.cached_tokens),
            "num_preemptions": ("Requests that lost their KV blocks.", totals.preemptions),
        }
        for name, (meaning, value) in counters.items():
            yield _with(CounterMetricFamily(f"vllm:{name}", meaning, labels=list(labels)), labels, value)


def _with(
    family: GaugeMetricFamily | CounterMetricFamily, labels: dict[str, str], value: float
) -> GaugeMetricFamily | CounterMetricFamily:
    family.add_metric(list(labels.values()), value)
    return family
