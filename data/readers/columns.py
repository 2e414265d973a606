"""Columns of the request schema read from columns of a file, whatever those are called."""

from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from data.readers.fields import Field, choice, count, images, integers, text, timestamp, tokens
from data.schema import LANES, OUTCOMES, REQUESTS

REQUIRED = ("arrived_at", "prompt_tokens")
"""What a row must have; without a request_id it is called by its number."""

READABLE = tuple(column.name for column in REQUESTS if column.name != "source")
"""What a file can give: `source` is the name that it is read under."""

MOST_BLOCK_TOKENS = 1_000_000


def request_fields(
    raws: Mapping[str, str], *, required: tuple[str, ...] = REQUIRED, per_second: int = 1, zone: str = "UTC"
) -> tuple[Field, ...]:
    """One field for each schema column of `raws`, which names the file's column for it.

    Times may be text, in `zone` where they name no offset, or numbers, `per_second` of which make a second.
    """

    def read(name: str, raw: str) -> Field:
        needed = name in required
        if name.endswith("_at"):
            return timestamp(name, raw, numbers=True, per_second=per_second, zone=zone, required=needed)
        return _field(name, raw, needed)

    fields = {name: read(name, raw) for name, raw in raws.items()}
    if cached := fields.get("cached_tokens"):
        fields["cached_tokens"] = replace(
            cached,
            rule=f"a whole number from 0 to {raws.get('prompt_tokens', 'prompt_tokens')}",
            wrong=~pl.col("cached_tokens").is_between(0, pl.col("prompt_tokens")),
        )
    if finished := fields.get("finished_at"):
        fields["finished_at"] = replace(
            finished,
            rule=f"{finished.rule}, and not before {raws.get('arrived_at', 'arrived_at')}",
            wrong=finished.wrong_or(pl.col("finished_at") < pl.col("arrived_at")),
        )
    return tuple(fields.values())


def _field(name: str, raw: str, required: bool) -> Field:
    """A schema column that is not a time."""
    if name == "lane":
        return choice(name, raw, LANES, required=required)
    if name == "outcome":
        return choice(name, raw, OUTCOMES, required=required)
    if name == "block_hashes":
        return integers(name, raw, required=required)
    if name == "block_tokens":
        return count(name, raw, MOST_BLOCK_TOKENS, required=required)
    if name == "images":
        return images(name, raw, required=required)
    if name.endswith("_tokens"):
        return tokens(name, raw, required=required)
    return text(name, raw, required=required)
