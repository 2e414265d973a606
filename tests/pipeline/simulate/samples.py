"""Small traces, fleets and calls, and ticks laid out by hand."""

from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from data.schema import POLARS_REQUESTS
from pipeline.simulate.calls import Call
from pipeline.simulate.fleet import Fleet
from serving.controller.engine_model import EngineProfile

FIRST = datetime(2026, 1, 5, 9, tzinfo=UTC)
PLAIN = EngineProfile(
    name="plain",
    prefill_base_s=0.0,
    prefill_s_per_token=0.001,
    prefill_floor_s=0.001,
    decode_base_s=0.010,
    decode_s_per_request=0.001,
    kv_blocks=600,
)
"""A millisecond a prompt token, ten a decode step and one more a request; room for 9,600 tokens."""


def requests(*rows: dict[str, Any]) -> pl.DataFrame:
    """Requests at `at_s` seconds; of 100 prompt and 20 output tokens where nothing else is said."""
    told = [
        {
            "source": "sample",
            "request_id": str(number),
            "arrived_at": FIRST + timedelta(seconds=row.get("at_s", 0.0)),
            "prompt_tokens": 100,
            "output_tokens": 20,
        }
        | {name: value for name, value in row.items() if name != "at_s"}
        for number, row in enumerate(rows)
    ]
    return pl.DataFrame(told, schema=POLARS_REQUESTS)


def call(at_s: float, prompt: int = 100, output: int = 20, lane: str = "standard", **told: Any) -> Call:
    """A call of a tenant without a name."""
    values = {"cached_tokens": None, "max_tokens": None, "tenant": None, "model": None} | told
    return Call(at_s, prompt_tokens=prompt, output_tokens=output, lane=lane, **values)


def fleet(replicas: int = 1, **changed: Any) -> Fleet:
    """Replicas of the plain profile."""
    values = {name: getattr(PLAIN, name) for name in PLAIN.__dataclass_fields__} | changed
    return Fleet(EngineProfile(**values), replicas, load=0.5)


def ticks(first_s: int, count: int, onsets: tuple[int, ...] = (), **columns: Any) -> pl.DataFrame:
    """Ticks of a span: eligible and without alarm, unless told otherwise."""
    t_s = range(first_s, first_s + 5 * count, 5)
    frame = pl.DataFrame(
        {
            "t_s": t_s,
            "alarm": 0,
            "tightening": 0.0,
            "eligible": True,
            "next_onset_s": [min((x for x in onsets if x > t), default=None) for t in t_s],
        },
        schema={
            "t_s": pl.Int64(),
            "alarm": pl.Int8(),
            "tightening": pl.Float64(),
            "eligible": pl.Boolean(),
            "next_onset_s": pl.Int64(),
        },
    )
    return frame.with_columns(**{name: pl.Series(values) for name, values in columns.items()})
