"""Mooncake traces (FAST'25): JSONL timestamp, input_length, output_length, hash_ids.

Timestamps are milliseconds from the start; hash_ids name the prompt's 512-token blocks, the last one partial.

https://github.com/kvcache-ai/Mooncake
"""

import polars as pl

from data.readers.fields import integers, seconds, tokens
from data.readers.format import Format

BLOCK_TOKENS = 512

FORMAT = Format(
    name="mooncake",
    title="Mooncake JSONL",
    kinds=("jsonl",),
    required=("timestamp", "input_length", "output_length", "hash_ids"),
    fields=(
        seconds("arrived_at", "timestamp", per_second=1000),
        tokens("prompt_tokens", "input_length"),
        tokens("output_tokens", "output_length"),
        integers("block_hashes", "hash_ids"),
    ),
    derived={"outcome": pl.lit("served"), "block_tokens": pl.lit(BLOCK_TOKENS, dtype=pl.Int32)},
)
