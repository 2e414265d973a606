"""Measured prefill and decode times of engines, as the Splitwise simulator publishes them.

The file is https://github.com/mutinifni/splitwise-sim, data/perf_model.csv: one row a run of one batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from data.errors import InputError

_NUMBERS = {
    "tensor_parallel": "tensor_parallel",
    "prompt_size": "prompt_tokens",
    "batch_size": "batch",
    "prompt_time": "prefill_s",
    "token_time": "decode_step_s",
}
"""Column of the file to column of the frame; times are milliseconds in the file."""
MOST_TOKENS = 1e9
_COUNTS = ("tensor_parallel", "prompt_size", "batch_size")
_NAMES = ("model", "hardware")


@dataclass(frozen=True, slots=True)
class Measurements:
    """What a file of measurements holds.

    Attributes:
        rows: model, hardware, tensor_parallel, prompt_tokens (of one prompt), batch (requests), prefill_s (of
            the whole batch), decode_step_s.
        refused: rows left out, by reason.

    """

    rows: pl.DataFrame
    refused: Mapping[str, int]


def read_measurements(path: Path) -> Measurements:
    """Read a file of measurements; a row with a missing or impossible value is left out and counted.

    Raises:
        InputError: when the file can't be read or lacks a column.

    """
    try:
        raw = pl.read_csv(path, infer_schema=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"Measurements {path} can't be read as CSV: {error}") from error
    missing = [name for name in (*_NAMES, *_NUMBERS) if name not in raw.columns]
    if missing:
        raise InputError(
            f"Measurements {path} must have the columns {', '.join((*_NAMES, *_NUMBERS))}; "
            f"missing: {', '.join(missing)}."
        )
    numbers = raw.select(
        *(pl.col(name).str.strip_chars().replace("", None) for name in _NAMES),
        *(pl.col(name).str.strip_chars().cast(pl.Float64, strict=False) for name in _NUMBERS),
    )
    judged = numbers.with_columns(
        pl.coalesce(
            *(_unless(pl.col(name).is_not_null(), f"{name} is missing") for name in _NAMES),
            *(
                _unless(
                    pl.col(name).is_between(0, float("inf"), closed="none"), f"{name} is no number over 0"
                )
                for name in _NUMBERS
            ),
            *(
                _unless(
                    (pl.col(name) % 1 == 0) & (pl.col(name) < MOST_TOKENS),
                    f"{name} is no whole number under 1e9",
                )
                for name in _COUNTS
            ),
        ).alias("reason")
    )
    refused = judged.drop_nulls("reason")["reason"].value_counts(sort=True)
    rows = judged.filter(pl.col("reason").is_null()).select(
        *_NAMES,
        *(pl.col(name).cast(pl.Int64).alias(_NUMBERS[name]) for name in _COUNTS),
        *((pl.col(name) / 1e3).alias(_NUMBERS[name]) for name in ("prompt_time", "token_time")),
    )
    return Measurements(rows, dict(refused.iter_rows()))


def choose(
    rows: pl.DataFrame,
    *,
    model: str | None = None,
    hardware: str | None = None,
    tensor_parallel: int | None = None,
) -> pl.DataFrame:
    """Rows of one engine; what is not said must follow from what is there.

    Raises:
        InputError: when no engine or more than one fits; it lists those that are there.

    """
    asked = {"model": model, "hardware": hardware, "tensor_parallel": tensor_parallel}
    kinds = rows.select(*asked).unique().sort(*asked)
    said = {name: value for name, value in asked.items() if value is not None}
    fitting = kinds.filter(*(pl.col(name) == value for name, value in said.items()))
    if len(fitting) == 1:
        return rows.join(fitting, on=list(asked))
    if kinds.is_empty():
        raise InputError("Measurements: no usable row is left.")
    options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in said.items())
    there = kinds if fitting.is_empty() else fitting
    listed = "; ".join(f"{name}, {on}, {wide}" for name, on, wide in there.rows())
    raise InputError(
        f"Measurements: {options or 'nothing chosen'} fits {len(fitting)} engines, it must fit one. "
        f"There are (model, hardware, tensor_parallel): {listed}."
    )


def _unless(good: pl.Expr, reason: str) -> pl.Expr:
    return pl.when(good.fill_null(value=False)).then(None).otherwise(pl.lit(reason))
