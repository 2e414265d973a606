"""Every column of the telemetry lake and its unit, once.

Time is UTC, stored as microseconds. A value that the source does not give is null: unknown is never zero.
"""

from dataclasses import dataclass

import polars as pl
from polars.datatypes import DataType

LANES = ("premium", "standard", "batch")
"""The SLO classes of a request, best first."""

OUTCOMES = ("served", "failed", "shed", "aborted")
"""How a request ended: answered, failed in the engine, refused by the gate, or left by the client."""

UTC_US = pl.Datetime("us", "UTC")


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its polars type, its DuckDB type, whether every row has it, and what it means."""

    name: str
    polars: DataType
    duckdb: str
    required: bool
    meaning: str


REQUESTS: tuple[Column, ...] = (
    Column("source", pl.String(), "VARCHAR", True, "trace or gateway that the row comes from"),
    Column("request_id", pl.String(), "VARCHAR", True, "unique within the source"),
    Column(
        "arrived_at", UTC_US, "TIMESTAMPTZ", True, "arrival; traces without a date start at the Unix epoch"
    ),
    Column("tenant", pl.String(), "VARCHAR", False, "who pays"),
    Column("lane", pl.String(), "VARCHAR", False, "premium, standard or batch"),
    Column("model", pl.String(), "VARCHAR", False, "model asked for"),
    Column("session", pl.String(), "VARCHAR", False, "conversation that the request continues"),
    Column("log_type", pl.String(), "VARCHAR", False, "the source's own mark, such as 'API log' or 'search'"),
    Column("prompt_tokens", pl.Int64(), "BIGINT", True, "tokens in the prompt, cached ones included"),
    Column("cached_tokens", pl.Int64(), "BIGINT", False, "prompt tokens served from the prefix cache"),
    Column("max_tokens", pl.Int64(), "BIGINT", False, "the client's limit on output tokens"),
    Column("output_tokens", pl.Int64(), "BIGINT", False, "tokens generated; null until the request finished"),
    Column("finished_at", UTC_US, "TIMESTAMPTZ", False, "last token, refusal or abort"),
    Column("outcome", pl.String(), "VARCHAR", False, "served, failed, shed or aborted"),
    Column("retry_of", pl.String(), "VARCHAR", False, "request_id of the attempt that this one repeats"),
    Column(
        "block_hashes", pl.List(pl.Int64()), "BIGINT[]", False, "prefix-chained ids of the prompt's KV blocks"
    ),
    Column("block_tokens", pl.Int32(), "INTEGER", False, "tokens in a full KV block of block_hashes"),
    Column("images", pl.Int64(), "BIGINT", False, "images in the prompt"),
)

OUTCOME_ROWS: tuple[Column, ...] = (
    Column("source", pl.String(), "VARCHAR", True, "gateway or service that the request came through"),
    Column("request_id", pl.String(), "VARCHAR", True, "of a row of requests that had no end yet"),
    Column("finished_at", UTC_US, "TIMESTAMPTZ", True, "last token, refusal or abort"),
    Column("output_tokens", pl.Int64(), "BIGINT", False, "tokens generated"),
    Column("cached_tokens", pl.Int64(), "BIGINT", False, "prompt tokens served from the prefix cache"),
    Column("outcome", pl.String(), "VARCHAR", True, "served, failed, shed or aborted"),
)

ENGINE_SAMPLES: tuple[Column, ...] = (
    Column("source", pl.String(), "VARCHAR", True, "name of the scrape target"),
    Column("at", UTC_US, "TIMESTAMPTZ", True, "when it was read, by our clock"),
    Column("engine", pl.String(), "VARCHAR", True, "engine within the target; '' where there is only one"),
    Column("kind", pl.String(), "VARCHAR", False, "vllm, sglang, trtllm or triton; null where unknown"),
    Column("model", pl.String(), "VARCHAR", False, "model that the engine serves"),
    Column("state", pl.String(), "VARCHAR", True, "ok, suspect or failed"),
    Column("reason", pl.String(), "VARCHAR", False, "why it is suspect or failed, or what was dropped"),
    Column("waiting", pl.Int64(), "BIGINT", False, "requests waiting for capacity"),
    Column("running", pl.Int64(), "BIGINT", False, "requests in the running batch"),
    Column("kv_cache_usage", pl.Float64(), "DOUBLE", False, "share of KV blocks in use, 0 to 1"),
    Column("kv_blocks", pl.Int64(), "BIGINT", False, "KV blocks that the engine has"),
    Column("kv_block_tokens", pl.Int64(), "BIGINT", False, "tokens in a KV block"),
    Column("interval_s", pl.Float64(), "DOUBLE", False, "time since the reading that the rates count from"),
    Column("prefix_hit_rate", pl.Float64(), "DOUBLE", False, "cached over looked-up prompt tokens, 0 to 1"),
    Column("prompt_tokens_per_s", pl.Float64(), "DOUBLE", False, "prompt tokens processed"),
    Column("output_tokens_per_s", pl.Float64(), "DOUBLE", False, "tokens generated"),
    Column("requests_per_s", pl.Float64(), "DOUBLE", False, "requests finished"),
    Column("preemptions_per_s", pl.Float64(), "DOUBLE", False, "requests that lost their KV blocks"),
    Column("ttft_mean_s", pl.Float64(), "DOUBLE", False, "time to first token, mean of the interval"),
    Column("tpot_mean_s", pl.Float64(), "DOUBLE", False, "time per output token, mean of the interval"),
    Column("queue_time_mean_s", pl.Float64(), "DOUBLE", False, "time in the engine's queue, mean"),
)

DECISIONS: tuple[Column, ...] = (
    Column("source", pl.String(), "VARCHAR", True, "service that decided"),
    Column("request_id", pl.String(), "VARCHAR", True, "of the row of requests that it decided on"),
    Column("at", UTC_US, "TIMESTAMPTZ", True, "when"),
    Column("tenant", pl.String(), "VARCHAR", False, "who pays"),
    Column("lane", pl.String(), "VARCHAR", True, "lane that it was judged in"),
    Column("admitted", pl.Boolean(), "BOOLEAN", True, "let through"),
    Column("reason", pl.String(), "VARCHAR", False, "rule that refused; null when admitted"),
    Column("retry_after_ms", pl.Int64(), "BIGINT", False, "when the client was told to come back"),
    Column("tightening", pl.Float64(), "DOUBLE", True, "level that the forecast applied to the rules"),
    Column("tightened", pl.Boolean(), "BOOLEAN", True, "refused by the forecast: the rules alone admit"),
    Column("backpressure", pl.Float64(), "DOUBLE", True, "score that it was decided under, 0 to 1"),
    Column("expected_output_tokens", pl.Int64(), "BIGINT", True, "output that was reserved, or would be"),
)

FORECASTS: tuple[Column, ...] = (
    Column("source", pl.String(), "VARCHAR", True, "service that forecast"),
    Column("tick_at", UTC_US, "TIMESTAMPTZ", True, "the tick"),
    Column("bundle", pl.String(), "VARCHAR", True, "version of the bundle"),
    Column("state", pl.String(), "VARCHAR", True, "active, advisory, warming up, late or dead"),
    Column("p_onset", pl.Float64(), "DOUBLE", False, "probability of a burst onset within 60 s"),
    Column("score", pl.Float64(), "DOUBLE", False, "what the guard compared with the threshold"),
    Column("threshold", pl.Float64(), "DOUBLE", False, "null while advisory"),
    Column("alarm", pl.Boolean(), "BOOLEAN", True, "the forecast tightens the gate"),
    Column("denied", pl.Boolean(), "BOOLEAN", True, "over the threshold, and the budget refused"),
    Column("tightening_target", pl.Float64(), "DOUBLE", True, "level that the alarm asks for"),
    Column("baseline_tokens_per_s", pl.Float64(), "DOUBLE", False, "load known as normal"),
    Column("peak_p50_tokens_per_s", pl.Float64(), "DOUBLE", False, "median of the highest load in 60 s"),
    Column("peak_p90_tokens_per_s", pl.Float64(), "DOUBLE", False, "its 90 % quantile"),
)

LEDGER: tuple[Column, ...] = (
    Column("source", pl.String(), "VARCHAR", True, "service whose alarms are judged"),
    Column("tick_at", UTC_US, "TIMESTAMPTZ", True, "a tick whose horizon has passed"),
    Column("eligible", pl.Boolean(), "BOOLEAN", True, "outside events and holes, so that it counts"),
    Column("alarm", pl.Boolean(), "BOOLEAN", True, "it had an alarm"),
    Column("tightened", pl.Boolean(), "BOOLEAN", True, "the gate stood tightened"),
    Column("onset_at", UTC_US, "TIMESTAMPTZ", False, "the next onset, where one came within 60 s"),
)

QUARANTINE: tuple[Column, ...] = (
    Column("source", pl.String(), "VARCHAR", True, "trace or gateway that the row comes from"),
    Column("file", pl.String(), "VARCHAR", True, "name of the file, or the way that the row came in"),
    Column("line", pl.Int64(), "BIGINT", True, "line in the file, from 1; the row in a Parquet file or body"),
    Column("reason", pl.String(), "VARCHAR", True, "what is wrong with the row"),
    Column("raw", pl.String(), "VARCHAR", True, "the row as it stands in the file"),
    Column("at", UTC_US, "TIMESTAMPTZ", False, "when it was set aside"),
)

INGESTS: tuple[Column, ...] = (
    Column("sha256", pl.String(), "VARCHAR", True, "of the ingested file"),
    Column("source", pl.String(), "VARCHAR", True, "name that its rows carry"),
    Column("rows", pl.Int64(), "BIGINT", True, "rows read"),
    Column("stored", pl.Int64(), "BIGINT", True, "rows added to requests"),
    Column("quarantined", pl.Int64(), "BIGINT", True, "rows added to quarantine"),
    Column("duplicates", pl.Int64(), "BIGINT", True, "rows left out: their request_id was there already"),
    Column("at", UTC_US, "TIMESTAMPTZ", True, "when the ingest was committed"),
    Column("semi_synthetic", pl.Boolean(), "BOOLEAN", False, "arrivals drawn from a fitted model, not seen"),
)


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the lake; `time` is the column that its age and its day partitions go by."""

    name: str
    columns: tuple[Column, ...]
    time: str | None = None

    @property
    def polars(self) -> dict[str, DataType]:
        """Column name to polars type."""
        return {column.name: column.polars for column in self.columns}


TABLES: tuple[Table, ...] = (
    Table("requests", REQUESTS, "arrived_at"),
    Table("outcomes", OUTCOME_ROWS, "finished_at"),
    Table("engine_samples", ENGINE_SAMPLES, "at"),
    Table("decisions", DECISIONS, "at"),
    Table("forecasts", FORECASTS, "tick_at"),
    Table("ledger", LEDGER, "tick_at"),
    Table("quarantine", QUARANTINE, "at"),
    Table("ingests", INGESTS, "at"),
)
"""Every table. `requests` may hold a row whose end comes later: `outcomes` then has it."""

POLARS_REQUESTS: dict[str, DataType] = {column.name: column.polars for column in REQUESTS}
"""Column name to polars type: the schema of every frame of requests."""


def work_tokens() -> pl.Expr:
    """Work of a request in tokens: prompt tokens not served from cache + output tokens.

    A source that says nothing about its cache counts every prompt token; a request whose output is still
    unknown counts its prompt alone. Labels use this expression, features never do: realised output is not
    known at a tick.

    >>> row = {"prompt_tokens": [100], "cached_tokens": [40], "output_tokens": [25]}
    >>> pl.DataFrame(row).select(work_tokens()).item()
    85
    """
    return (
        pl.col("prompt_tokens") - pl.col("cached_tokens").fill_null(0) + pl.col("output_tokens").fill_null(0)
    ).alias("work_tokens")
