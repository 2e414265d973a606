"""Azure LLM inference traces (2023, and the week of 2024): CSV TIMESTAMP, ContextTokens, GeneratedTokens.

The stamps carry no zone and are UTC. The trace does not tell when a request finished.
https://github.com/Azure/AzurePublicDataset
"""

import polars as pl

from data.readers.fields import timestamp, tokens
from data.readers.format import Format

FORMAT = Format(
    name="azure",
    title="Azure LLM CSV",
    kinds=("csv",),
    required=("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    fields=(
        timestamp("arrived_at", "TIMESTAMP"),
        tokens("prompt_tokens", "ContextTokens"),
        tokens("output_tokens", "GeneratedTokens"),
    ),
    derived={"outcome": pl.lit("served")},
)
