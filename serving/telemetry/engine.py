"""What engines say of themselves, pushed or scraped, on its way to the controller."""

from collections.abc import Sequence
from dataclasses import dataclass

from data.live.samples import Sample
from features.engine_state import READINGS as FEATURES
from features.engine_state import EngineState
from serving.controller.decide import Controller
from serving.forecast.offered import AHEAD_S, US
from serving.http.messages import EngineSample
from serving.telemetry.fleet import Fleet, combine
from serving.telemetry.rows import Fault

READINGS = (
    "queue_depth",
    "batch_tokens",
    "kv_cache_hit_rate",
    "kv_cache_usage",
    "gpu_util",
    "preemptions_per_s",
    "kv_allocation_failures",
)
_SCRAPED = {
    "queue_depth": "waiting",
    "kv_cache_hit_rate": "prefix_hit_rate",
    "kv_cache_usage": "kv_cache_usage",
}
"""Name of a pushed reading to that of a scraped one."""
_NOTHING = EngineSample.model_validate({})


@dataclass(frozen=True, slots=True)
class Latest:
    """The latest sample and the time that it was read at, microseconds since the Unix epoch."""

    at_us: int
    sample: EngineSample


class Engine:
    """All engines behind the gate, as one.

    Scraped samples come from several engines and are combined. A pushed one speaks for all of them: what it
    tells goes before what was scraped, so an engine that is both pushed and scraped doesn't count twice. A
    reading that is suspect, failed or older than the rules' `engine_stale_s` is unknown.
    """

    def __init__(self, controller: Controller, state: EngineState | None = None) -> None:
        """Start with nothing known; ``state`` is what the features keep of the samples."""
        self.controller = controller
        self.state = state or EngineState()
        self._latest: Latest | None = None
        self._scraped: dict[tuple[str, str], Sample] = {}

    def scraped(self, samples: Sequence[Sample], now_us: int, now_s: float) -> None:
        """Take the samples of one scrape, stamped by this service's clock."""
        for sample in samples:
            self._scraped[sample.source, sample.engine] = sample
            if sample.state == "ok":
                self.controller.learn_engine(
                    running=sample.running,
                    waiting=sample.waiting,
                    output_tokens_per_s=sample.output_tokens_per_s,
                    tpot_mean_s=sample.tpot_mean_s,
                    ttft_mean_s=sample.ttft_mean_s,
                    queue_time_mean_s=sample.queue_time_mean_s,
                    prompt_tokens_per_s=sample.prompt_tokens_per_s,
                    requests_per_s=sample.requests_per_s,
                    prefix_hit_rate=sample.prefix_hit_rate,
                )
                told = {name: getattr(sample, name) for name in FEATURES}
                self.state.read(sample.at_us, sample.source, sample.engine, **told)
        oldest_us = now_us - self._stale_us()
        self._scraped = {key: sample for key, sample in self._scraped.items() if sample.at_us >= oldest_us}
        # Only what this scrape brought: preemptions that were told before must not count again.
        lost = [sample.preemptions_per_s for sample in samples if sample.state == "ok"]
        known = [per_s for per_s in lost if per_s is not None]
        self._observe(now_us, now_s, preemptions_per_s=sum(known) if known else None)

    def fleet(self, now_us: int) -> Fleet:
        """What the scraped engines say together; engines without a fresh sample are not in it."""
        oldest_us = now_us - self._stale_us()
        return combine(sample for sample in self._scraped.values() if sample.at_us >= oldest_us)

    def take(self, sample: EngineSample, now_us: int, now_s: float, source: str = "pushed") -> Fault | None:
        """Take a pushed sample of a source; says why when it can't be used.

        One too old to act on, or older than the last, is refused.
        """
        at_us = now_us if sample.at is None else round(sample.at.timestamp() * US)
        stale_s = self.controller.rules.engine_stale_s
        if at_us > now_us + AHEAD_S * US:
            return Fault(
                "ahead",
                f"at: lies {(at_us - now_us) / US:.1f} s ahead of this service's clock, {AHEAD_S} s are let "
                "pass; set the source's clock right",
            )
        if now_us - at_us > stale_s * US:
            return Fault(
                "late", f"at: is {(now_us - at_us) / US:.1f} s old, over {stale_s:g} s tells nothing of now"
            )
        if self._latest is not None and at_us < self._latest.at_us:
            return Fault("late", "at: is older than a sample that was taken in before")
        if all(getattr(sample, name) is None for name in READINGS):
            return Fault(
                "invalid", f"the row has no reading; it must have one or more of {', '.join(READINGS)}"
            )
        self._latest = Latest(at_us, sample)
        self.state.read(
            at_us,
            source,
            waiting=None if sample.queue_depth is None else round(sample.queue_depth),
            kv_cache_usage=sample.kv_cache_usage,
        )
        self._observe(
            now_us,
            now_s,
            preemptions_per_s=sample.preemptions_per_s,
            allocation_failures=sample.kv_allocation_failures,
        )
        return None

    def reading(self, name: str, now_us: int) -> float | None:
        """A reading, by its name in a pushed sample; None when it is unknown or stale."""
        pushed: float | None = getattr(self._pushed(now_us), name)
        scraped = _SCRAPED.get(name)
        if pushed is not None or scraped is None:
            return pushed
        told: float | None = getattr(self.fleet(now_us), scraped)
        return told

    def _observe(
        self,
        now_us: int,
        now_s: float,
        *,
        preemptions_per_s: float | None = None,
        allocation_failures: float | None = None,
    ) -> None:
        """Hand what is known to the controller."""
        rules, pushed = self.controller.rules, self._pushed(now_us)
        # A scraped queue is counted against the rules' capacity, whatever is pushed beside it.
        queue_capacity = None if pushed.queue_depth is None else pushed.queue_capacity
        hit = self.reading("kv_cache_hit_rate", now_us)
        self.controller.observe_engine(
            now_s,
            queue_depth=_rescaled(self.reading("queue_depth", now_us), queue_capacity, rules.queue_capacity),
            batch_tokens=_rescaled(
                self.reading("batch_tokens", now_us),
                pushed.max_batch_tokens,
                rules.max_batch_tokens or rules.capacity,
            ),
            kv_miss_rate=None if hit is None else 1.0 - hit,
            gpu_util=self.reading("gpu_util", now_us),
            preemptions_per_s=preemptions_per_s,
            allocation_failures=allocation_failures,
        )

    def _pushed(self, now_us: int) -> EngineSample:
        latest = self._latest
        return _NOTHING if latest is None or now_us - latest.at_us > self._stale_us() else latest.sample

    def _stale_us(self) -> float:
        return self.controller.rules.engine_stale_s * US


def _rescaled(value: float | None, full: float | None, rule_full: float) -> float | None:
    """A reading in units of the rule's own capacity, where the engine tells a different one."""
    return value if value is None or full is None else value * (rule_full / full)
