"""What an engine says of itself, on its way to the controller."""

from dataclasses import dataclass

from serving.controller.decide import Controller
from serving.messages import EngineSample
from serving.offered import AHEAD_S, US
from serving.telemetry import Fault

READINGS = ("queue_depth", "batch_tokens", "kv_cache_hit_rate", "kv_cache_usage", "gpu_util")


@dataclass(frozen=True, slots=True)
class Latest:
    """The latest sample and the time that it was read at, microseconds since the Unix epoch."""

    at_us: int
    sample: EngineSample


class Engine:
    """Takes samples in order of time; one too old to act on, or older than the last, is refused."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self._latest: Latest | None = None

    def take(self, sample: EngineSample, now_us: int, now_s: float) -> Fault | None:
        """Hand a sample to the controller; says why when it can't be used."""
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
        rules, hit = self.controller.rules, sample.kv_cache_hit_rate
        self.controller.observe_engine(
            now_s,
            queue_depth=_rescaled(sample.queue_depth, sample.queue_capacity, rules.queue_capacity),
            batch_tokens=_rescaled(
                sample.batch_tokens, sample.max_batch_tokens, rules.max_batch_tokens or rules.capacity
            ),
            kv_miss_rate=None if hit is None else 1.0 - hit,
        )
        return None

    def reading(self, name: str, now_us: int) -> float | None:
        """A reading of the latest sample; None when it is unknown or stale."""
        latest = self._latest
        if latest is None or now_us - latest.at_us > self.controller.rules.engine_stale_s * US:
            return None
        value: float | None = getattr(latest.sample, name)
        return value


def _rescaled(value: float | None, full: float | None, rule_full: float) -> float | None:
    """A reading in units of the rule's own capacity, where the engine tells a different one."""
    return value if value is None or full is None else value * (rule_full / full)
