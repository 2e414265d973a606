"""Trace readers: any known format, streamed, in the request schema.

for batch in read_batches("AzureLLMInferenceTrace_conv.csv"):
    batch.requests     # polars, schema POLARS_REQUESTS
    batch.quarantine   # source, file, line, reason, raw
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from data.errors import InputError
from data.readers.batch import POLARS_QUARANTINE, Batch
from data.readers.format import Format, Rows, check
from data.readers.lines import BLOCK_BYTES, csv_rows, json_rows
from data.readers.parquet import parquet_rows
from data.readers.sniff import FORMATS, Sniffed, inspect, sniff

__all__ = [
    "FORMATS",
    "POLARS_QUARANTINE",
    "Batch",
    "Format",
    "Trace",
    "load_trace",
    "read_batches",
    "sha256_of",
    "sniff",
]


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole trace in memory; `requests` are sorted by arrival, ties in the order of the file."""

    name: str
    format: str
    sha256: str
    requests: pl.DataFrame
    quarantined: pl.DataFrame


def read_batches(path: str | Path, *, source: str | None = None) -> Iterator[Batch]:
    """Stream a trace in batches of about 250,000 rows, in the order of the file.

    `source` names the trace; by default it is the file's name without its ending. Raises InputError for a
    file that `sniff` refuses, at once, and for one without a single good row, at its end.
    """
    path = Path(path)
    return _stream(path, inspect(path), source or path.stem)


def load_trace(path: str | Path, *, source: str | None = None) -> Trace:
    """Read a whole trace into memory. Raises InputError as `read_batches` does."""
    path = Path(path)
    batches = list(read_batches(path, source=source))
    return Trace(
        name=source or path.stem,
        format=sniff(path).name,
        sha256=sha256_of(path),
        requests=pl.concat([b.requests for b in batches]).sort("arrived_at", maintain_order=True),
        quarantined=pl.concat([b.quarantine for b in batches]),
    )


def sha256_of(path: str | Path) -> str:
    """SHA-256 of a file, in hex."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _stream(path: Path, sniffed: Sniffed, source: str) -> Iterator[Batch]:
    good, first_reason = 0, ""
    for rows in _rows(path, sniffed):
        batch = check(rows, sniffed.form, source=source, file=path.name, lines_before=sniffed.header_line)
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
        return parquet_rows(path)
    if sniffed.kind == "jsonl":
        return json_rows(path, sniffed.columns, BLOCK_BYTES)
    return csv_rows(path, sniffed.columns, sniffed.header_line, BLOCK_BYTES)
