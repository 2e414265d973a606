"""What users got in each arm: goodput, late and refused calls, false restraint, and how two arms differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from features.ticks import HORIZON_S, TICK_S
from models.guard.intervals import Blocks, Estimate
from pipeline.play.score import SEEN_SCHEMA, good, score
from pipeline.simulate.calls import Call

SCHEMA = SEEN_SCHEMA | {"restrained_s": pl.Float64()}


def outcomes(calls: Sequence[Call]) -> pl.DataFrame:
    """A row a call, in the order that they were due; ``sent_s`` is when it was sent first."""
    return pl.DataFrame(
        [
            (
                call.lane,
                call.at_s,
                call.at_s,
                call.first_token_s,
                call.ended_s,
                call.generated_tokens,
                call.tries,
                call.refusals,
                call.end,
                call.restrained_s,
            )
            for call in calls
        ],
        schema=SCHEMA,
        orient="row",
    )


def by_lane(calls: pl.DataFrame, targets_s: Mapping[str, float], ticks: pl.DataFrame) -> list[dict[str, Any]]:
    """What the calls of each lane got, best first, and all of them together, in plain Python types.

    A call is good when it was served with its first token within its lane's target, waits and retries
    included. It was restrained when the forecast alone had it refused at least once, and falsely so when that
    was at a negative tick: in calm, and with no onset within 60 s.

    Args:
        calls: of `outcomes`.
        targets_s: time to first token by lane, best lane first.
        ticks: of the span: t_s, eligible, and next_onset_s, null where there is none.

    """
    marked = restrained(calls, ticks)
    held = (
        pl.concat([marked, marked.with_columns(lane=pl.lit("all"))])
        .group_by("lane")
        .agg(
            pl.col("restrained_s").count().alias("restrained"),
            pl.col("false").sum().alias("falsely_restrained"),
        )
    )
    missed = (pl.col("served") - pl.col("good")).alias("late")
    told = (
        score(calls, targets_s).with_columns(missed).join(held, on="lane", how="left", maintain_order="left")
    )
    wanted = ("lane", "offered", "good", "good_share", "goodput_per_s", "late", "refused", "failed")
    more = ("restrained", "falsely_restrained", "answers_429", "ttft_p50_s", "ttft_p95_s", "ttft_p99_s")
    return told.select(*wanted, *more).to_dicts()


def restrained(calls: pl.DataFrame, ticks: pl.DataFrame) -> pl.DataFrame:
    """The calls with ``false``: restrained at a negative tick."""
    ahead_s = pl.col("next_onset_s") - pl.col("t_s")
    calm = pl.col("eligible") & (ahead_s.is_null() | (ahead_s > HORIZON_S[1]))
    tick = (pl.col("restrained_s") // TICK_S * TICK_S).cast(pl.Int64)
    known = ticks.select(pl.col("t_s").cast(pl.Int64), calm.alias("false"))
    return (
        calls.with_columns(t_s=tick)
        .join(known, on="t_s", how="left", maintain_order="left")
        .with_columns(pl.col("false").fill_null(value=False))
        .drop("t_s")
    )


@dataclass(frozen=True, slots=True)
class Difference:
    """One arm less the other, as shares of calls that were good, and the good ones over the other's."""

    good_share: Estimate
    relative: float | None


def differences(
    ours: pl.DataFrame, theirs: pl.DataFrame, targets_s: Mapping[str, float], *, seed: int
) -> dict[str, Difference]:
    """Compare two arms call by call, in each lane and in all; whole hours are drawn for the intervals.

    Args:
        ours: of `outcomes`.
        theirs: the same calls in another arm.
        targets_s: as for `by_lane`.
        seed: of the draws.

    """
    good_ours, good_theirs = (
        calls.select(good(targets_s)).to_series().to_numpy().astype(np.int64) for calls in (ours, theirs)
    )
    at_s, lane = ours["at_s"].to_numpy().astype(np.int64), ours["lane"].to_numpy()
    blocks = Blocks(at_s, seed=seed)
    found = {}
    for name in ("all", *targets_s):
        counts = np.ones(len(lane), dtype=np.bool_) if name == "all" else lane == name
        share = blocks.ratio_of(at_s, good_ours - good_theirs, counts)
        base = int(good_theirs[counts].sum())
        found[name] = Difference(share, float(good_ours[counts].sum() / base - 1.0) if base else None)
    return found
