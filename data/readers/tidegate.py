"""Our own form: CSV, JSONL or Parquet whose columns are those of the request schema.

request_id, arrived_at and prompt_tokens must be there; every other column may be. A column `source` may be
there too, but gives way to the name that the trace is read under.
"""

from dataclasses import replace

import polars as pl

from data.readers.fields import Field, choice, integers, text, timestamp, tokens
from data.readers.format import Format
from data.schema import LANES, OUTCOMES, REQUESTS

REQUIRED = ("request_id", "arrived_at", "prompt_tokens")


def _field(name: str) -> Field:
    """The schema column of that name, read from a trace column of the same name."""
    required = name in REQUIRED
    if name == "lane":
        return choice(name, name, LANES)
    if name == "outcome":
        return choice(name, name, OUTCOMES)
    if name == "block_hashes":
        return integers(name, name, required=False)
    if name.endswith("_tokens"):
        return tokens(name, name, required=required)
    if name == "images":
        return tokens(name, name, required=required)
    if name.endswith("_at"):
        return timestamp(name, name, numbers=True, required=required)
    return text(name, name, required=required)


def _fields() -> tuple[Field, ...]:
    fields = {column.name: _field(column.name) for column in REQUESTS if column.name != "source"}
    finished = fields["finished_at"]
    fields["cached_tokens"] = replace(
        fields["cached_tokens"],
        rule="a whole number from 0 to prompt_tokens",
        wrong=~pl.col("cached_tokens").is_between(0, pl.col("prompt_tokens")),
    )
    fields["finished_at"] = replace(
        finished,
        rule=f"{finished.rule}, and not before arrived_at",
        wrong=pl.col("finished_at") < pl.col("arrived_at"),
    )
    return tuple(fields.values())


FORMAT = Format(
    name="tidegate",
    title="Tidegate CSV, JSONL or Parquet",
    kinds=("csv", "jsonl", "parquet"),
    required=REQUIRED,
    optional=tuple(column.name for column in REQUESTS if column.name not in REQUIRED),
    fields=_fields(),
)
