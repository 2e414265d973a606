"""Parquet files as rows of text, so that they pass the same checks as every other form."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import polars as pl

from data.errors import InputError
from data.readers.blocks import clipped
from data.readers.format import Rows, numbered

BATCH_ROWS = 250_000
ISO = "%Y-%m-%d %H:%M:%S%.6f"


def parquet_columns(path: Path) -> pl.Schema:
    """Names and types of the file's columns; InputError where it is damaged."""
    try:
        return pl.scan_parquet(path, glob=False).collect_schema()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{path} can't be read as Parquet: {str(error).splitlines()[0]}") from error


def parquet_rows(path: Path, columns: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[Rows]:
    """These columns of the file, `batch_rows` rows at a time; the line number is the row, from 1."""
    schema = parquet_columns(path)
    texts = [_as_text(name, schema[name]) for name in columns]
    scan = pl.scan_parquet(path, glob=False)
    try:
        rows = scan.select(pl.len()).collect().item()
        for start in range(0, rows, batch_rows):
            values = scan.slice(start, batch_rows).select(texts).collect()
            share_bytes = path.stat().st_size * values.height // rows
            yield Rows(numbered(values, start + 1), (), partial(_raw, values, start + 1), share_bytes)
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{path} can't be read as Parquet: {str(error).splitlines()[0]}") from error


def _raw(values: pl.DataFrame, first: int, numbers: Sequence[int]) -> list[str]:
    """Each of these rows as a JSON object."""
    rows = values[[number - first for number in numbers]]
    texts = rows.select(pl.struct(pl.all()).struct.json_encode()).to_series()
    return [clipped(row, len(row)) for row in (text.encode() for text in texts)]


def _as_text(name: str, dtype: pl.DataType) -> pl.Expr:
    """The column as the text that a CSV would hold."""
    value = pl.col(name)
    if isinstance(dtype, pl.Datetime):
        if dtype.time_zone is None:
            return value.dt.strftime(ISO)
        return value.dt.convert_time_zone("UTC").dt.strftime(ISO + "+00:00")
    if isinstance(dtype, pl.List):
        inner = value.cast(pl.List(pl.String)).list.join(",", ignore_nulls=False)
        return pl.format("[{}]", inner).alias(name)
    return value.cast(pl.String)
