"""Flows: requests of one tenant, lane, model, log type and prompt-size class, second by second.

A flow is the finest grain at which causes show: a nightly job, an agent's planning calls, a chat tenant.
Its work is *expected* work: prompt tokens less the share that the flow's finished requests found in cache,
plus the mean output of its finished requests. Realised output enters only after the finish.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from data.schema import LANES
from features.bins import seconds_since
from features.returns import LAST_AGE_S, waits

PROMPT_CLASSES = (512, 2048, 8192, 16384)
"""Upper bounds, in tokens, of all prompt-size classes but the last."""
LONG_PROMPT_CLASS = 3
"""Classes from here on count as long prompts."""
MAX_FLOWS = 20_000
"""Flows kept apart; later ones share one entry, so that invented tenants can't exhaust memory."""
DEFAULT_LANE = "standard"
SLICE = 1 << 18
"""Requests looked at together; a few more, so that no second is cut."""
KEY = ["tenant", "lane", "model", "log_type", "prompt_class"]
"""What a flow is known by; without the last, a caller."""
SUMS = ["finished", "prompt_sum", "cached_sum", "output_sum"]
"""What expected work rests on: finished requests of a flow and their tokens."""
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
            second, then flow; the first two int32, the others int64. ``prompt`` and ``work`` are tokens,
            ``work`` the expected one.
        refusals: requests known to be shed or failed, by the second when that was known; int64, (seconds,).
        ended: finished requests, their work in tokens and its squares, by the second when they were known;
            refused ones are not among them; int64, (3, seconds).
        waits: second since which and until which a session waited for its next turn; int32, (2, waits).
        tenant: tenant number of each flow, -1 where unknown; int64, (flows,).
        caller: number of each flow's caller: tenant, lane, model and log type alone; int64, (flows,).
        lane: index into LANES of each flow; int64, (flows,).
        long_prompt: whether the flow's prompts are long; bool, (flows,).

    """

    origin_us: int
    seconds: int
    second: NDArray[np.int32]
    flow: NDArray[np.int32]
    requests: NDArray[np.int64]
    prompt: NDArray[np.int64]
    work: NDArray[np.int64]
    refusals: NDArray[np.int64]
    ended: NDArray[np.int64]
    waits: NDArray[np.int32]
    tenant: NDArray[np.int64]
    caller: NDArray[np.int64]
    lane: NDArray[np.int64]
    long_prompt: NDArray[np.bool_]


_FLOWS = {"flow": pl.Int32, **dict.fromkeys(KEY, pl.String), "prompt_class": pl.Int64}
_ENDS = dict.fromkeys(["known_s", "flow", *SUMS], pl.Int64) | {"flow": pl.Int32}
_TURNS = {"owner": pl.Int64, "session": pl.String, "second": pl.Int32, "known_s": pl.Int64}
"""Columns of what one slice of requests leaves to the next."""


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


def flow_seconds(requests: pl.DataFrame | pl.LazyFrame) -> FlowSeconds:
    """Aggregate requests by second and flow: at least one, sorted by arrival, none finished before.

    They are taken in slices of time: a file that is scanned lazily need not fit in memory.
    """
    requests = requests.lazy()
    arrived_us = requests.select(pl.col("arrived_at").to_physical()).collect().to_series().to_numpy()
    origin_us = int(arrived_us[0])
    seconds = int(arrived_us[-1] - origin_us) // 1_000_000 + 1
    # A slice starts with the first request of a second.
    starts_s = np.unique((arrived_us[::SLICE] - origin_us) // 1_000_000)
    edges = np.append(np.searchsorted(arrived_us, origin_us + 1_000_000 * starts_s), len(arrived_us))
    del arrived_us

    told = _told(requests, origin_us)
    flows, ends, turns = pl.DataFrame(schema=_FLOWS), pl.DataFrame(schema=_ENDS), pl.DataFrame(schema=_TURNS)
    active, waited = [], []
    refusals, ended = np.zeros((1, seconds), np.int64), np.zeros((3, seconds), np.int64)
    for (first, until), until_s in zip(
        pairwise(edges.tolist()), [*starts_s[1:].tolist(), seconds], strict=True
    ):
        rows = told.slice(first, until - first).collect()
        flows = _with_new(flows, rows)
        rows = rows.join(flows, on=KEY, how="left", nulls_equal=True).with_columns(
            pl.col("flow").fill_null(MAX_FLOWS)
        )
        _add_by_second(refusals, rows.filter("refused").select("known_s", refusals=1))
        finishes = _finishes(rows)
        _add_by_second(ended, finishes.select("known_s", "finished", "work_sum", "square_sum"))
        ends = pl.concat([ends, finishes.select(*_ENDS)])
        active.append(_active(rows, ends))
        # Of what is known by now, the sums are all that is asked for later.
        ends = ends.group_by(pl.col("known_s").clip(until_s - 1), "flow").agg(pl.col(SUMS).sum())
        turns = pl.concat([turns, _turns(rows, flows)])
        since_s = until_s - LAST_AGE_S if until_s < seconds else seconds
        waited.append(_waits(turns, since_s))
        turns = turns.filter(pl.col("known_s") >= since_s)
    arrivals = pl.concat(active)
    return FlowSeconds(
        origin_us,
        seconds,
        arrivals["second"].to_numpy(),
        arrivals["flow"].to_numpy(),
        arrivals["requests"].to_numpy(),
        arrivals["prompt"].to_numpy(),
        arrivals["work"].to_numpy(),
        refusals[0],
        ended,
        np.concatenate(waited, axis=1),
        _numbers(flows, ["tenant"]),
        _numbers(flows, KEY[:-1]),
        flows["lane"].replace_strict(list(LANES), [0, 1, 2], return_dtype=pl.Int64).to_numpy(),
        (flows["prompt_class"] >= LONG_PROMPT_CLASS).to_numpy(),
    )


def _told(requests: pl.LazyFrame, origin_us: int) -> pl.LazyFrame:
    """What is looked at of each request; missing tokens count as none."""
    return requests.select(
        second=seconds_since(origin_us).cast(pl.Int32),
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


def _with_new(flows: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """The flows, and those of later rows after them, up to `MAX_FLOWS` and the one that all others share.

    By first arrival, and by name where that is the same: the order in which rows were told is no matter.
    """
    came = rows.group_by(KEY).agg(pl.col("at_us").min()).join(flows, on=KEY, how="anti", nulls_equal=True)
    new = came.sort("at_us", *KEY).select(KEY).with_row_index("flow", offset=len(flows))
    return pl.concat([flows, new.select(pl.col("flow").cast(pl.Int32), *KEY)]).head(MAX_FLOWS + 1)


def _numbers(flows: pl.DataFrame, key: Sequence[str]) -> NDArray[np.int64]:
    """Number what the flows have under ``key``, as it comes up, (flows,); -1 where nothing is known."""
    known = flows.select(key).unique(maintain_order=True).filter(pl.any_horizontal(pl.col(key).is_not_null()))
    numbered = flows.join(
        known.with_row_index("number"), on=key, how="left", nulls_equal=True, maintain_order="left"
    )
    return numbered["number"].cast(pl.Int64).fill_null(-1).to_numpy()


def _finishes(rows: pl.DataFrame) -> pl.DataFrame:
    """What finished, by second and flow.

    What was refused has no output of its own: counting it would let a gate that sheds dim its own forecast.
    """
    size = work_size(pl.col("prompt"), pl.col("cached"), pl.col("output"))
    return (
        rows.lazy()
        .filter(~pl.col("refused"))
        .group_by("known_s", "flow")
        .agg(
            pl.len().cast(pl.Int64).alias("finished"),
            pl.col("prompt").sum().alias("prompt_sum"),
            pl.col("cached").sum().alias("cached_sum"),
            pl.col("output").sum().alias("output_sum"),
            size.sum().alias("work_sum"),
            (size * size).sum().alias("square_sum"),
        )
        .collect()
    )


def _active(rows: pl.DataFrame, ends: pl.DataFrame) -> pl.DataFrame:
    """What arrived by second and flow, in that order, and its expected work by what had finished before."""
    arrivals = rows.group_by("second", "flow").agg(
        pl.len().cast(pl.Int64).alias("requests"), pl.col("prompt").sum()
    )
    ends = ends.sort("known_s")
    everyone = (
        ends.group_by("known_s", maintain_order=True)
        .agg(pl.col(SUMS).sum())
        .with_columns(pl.col(SUMS).cum_sum().name.suffix("_all"))
    )
    return (
        arrivals.sort("second", "flow")
        # A second's expectation rests on what had finished before that second began.
        .with_columns(before=pl.col("second").cast(pl.Int64) - 1)
        .join_asof(
            ends.with_columns(pl.col(SUMS).cum_sum().over("flow")),
            left_on="before",
            right_on="known_s",
            by="flow",
            check_sortedness=False,
        )
        .join_asof(everyone.drop(SUMS), left_on="before", right_on="known_s", check_sortedness=False)
        .with_columns([pl.coalesce(name, f"{name}_all", pl.lit(0)).alias(name) for name in SUMS])
        .with_columns(work=expected_work(*(pl.col(name) for name in ("requests", "prompt", *SUMS))))
        .select("second", "flow", "requests", "prompt", "work")
    )


def _add_by_second(sums: NDArray[np.int64], rows: pl.DataFrame) -> None:
    """Add all columns but the first, known_s, to ``sums``, (columns, seconds); later seconds are left out."""
    rows = rows.filter(pl.col("known_s") < sums.shape[1])
    for total, values in zip(sums, rows.get_columns()[1:], strict=True):
        np.add.at(total, rows["known_s"].to_numpy(), values.to_numpy())


def _turns(rows: pl.DataFrame, flows: pl.DataFrame) -> pl.DataFrame:
    """Turns of sessions; a name is one session within a tenant."""
    turns = rows.filter(pl.col("session").is_not_null())
    owner = pl.Series("owner", _numbers(flows, ["tenant"])).gather(turns["flow"])
    return turns.select(owner, "session", "second", "known_s")


def _waits(turns: pl.DataFrame, until_s: int) -> NDArray[np.int32]:
    """Waits, as `features.returns.waits` has them, that began before ``until_s``."""
    name = ["owner", "session"]
    names = turns.select(name).unique().with_row_index("number").lazy()
    numbered = turns.lazy().join(names, on=name).select("number", "second", "known_s").cast(pl.Int64)
    waited = waits(numbered.rename({"number": "session"}).collect())
    return np.minimum(waited[:, waited[0] < until_s], np.iinfo(np.int32).max).astype(np.int32)
