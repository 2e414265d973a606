"""What clients saw, by lane."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import polars as pl

from pipeline.play.player import Seen

SEEN_SCHEMA = {
    "lane": pl.String(),
    "at_s": pl.Float64(),
    "sent_s": pl.Float64(),
    "first_token_s": pl.Float64(),
    "ended_s": pl.Float64(),
    "output_tokens": pl.Int64(),
    "tries": pl.Int64(),
    "refusals": pl.Int64(),
    "end": pl.String(),
}


def frame(seen: Sequence[Seen]) -> pl.DataFrame:
    """A row for each call, in the order that they were due."""
    return pl.DataFrame([asdict(one) for one in seen], schema=SEEN_SCHEMA)


def score(calls: pl.DataFrame, targets_s: Mapping[str, float], speed: float = 1.0) -> pl.DataFrame:
    """A row for each lane, best first, and one for `all`; times are those of the trace at its own pace.

    A call's time to first token counts from when it was sent first, so waits for a retry are in it. Goodput
    is of calls that were served with a first token within their lane's target, per second of the trace, from
    the first call that was due to the last. Quantiles of lanes that served nothing are null.
    """
    span_s = max(1.0, float(calls.select(pl.col("at_s").max() - pl.col("at_s").min()).item()) * speed)
    marked = calls.with_columns(ttft_s=_ttft_s(speed), good=good(targets_s, speed))
    numbers = [
        pl.len().alias("offered"),
        *((pl.col("end") == end).sum().alias(end) for end in ("served", "refused", "overloaded", "failed")),
        pl.col("good").sum(),
        (pl.col("good").sum() / span_s).alias("goodput_per_s"),
        (pl.col("good").mean()).alias("good_share"),
        *(pl.col("ttft_s").quantile(q, "linear").alias(f"ttft_p{q * 100:.0f}_s") for q in (0.5, 0.95, 0.99)),
        pl.col("refusals").sum().alias("answers_429"),
        (pl.col("tries") - 1).sum().alias("retries"),
        pl.col("output_tokens").sum(),
    ]
    order = {lane: place for place, lane in enumerate(targets_s)}
    lanes = marked.group_by("lane").agg(numbers).sort(pl.col("lane").replace_strict(order))
    return pl.concat([lanes, marked.select(pl.lit("all").alias("lane"), *numbers)])


def good(targets_s: Mapping[str, float], speed: float = 1.0) -> pl.Expr:
    """Whether a call was served with its first token within its lane's target."""
    target_s = pl.col("lane").replace_strict(targets_s, return_dtype=pl.Float64)
    return (_ttft_s(speed) <= target_s).fill_null(value=False)


def lateness_s(calls: pl.DataFrame) -> float:
    """Seconds that the player itself was late with one in a hundred calls or more: its own part in delays."""
    late_s = calls.select((pl.col("sent_s") - pl.col("at_s")).quantile(0.99, "linear")).item()
    return float(late_s)


def _ttft_s(speed: float) -> pl.Expr:
    """Time to first token of a call that was served; null of any other."""
    waited_s = (pl.col("first_token_s") - pl.col("sent_s")) * speed
    return pl.when(pl.col("end") == "served").then(waited_s)
