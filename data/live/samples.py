"""What one engine said at one time, as a row of the lake."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

import polars as pl

from data.schema import ENGINE_SAMPLES

LONGEST_REASON = 500


def reason_of(notes: Iterable[str | None]) -> str | None:
    """The notes as one reason, each once and no longer than the lake needs; None without any.

    >>> reason_of(["waiting is NaN", None, "waiting is NaN", "running is NaN"])
    'waiting is NaN; running is NaN'

    """
    text = "; ".join(dict.fromkeys(note for note in notes if note))
    return (text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 3] + "...") or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A row of engine_samples; see there for the meanings. None is unknown, `at_us` microseconds of UTC."""

    source: str
    at_us: int
    engine: str
    state: Literal["ok", "suspect", "failed"]
    kind: str | None = None
    model: str | None = None
    reason: str | None = None
    waiting: int | None = None
    running: int | None = None
    kv_cache_usage: float | None = None
    kv_blocks: int | None = None
    kv_block_tokens: int | None = None
    interval_s: float | None = None
    prefix_hit_rate: float | None = None
    prompt_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None
    requests_per_s: float | None = None
    preemptions_per_s: float | None = None
    ttft_mean_s: float | None = None
    tpot_mean_s: float | None = None
    queue_time_mean_s: float | None = None


def frame(samples: Iterable[Sample]) -> pl.DataFrame:
    """Samples as rows of engine_samples.

    >>> row = frame([Sample(source="pool", at_us=1_700_000_000_000_000, engine="0", state="ok", waiting=3)])
    >>> row.select("source", "at", "engine", "state", "waiting", "running").rows()[0][2:]
    ('0', 'ok', 3, None)

    """
    rows = [asdict(sample) for sample in samples]
    for row in rows:
        row["at"] = row.pop("at_us")
    return pl.DataFrame(rows, schema={column.name: column.polars for column in ENGINE_SAMPLES})
