"""Several engines as one: what their latest samples say together."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from data.live.samples import Sample


@dataclass(frozen=True, slots=True)
class Fleet:
    """Readings of all engines together; None where no engine tells.

    Attributes:
        engines: engines that were asked.
        telling: those whose readings count.
        waiting: requests waiting, summed over the engines that tell.
        running: requests in their batches, summed likewise.
        kv_cache_usage: share of all KV blocks in use; where an engine's number of blocks is not known, the
            highest share of any.
        prefix_hit_rate: weighted by prompt tokens/s; where an engine's are not known, the lowest of any.

    """

    engines: int = 0
    telling: int = 0
    waiting: int | None = None
    running: int | None = None
    kv_cache_usage: float | None = None
    prefix_hit_rate: float | None = None


def combine(samples: Iterable[Sample]) -> Fleet:
    """One fleet from the latest sample of each engine; only those that are ok count, and none stands for 0.

    >>> def sample(engine, usage, blocks):
    ...     return Sample(source="pool", at_us=0, engine=engine, state="ok", waiting=4,
    ...                   kv_cache_usage=usage, kv_blocks=blocks)
    >>> fleet = combine([sample("0", 0.9, 1_000), sample("1", 0.1, 3_000)])
    >>> fleet.waiting, round(fleet.kv_cache_usage, 3), fleet.running
    (8, 0.3, None)
    >>> combine([sample("0", 0.9, None), sample("1", 0.1, 3_000)]).kv_cache_usage
    0.9

    """
    asked = list(samples)
    telling = [sample for sample in asked if sample.state == "ok"]
    usages = [(s.kv_cache_usage, s.kv_blocks) for s in telling if s.kv_cache_usage is not None]
    hits = [(s.prefix_hit_rate, s.prompt_tokens_per_s) for s in telling if s.prefix_hit_rate is not None]
    return Fleet(
        engines=len(asked),
        telling=len(telling),
        waiting=_sum(sample.waiting for sample in telling),
        running=_sum(sample.running for sample in telling),
        kv_cache_usage=_mean(usages, otherwise=max),
        prefix_hit_rate=_mean(hits, otherwise=min),
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _mean(
    weighted: Sequence[tuple[float, float | None]], otherwise: Callable[[Iterable[float]], float]
) -> float | None:
    """Weighted mean of shares; `otherwise` chooses one of them where a weight is not known."""
    shares = [share for share, _ in weighted]
    if not shares:
        return None
    weights = [weight for _, weight in weighted if weight is not None]
    total = sum(weights)
    if len(weights) < len(shares) or not total > 0:
        return otherwise(shares)
    mean = sum(share * weight for share, weight in zip(shares, weights, strict=True)) / total
    return min(max(shares), mean)  # rounding must not lift it over 1
