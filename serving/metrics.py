"""Prometheus metrics; labels are lane, reason, table, result and source, whose values are few and ours."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from data.schema import LANES

DECISION_BUCKETS_S = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05)

Gauges = Mapping[str, tuple[str, float | Mapping[str, float] | None]]
"""Name to meaning and value, or values by lane; one that is not known is left out of the scrape."""


class Metrics:
    """Counters of one service, and gauges that are read when someone looks."""

    def __init__(self, gauges: Callable[[], Gauges]) -> None:
        self.registry = CollectorRegistry()
        self.admitted = self._counter("tidegate_admitted", "Requests let in.", ["lane"])
        self.refused = self._counter(
            "tidegate_refused", "Requests that Tidegate refused.", ["lane", "reason"]
        )
        self.refused_by_forecast = self._counter(
            "tidegate_refused_by_forecast",
            "Those of the refused that the rules alone would have let in.",
            ["lane"],
        )
        for lane in LANES:  # 0 is known from the start, and rates need it
            self.refused_by_forecast.labels(lane)
        self.retries = self._counter(
            "tidegate_retries", "Requests that their callers said repeat an earlier one.", ["lane"]
        )
        for lane in LANES:
            self.retries.labels(lane)
        self.settled = self._counter("tidegate_settled", "Reservations settled.", [])
        self.unsettled = self._counter(
            "tidegate_settle_unknown", "Settlements of unknown, settled or expired reservations.", []
        )
        self.rows = self._counter("tidegate_telemetry_rows", "Telemetry rows taken in.", [])
        self.rows_known = self._counter(
            "tidegate_telemetry_rows_duplicate", "Telemetry rows that were taken in before.", []
        )
        self.lake_rows_lost = self._counter(
            "tidegate_lake_rows_lost", "Rows of the service's own that the lake did not take.", ["table"]
        )
        self.rows_refused = self._counter(
            "tidegate_telemetry_rows_refused", "Telemetry rows refused.", ["reason"]
        )
        self.ticks = self._counter("tidegate_ticks", "Ticks made.", [])
        self.tick_failures = self._counter("tidegate_tick_failures", "Ticks that failed.", [])
        self.decision_s = Histogram(
            "tidegate_decision_seconds",
            "Time to decide on a request.",
            registry=self.registry,
            buckets=DECISION_BUCKETS_S,
        )
        self.registry.register(Live(gauges))

    def _counter(self, name: str, meaning: str, labels: list[str]) -> Counter:
        return Counter(name, meaning, labels, registry=self.registry)


class Live(Collector):
    """Gauges that are read when someone looks."""

    def __init__(self, gauges: Callable[[], Gauges]) -> None:
        self._gauges = gauges

    def describe(self) -> list[Metric]:
        """Nothing to describe before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Read every gauge that is known."""
        for name, (meaning, value) in self._gauges().items():
            if isinstance(value, Mapping):
                family = GaugeMetricFamily(name, meaning, labels=["lane"])
                for lane, each in value.items():
                    family.add_metric([lane], each)
                yield family
            elif value is not None:
                yield GaugeMetricFamily(name, meaning, value=value)
