"""Prometheus metrics; the values of labels are few, and known from the start."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from data.schema import LANES
from serving.controller.decision import Reason
from serving.telemetry.rows import FaultKind

DECISION_BUCKETS_S = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05)

Gauges = Mapping[str, tuple[str, float | Mapping[str, float] | None]]
"""Name to meaning and value, or values by lane; one that is not known is left out of the scrape."""


LAKE_TABLES = ("requests", "outcomes", "decisions", "forecasts", "ledger", "engine_samples")
"""Tables that the service's own rows go to."""


def counter(registry: CollectorRegistry, name: str, meaning: str, /, **labels: Sequence[str]) -> Counter:
    """A counter that is 0 from the start for every combination of its labels' values.

    One that appears with its first event hides that event from `rate` and `increase`, which need a value
    before.

    >>> registry = CollectorRegistry()
    >>> checks = counter(registry, "checks", "Checks.", result=("good", "bad"))
    >>> registry.get_sample_value("checks_total", {"result": "bad"})
    0.0
    """
    made = Counter(name, meaning, list(labels), registry=registry)
    if labels:
        for values in product(*labels.values()):
            made.labels(*values)
    return made


class Metrics:
    """Counters of one service, and gauges that are read when someone looks."""

    def __init__(self, gauges: Callable[[], Gauges]) -> None:
        self.registry = CollectorRegistry()
        self.admitted = self._counter("tidegate_admitted", "Requests let in.", lane=LANES)
        self.refused = self._counter(
            "tidegate_refused", "Requests that Tidegate refused.", lane=LANES, reason=get_args(Reason)
        )
        self.refused_by_forecast = self._counter(
            "tidegate_refused_by_forecast",
            "Those of the refused that the rules alone would have let in.",
            lane=LANES,
        )
        self.retries = self._counter(
            "tidegate_retries", "Requests that their callers said repeat an earlier one.", lane=LANES
        )
        self.settled = self._counter("tidegate_settled", "Reservations settled.")
        self.unsettled = self._counter(
            "tidegate_settle_unknown", "Settlements of unknown, settled or expired reservations."
        )
        self.rows = self._counter("tidegate_telemetry_rows", "Telemetry rows taken in.")
        self.rows_known = self._counter(
            "tidegate_telemetry_rows_duplicate", "Telemetry rows that were taken in before."
        )
        self.lake_rows_lost = self._counter(
            "tidegate_lake_rows_lost",
            "Rows of the service's own that the lake did not take.",
            table=LAKE_TABLES,
        )
        self.rows_refused = self._counter(
            "tidegate_telemetry_rows_refused", "Telemetry rows refused.", reason=get_args(FaultKind)
        )
        self.ticks = self._counter("tidegate_ticks", "Ticks made.")
        self.tick_failures = self._counter("tidegate_tick_failures", "Ticks that failed.")
        self.decision_s = Histogram(
            "tidegate_decision_seconds",
            "Time to decide on a request.",
            registry=self.registry,
            buckets=DECISION_BUCKETS_S,
        )
        self.registry.register(Live(gauges))

    def _counter(self, name: str, meaning: str, **labels: Sequence[str]) -> Counter:
        return counter(self.registry, name, meaning, **labels)


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
