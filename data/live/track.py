"""One engine over time: readings in, samples out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from data.live.engines import Reading
from data.live.ranges import RANGES, fault, is_percentage
from data.live.rates import Counters, Interval, interval
from data.live.samples import Sample, reason_of
from data.live.stillness import Stillness


@dataclass(frozen=True, slots=True)
class Observed:
    """A sample, and how many readings were dropped on the way to it."""

    sample: Sample
    dropped: int


class Track:
    """What must be remembered of an engine between two scrapes.

    A KV figure above 1 may be a percentage. Then all of that engine's KV figures may be, also those that look
    like shares, so they are refused until it restarts.
    """

    def __init__(self, source: str, longest_s: float) -> None:
        self.source = source
        self.longest_s = longest_s
        self._before: Counters | None = None
        self._still = Stillness()
        self._percentages = False

    def observe(self, reading: Reading, at_us: int, now_s: float, remarks: Sequence[str] = ()) -> Observed:
        """The sample of a reading that was taken at `at_us` (wall clock) or `now_s` (monotonic).

        `remarks` on the whole scrape go into its reason.
        """
        good, notes = _checked(reading.values)
        gauges = {name: value for name, value in good.items() if name in RANGES}
        counters = Counters(
            now_s, {name: value for name, value in good.items() if name not in RANGES}, reading.started_s
        )
        since = interval(self._before, counters, self.longest_s)
        if since.length_s is None:
            self._still.forget()
        self._percentages &= not since.restarted
        self._percentages |= is_percentage("kv_cache_usage", reading.values.get("kv_cache_usage", 0.0))
        if self._percentages and gauges.pop("kv_cache_usage", None) is not None:
            notes.append("kv_cache_usage was over 1 before, so this may be a percentage")
        self._before = counters
        hit_rate = _hit_rate(reading, since, gauges, notes)
        frozen = self._still.frozen(now_s, gauges, counters.values)
        if frozen:
            standing = self._still.standing(now_s)
            gauges = {name: value for name, value in gauges.items() if name not in standing}
        sample = Sample(
            source=self.source,
            at_us=at_us,
            engine=reading.engine,
            kind=reading.kind,
            model=reading.model,
            state="suspect" if frozen else "ok",
            reason=reason_of((frozen, since.reason, *notes, *remarks)),
            waiting=_whole(gauges.get("waiting")),
            running=_whole(gauges.get("running")),
            kv_cache_usage=gauges.get("kv_cache_usage"),
            kv_blocks=_whole(gauges.get("kv_blocks")),
            kv_block_tokens=_whole(gauges.get("kv_block_tokens")),
            interval_s=since.length_s,
            prefix_hit_rate=hit_rate,
            prompt_tokens_per_s=since.per_s("prompt_tokens"),
            output_tokens_per_s=since.per_s("output_tokens"),
            requests_per_s=since.per_s("requests"),
            preemptions_per_s=since.per_s("preemptions"),
            ttft_mean_s=since.ratio("ttft_sum", "ttft_count"),
            tpot_mean_s=since.ratio("tpot_sum", "tpot_count"),
            queue_time_mean_s=since.ratio("queue_time_sum", "queue_time_count"),
        )
        return Observed(sample, len(notes))


def _checked(values: Mapping[str, float]) -> tuple[dict[str, float], list[str]]:
    """The values that can be, and why each of the others can't."""
    faults = {signal: fault(signal, value) for signal, value in values.items()}
    good = {signal: value for signal, value in values.items() if faults[signal] is None}
    return good, [why for why in faults.values() if why is not None]


def _hit_rate(
    reading: Reading, since: Interval, gauges: Mapping[str, float], notes: list[str]
) -> float | None:
    """Of the interval, by the counters; a gauge, perhaps of one batch only, where there are none."""
    if "cached_tokens" not in reading.values:
        return gauges.get("hit_rate")
    rate = since.ratio("cached_tokens", "looked_up_tokens")
    if rate is not None and (why := fault("hit_rate", rate)):
        notes.append(why)
        return None
    return rate


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
