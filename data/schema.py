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
)

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
