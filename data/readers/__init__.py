"""Trace readers: any known format, streamed, in the request schema.

for batch in read_batches("AzureLLMInferenceTrace_conv.csv"):
    batch.requests     # polars, schema POLARS_REQUESTS
    batch.quarantine   # source, file, line, reason, raw
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from data.config import Mapping
from data.errors import InputError
from data.readers.batch import POLARS_QUARANTINE, Batch
from data.readers.blocks import BLOCK_BYTES
from data.readers.csv_rows import csv_rows
from data.readers.format import Format, Rows, check
from data.readers.gzipped import trace_name
from data.readers.json_rows import json_rows
from data.readers.parquet import parquet_rows
from data.readers.sniff import FORMATS, Sniffed, inspect, sniff

__all__ = [
    "FORMATS",
    "POLARS_QUARANTINE",
    "Batch",
    "Format",
    "Trace",
    "inspect",
    "load_trace",
    "read_batches",
    "sha256_of",
    "sniff",
    "trace_name",
]


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole trace in memory; `requests` are sorted by arrival, ties in the order of the file.

    `semi_synthetic` says that its arrivals were drawn from a fitted model: results on it are not results on
    recorded traffic.
    """

    name: str
    format: str
    sha256: str
    requests: pl.DataFrame
    quarantined: pl.DataFrame
    semi_synthetic: bool = False


def read_batches(
    path: str | Path, *, source: str | None = None, mapping: Mapping | None = None
) -> Iterator[Batch]:
    """Stream a trace, plain or compressed with gzip, in batches of about 250,000 rows in the file's order.

    `source` names the trace; by default it is the file's name without its ending. `mapping` is for files
    whose columns are not those of a known format.

    Raises InputError for a file that `sniff` refuses, at once; at its end for one without a single good row;
    and for a gzip file that is cut, after the rows before that place.
    """
    path = Path(path)
    return _stream(path, inspect(path, mapping), source or trace_name(path))


def load_trace(path: str | Path, *, source: str | None = None, mapping: Mapping | None = None) -> Trace:
    """Read a whole trace into memory. Raises InputError as `read_batches` does."""
    path = Path(path)
    sniffed = inspect(path, mapping)
    batches = list(_stream(path, sniffed, source or trace_name(path)))
    return Trace(
        name=source or trace_name(path),
        format=sniffed.form.name,
        sha256=sha256_of(path),
        requests=pl.concat([b.requests for b in batches]).sort("arrived_at", maintain_order=True),
        quarantined=pl.concat([b.quarantine for b in batches]),
        semi_synthetic=sniffed.semi_synthetic,
    )


def sha256_of(path: str | Path) -> str:
    """SHA-256 of a file, in hex."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _stream(path: Path, sniffed: Sniffed, source: str) -> Iterator[Batch]:
    form = sniffed.form
    prepare = form.prepare() if form.prepare else None
    # Numbers start again in every file, and a source may have several.
    scope = source if source == trace_name(path) else f"{source}/{trace_name(path)}"
    good, first_reason = 0, ""
    for rows in _rows(path, sniffed):
        prepared = replace(rows, values=prepare(rows.values)) if prepare else rows
        batch = check(
            prepared, form, source=source, scope=scope, file=path.name, lines_before=sniffed.header_line
        )
        good += batch.requests.height
        if not first_reason and batch.quarantine.height:
            first_reason = f"line {batch.quarantine['line'][0]}: {batch.quarantine['reason'][0]}"
        yield batch
    if not good:
        raise InputError(
            f"{path} has no row that can be read; {first_reason}"
            if first_reason
            else f"{path} has a header but no rows; a trace has at least one request"
        )


def _rows(path: Path, sniffed: Sniffed) -> Iterator[Rows]:
    if sniffed.kind == "parquet":
        return parquet_rows(path, sniffed.columns)
    if sniffed.kind == "jsonl":
        return json_rows(path, sniffed.columns, BLOCK_BYTES, extra=sniffed.form.extra)
    return csv_rows(path, sniffed.columns, sniffed.header_line, BLOCK_BYTES)
