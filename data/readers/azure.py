"""Azure inference traces: LLM 2023, the week of LLM 2024, and LMM 2025, which counts images as well.

CSV TIMESTAMP, ContextTokens, GeneratedTokens, and maybe NumImages. Stamps of 2023 carry no zone and are UTC;
2024 writes an offset and, in the same file, leaves out a fraction that is zero; 2025 writes T and Z. The
traces do not tell when a request finished.
https://github.com/Azure/AzurePublicDataset
"""

import polars as pl

from data.readers.fields import images, timestamp, tokens
from data.readers.format import Format

FORMAT = Format(
    name="azure",
    title="Azure LLM CSV",
    kinds=("csv",),
    required=("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    optional=("NumImages",),
    fields=(
        timestamp("arrived_at", "TIMESTAMP"),
        tokens("prompt_tokens", "ContextTokens"),
        tokens("output_tokens", "GeneratedTokens"),
        images("images", "NumImages"),
    ),
    derived={"outcome": pl.lit("served")},
)
