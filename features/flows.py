"""Flows: requests of one tenant, lane, model, log type and prompt-size class, second by second.

A flow is the finest grain at which causes show: a nightly job, an agent's planning calls, a chat tenant.
Its work is *expected* work: prompt tokens less the share that the flow's finished requests found in cache,
plus the mean output of its finished requests. Realised output enters only after the finish.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from data.schema import LANES
from features.bins import seconds_since
from features.returns import waits

PROMPT_CLASSES = (512, 2048, 8192, 16384)
"""Upper bounds, in tokens, of all prompt-size classes but the last."""
LONG_PROMPT_CLASS = 3
"""Classes from here on count as long prompts."""
MAX_FLOWS = 20_000
"""Flows kept apart; later ones share one entry, so that invented tenants can't exhaust memory."""
DEFAULT_LANE = "standard"
MAX_SIZE = (1 << 20) - 1
"""Work of one request that counts, in tokens, where squares are summed."""

# When a source doesn't say when its requests finished: prefill and decode times of a 70B model on eight H100
# (Splitwise, Patel et al., ISCA 2024: public measurements, linear fit).
PREFILL_S, PREFILL_S_PER_TOKEN, DECODE_S_PER_TOKEN = 0.010, 0.000091, 0.0333


@dataclass(frozen=True, slots=True)
class FlowSeconds:
    """What arrived, by second and flow, and what is known of each flow.

    Attributes:
        origin_us: arrival of the first request, microseconds since the Unix epoch.
        seconds: number of seconds in the trace.
        second, flow, requests, prompt, work: one entry for each flow active in each second, ordered by
            second, then flow; int64. ``prompt`` and ``work`` are tokens, ``work`` the expected one.
        refusals: requests known to be shed or failed, by the second when that was known; int64, (seconds,).
        ended: finished requests, their work in tokens and its squares, by the second when they were known;
            refused ones are not among them; int64, (3, seconds).
        waits: second since which and until which a session waited for its next turn; int64, (2, waits).
        tenant: tenant number of each flow, -1 where unknown; int64, (flows,).
        caller: number of each flow's caller: tenant, lane, model and log type alone; int64, (flows,).
        lane: index into LANES of each flow; int64, (flows,).
        long_prompt: whether the flow's prompts are long; bool, (flows,).

    """

    origin_us: int
    seconds: int
    second: NDArray[np.int64]
    flow: NDArray[np.int64]
    requests: NDArray[np.int64]
    prompt: NDArray[np.int64]
    work: NDArray[np.int64]
    refusals: NDArray[np.int64]
    ended: NDArray[np.int64]
    waits: NDArray[np.int64]
    tenant: NDArray[np.int64]
    caller: NDArray[np.int64]
    lane: NDArray[np.int64]
    long_prompt: NDArray[np.bool_]


def prompt_class() -> pl.Expr:
    """Index of the prompt-size class, 0 to 4."""
    return pl.sum_horizontal(pl.col("prompt_tokens") > bound for bound in PROMPT_CLASSES).cast(pl.Int64)


def known_at_us() -> pl.Expr:
    """Time at which output and cache use are known: the finish, or its estimate where the source has none."""
    estimate_s = (
        PREFILL_S
        + PREFILL_S_PER_TOKEN * pl.col("prompt_tokens")
        + DECODE_S_PER_TOKEN * pl.col("output_tokens").fill_null(0)
    )
    estimate_us = pl.col("arrived_at").to_physical() + (estimate_s * 1e6).cast(pl.Int64)
    return pl.coalesce(pl.col("finished_at").to_physical(), estimate_us)


def expected_work(
    requests: pl.Expr,
    prompt: pl.Expr,
    finished: pl.Expr,
    prompt_sum: pl.Expr,
    cached_sum: pl.Expr,
    output_sum: pl.Expr,
) -> pl.Expr:
    """Expected work of ``requests`` requests of one flow, whole tokens, from sums over finished requests."""
    uncached = prompt - prompt * (cached_sum / prompt_sum.clip(1))
    return (uncached + requests * (output_sum / finished.clip(1)) + 0.5).floor().cast(pl.Int64)


def work_size(prompt: pl.Expr, cached: pl.Expr, output: pl.Expr) -> pl.Expr:
    """Work of a finished request in tokens, at most `MAX_SIZE`: the sum of a day's squares stays whole."""
    return (prompt - cached + output).clip(0, MAX_SIZE)


def _by_second(rows: pl.DataFrame, columns: Sequence[str], seconds: int) -> NDArray[np.int64]:
    """Sums of whole-number columns by known_s, (columns, seconds); later seconds are left out."""
    sums = np.zeros((len(columns), seconds), dtype=np.int64)
    rows = rows.filter(pl.col("known_s") < seconds)
    for row, name in zip(sums, columns, strict=True):
        np.add.at(row, rows["known_s"].to_numpy(), rows[name].to_numpy())
    return sums


def _turns(rows: pl.DataFrame, flows: pl.DataFrame) -> pl.DataFrame:
    """Turns of sessions, as `features.returns.waits` takes them; a name is one session within a tenant."""
    turns = rows.lazy().filter(pl.col("session").is_not_null()).select("flow", "session", "second", "known_s")
    owner = flows.lazy().select(pl.col("flow").cast(pl.Int64), pl.col("number").cast(pl.Int64).fill_null(-1))
    turns = turns.join(owner, on="flow").select("number", "session", "second", "known_s")
    named = turns.select("number", "session").unique().with_row_index("named")
    return turns.join(named, on=["number", "session"]).select("second", "known_s", session="named").collect()


def flow_seconds(requests: pl.DataFrame) -> FlowSeconds:
    """Aggregate a non-empty frame of requests, sorted by arrival, by second and flow."""
    origin_us = int(requests["arrived_at"].to_physical()[0])
    keyed = requests.lazy().select(
        second=seconds_since(origin_us),
        at_us=pl.col("arrived_at").to_physical(),
        tenant="tenant",
        session="session",
        lane=pl.col("lane").fill_null(DEFAULT_LANE),
        model="model",
        log_type="log_type",
        prompt_class=prompt_class(),
        prompt=pl.col("prompt_tokens"),
        cached=pl.col("cached_tokens").fill_null(0),
        output=pl.col("output_tokens").fill_null(0),
        known_s=(known_at_us() - origin_us).floordiv(1_000_000),
        refused=pl.col("outcome").is_in(["shed", "failed"]).fill_null(False),
    )
    key = ["tenant", "lane", "model", "log_type", "prompt_class"]
    rows = keyed.collect()
    # By first arrival, and by name where that is the same: the order in which rows were told is no matter.
    flows = rows.select("at_us", *key).unique(key, keep="first", maintain_order=True)
    flows = flows.sort("at_us", *key).drop("at_us").with_row_index("flow")
    rows = rows.join(flows, on=key, how="left", nulls_equal=True, maintain_order="left").with_columns(
        pl.col("flow").cast(pl.Int64).clip(0, MAX_FLOWS)
    )
    flows = flows.head(MAX_FLOWS + 1)
    tenants = flows.select("tenant").unique(maintain_order=True).drop_nulls().with_row_index("number")
    callers = flows.select(key[:-1]).unique(maintain_order=True).with_row_index("caller")
    flows = flows.join(tenants, on="tenant", how="left", maintain_order="left").join(
        callers, on=key[:-1], how="left", nulls_equal=True, maintain_order="left"
    )

    arrivals = rows.group_by("second", "flow").agg(
        pl.len().cast(pl.Int64).alias("requests"), pl.col("prompt").sum()
    )
    sums = ["finished", "prompt_sum", "cached_sum", "output_sum"]
    size = work_size(pl.col("prompt"), pl.col("cached"), pl.col("output"))
    # What was refused has no output of its own: counting it would let a gate that sheds dim its own forecast.
    finishes = (
        rows.filter(~pl.col("refused"))
        .group_by("known_s", "flow")
        .agg(
            pl.len().cast(pl.Int64).alias("finished"),
            pl.col("prompt").sum().alias("prompt_sum"),
            pl.col("cached").sum().alias("cached_sum"),
            pl.col("output").sum().alias("output_sum"),
            size.sum().alias("work_sum"),
            (size * size).sum().alias("square_sum"),
        )
        .sort("known_s")
    )
    everyone = (
        finishes.group_by("known_s", maintain_order=True)
        .agg(pl.col(sums).sum())
        .with_columns(pl.col(sums).cum_sum().name.suffix("_all"))
    )
    active = (
        arrivals.sort("second")
        # A second's expectation rests on what had finished before that second began.
        .with_columns(before=pl.col("second") - 1)
        .join_asof(
            finishes.with_columns(pl.col(sums).cum_sum().over("flow")),
            left_on="before",
            right_on="known_s",
            by="flow",
            check_sortedness=False,
        )
        .join_asof(everyone.drop(sums), left_on="before", right_on="known_s", check_sortedness=False)
        .with_columns([pl.coalesce(name, f"{name}_all", pl.lit(0)).alias(name) for name in sums])
        .with_columns(work=expected_work(*(pl.col(name) for name in ("requests", "prompt", *sums))))
        .sort("second", "flow")
    )
    seconds = int(active["second"][-1]) + 1
    refused = rows.filter(pl.col("refused") & (pl.col("known_s") < seconds))["known_s"].to_numpy()
    return FlowSeconds(
        origin_us,
        seconds,
        active["second"].to_numpy(),
        active["flow"].to_numpy(),
        active["requests"].to_numpy(),
        active["prompt"].to_numpy(),
        active["work"].to_numpy(),
        np.bincount(refused, minlength=seconds).astype(np.int64),
        _by_second(finishes, ("finished", "work_sum", "square_sum"), seconds),
        waits(_turns(rows, flows)),
        flows["number"].cast(pl.Int64).fill_null(-1).to_numpy(),
        flows["caller"].cast(pl.Int64).to_numpy(),
        flows["lane"].replace_strict(list(LANES), [0, 1, 2], return_dtype=pl.Int64).to_numpy(),
        (flows["prompt_class"] >= LONG_PROMPT_CLASS).to_numpy(),
    )
