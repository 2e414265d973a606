"""Scraped engines in the service: samples to the gate and, if wanted, to the lake."""

import logging
from collections.abc import Callable, Iterator, Sequence

import polars as pl
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from data.config import Target
from data.live.samples import Sample, frame
from data.live.scrape import Scraper
from serving.clock import Clock
from serving.telemetry.engine import Engine

log = logging.getLogger("tidegate")

_COUNTERS = {
    "scrapes": "Scrapes begun.",
    "failures": "Scrapes that told nothing.",
    "suspect": "Samples whose gauges were frozen.",
    "dropped": "Readings that can't be right.",
    "skipped": "Turns that passed while a scrape still ran.",
}


class Scraping:
    """Scrapes the targets in the service's event loop until cancelled.

    `sink` gets each scrape's rows of engine_samples; it must neither wait nor raise. Register the object with
    a prometheus_client registry to show its counters by target.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        engine: Engine,
        clock: Clock,
        sink: Callable[[pl.DataFrame], object] | None = None,
    ) -> None:
        """Start with nothing scraped.

        Raises:
            InputError: when two targets share a name or an address names no host.

        """
        self._engine, self._clock, self._sink = engine, clock, sink
        self._scraper = Scraper(targets, clock, self._take)
        stale_s = engine.controller.rules.engine_stale_s
        for target in targets:
            if target.interval_s >= stale_s:
                log.warning(
                    "scrapes come too seldom: between them the engine is unknown",
                    extra={
                        "fields": {"target": target.name, "interval_s": target.interval_s, "stale_s": stale_s}
                    },
                )

    async def run(self) -> None:
        """Scrape until cancelled."""
        try:
            await self._scraper.run()
        except Exception as error:  # the engines will be stale soon, thus unknown: someone must hear why
            log.error("scraping has ended", exc_info=error)
            raise

    def describe(self) -> list[Metric]:
        """Nothing to describe before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Counters and clock offsets by target, and how many engines tell."""
        tallies = self._scraper.tallies
        for name, meaning in _COUNTERS.items():
            counter = CounterMetricFamily(f"tidegate_scrape_{name}", meaning, labels=["target"])
            for target, tally in tallies.items():
                counter.add_metric([target], getattr(tally, name))
            yield counter
        offset = GaugeMetricFamily(
            "tidegate_scrape_clock_offset_seconds", "The engine's clock less ours.", labels=["target"]
        )
        for target, tally in tallies.items():
            if tally.clock_offset_s is not None:
                offset.add_metric([target], tally.clock_offset_s)
        yield offset
        fleet = self._engine.fleet(self._clock.wall_us())
        yield GaugeMetricFamily(
            "tidegate_engines_known", "Engines whose readings count.", value=fleet.telling
        )

    def _take(self, samples: Sequence[Sample]) -> None:
        self._engine.scraped(samples, self._clock.wall_us(), self._clock.monotonic_s())
        if self._sink is not None:
            self._sink(frame(samples))
