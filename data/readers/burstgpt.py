"""BurstGPT traces: CSV of 6 columns, or 8 with Session ID and Elapsed time; the header decides.

Timestamp is in seconds from a day that the trace does not name, so it starts at the Unix epoch. A row with
no response tokens is a request that failed: it was offered, and not served. Session ids start again in every
part.
https://github.com/HPMLL/BurstGPT
"""

from dataclasses import replace

import polars as pl

from data.readers.fields import Field, seconds, since_epoch, text, tokens
from data.readers.format import Format
from data.schema import UTC_US


def _finished_at() -> Field:
    """Arrival plus Elapsed time, which runs to the last token."""
    elapsed = seconds("finished_at", "Elapsed time", required=False)
    micros = since_epoch("Timestamp").cast(pl.Int64) + elapsed.value.cast(pl.Int64)
    return replace(
        elapsed,
        value=micros.cast(UTC_US),
        rule="a number of seconds, 0 or more",
        wrong=pl.col("finished_at") < pl.col("arrived_at"),
    )


FORMAT = Format(
    name="burstgpt",
    title="BurstGPT CSV",
    kinds=("csv",),
    required=("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type"),
    optional=("Session ID", "Elapsed time"),
    fields=(
        seconds("arrived_at", "Timestamp"),
        text("model", "Model", required=False),
        text("session", "Session ID", required=False),
        text("log_type", "Log Type", required=False),
        tokens("prompt_tokens", "Request tokens"),
        tokens("output_tokens", "Response tokens"),
        _finished_at(),
    ),
    derived={
        "outcome": pl.when(pl.col("output_tokens") == 0).then(pl.lit("failed")).otherwise(pl.lit("served"))
    },
    scoped=("session",),
)
