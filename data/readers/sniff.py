"""Which format a file has, told by its first line and never by its name."""

import csv
import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from data.config import Mapping
from data.errors import InputError
from data.readers import azure, bailian, burstgpt, mooncake, tidegate
from data.readers.blocks import BOM, LINE_BYTES
from data.readers.format import Format
from data.readers.gzipped import opened
from data.readers.json_rows import read_object
from data.readers.mapped import check_columns, mapped_format
from data.readers.parquet import parquet_columns

FORMATS: tuple[Format, ...] = (
    azure.FORMAT,
    burstgpt.FORMAT,
    mooncake.FORMAT,
    bailian.FORMAT,
    tidegate.FORMAT,
)

SEMI_SYNTHETIC = "tidegate.semi_synthetic"
"""Key in the metadata of a Parquet file whose arrivals were drawn from a fitted model."""

FIRST_ROWS = 1_000
"""Rows of a JSONL file that are looked at for a mapping's keys, which not every row must have."""

PACKED = {
    b"PK\x03\x04": "a zip archive",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"BZh": "compressed with bzip2",
    b"\xfd7zXZ": "compressed with xz",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}
"""How files start that are no trace yet."""


@dataclass(frozen=True, slots=True)
class Sniffed:
    """A file's format, how its rows are written (csv, jsonl, parquet), its columns and its header's line.

    `columns` are those to read. `semi_synthetic` says that the arrivals were drawn from a fitted model.
    """

    form: Format
    kind: str
    columns: tuple[str, ...]
    header_line: int = 0
    semi_synthetic: bool = False


def sniff(path: str | Path) -> Format:
    """The format of a trace file.

    Raises InputError for a directory, a missing or an empty file, a format that no reader knows, and a
    column that is missing or unknown.
    """
    return inspect(Path(path)).form


def inspect(path: Path, mapping: Mapping | None = None) -> Sniffed:
    """The format, and what its first line says about the columns; with a mapping, that of the mapping."""
    try:
        if not path.exists():
            raise InputError(f"{path} doesn't exist; give the path of a trace file")
        if not path.is_file():
            raise InputError(f"{path} is not a file; give the path of one trace file")
        with path.open("rb") as file:
            start = file.read(6)
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}; give the path of a trace file") from error
    if start[:4] == b"PAR1":
        return _inspect_parquet(path, mapping)
    for mark, what in PACKED.items():
        if start.startswith(mark):
            raise InputError(f"{path} is {what}; give it as UTF-8 text, plain or compressed with gzip")
    number, line = next(_lines(path), (0, b""))
    if not number:
        raise InputError(f"{path} is empty; a trace has a header or one request a line")
    if line.startswith(b"PAR1"):
        raise InputError(f"{path} is a Parquet file compressed with gzip; unpack it first")
    if line.startswith(b"{"):
        return _inspect_json(path, mapping)
    text = line.decode(errors="replace")
    try:
        columns = tuple(name.strip() for name in next(csv.reader([text], skipinitialspace=True)))
    except csv.Error as error:
        raise InputError(f"{path} has a header that is not CSV: {error}; got {_short(text)}") from error
    _check_once(path, columns)
    if mapping is None:
        return Sniffed(_match(path, "csv", columns, text), "csv", columns, number)
    form = mapped_format(mapping)
    check_columns(mapping, columns, str(path))
    return Sniffed(form, "csv", columns, number)


def _inspect_parquet(path: Path, mapping: Mapping | None) -> Sniffed:
    columns = tuple(parquet_columns(path))
    semi_synthetic = pl.read_parquet_metadata(path).get(SEMI_SYNTHETIC) == "true"
    if mapping is None:
        form = _match(path, "parquet", columns, ", ".join(columns))
        return Sniffed(form, "parquet", columns, semi_synthetic=semi_synthetic)
    form = mapped_format(mapping)
    check_columns(mapping, columns, str(path))
    return Sniffed(form, "parquet", form.required, semi_synthetic=semi_synthetic)


def _inspect_json(path: Path, mapping: Mapping | None) -> Sniffed:
    """By the first line that is a JSON object; with a mapping, by the keys of the first rows."""
    keys: dict[str, None] = {}
    first = trouble = ""
    for looked, (number, line) in enumerate(_lines(path), 1):
        row = read_object(line)
        if isinstance(row, dict):
            keys |= dict.fromkeys(row)
            first = first or line.decode()
        trouble = trouble or f"line {number}: {row}; got {_short(line.decode(errors='replace'))}"
        if looked == FIRST_ROWS or (first and mapping is None):
            break
    if not first:
        raise InputError(f"{path} starts like JSON but isn't; {trouble}")
    if mapping is None:
        form = _match(path, "jsonl", tuple(keys), first)
        return Sniffed(form, "jsonl", form.columns)
    form = mapped_format(mapping)
    check_columns(mapping, tuple(keys), f"one of the first {FIRST_ROWS:,} rows of {path}")
    return Sniffed(form, "jsonl", form.required)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number and text of the lines that are not blank, each cut to the length of the longest row."""
    with opened(path) as stream:
        number, at_start = 0, True
        while line := stream.file.readline(LINE_BYTES):
            number += at_start
            text = (line.removeprefix(BOM) if number == 1 else line).strip()
            if text and at_start:
                yield number, text
            at_start = line.endswith(b"\n")
        if trouble := stream.trouble():
            raise InputError(f"{path} is not whole: {trouble}; fetch or copy it again")


def _check_once(path: Path, columns: Sequence[str]) -> None:
    twice = [name for name in columns if columns.count(name) > 1]
    if twice:
        raise InputError(f"{path} has the column '{twice[0]}' twice; each column may stand once")


def _match(path: Path, kind: str, columns: Sequence[str], first: str) -> Format:
    """The format that has these columns; otherwise an InputError that names the nearest one's trouble."""
    given = set(columns)
    candidates = [form for form in FORMATS if kind in form.kinds]
    for form in candidates:
        if given.issuperset(form.required) and given.issubset(form.columns):
            return form
    nearest = max(candidates, key=lambda form: len(given & set(form.columns)))
    shared = given & set(nearest.columns)
    missing = [name for name in nearest.required if name not in given]
    if missing and (len(shared) < 2 or given - set(nearest.columns)):
        known = "; ".join(f"{form.title}: {', '.join(form.required)}" for form in FORMATS)
        raise InputError(
            f"{path} must be in a known trace format, or come with a mapping of its columns (--mapping); "
            f"its first line is {_short(first)}. Known formats: {known}"
        )
    if missing:
        raise InputError(
            f"{path} looks like {nearest.title} but has no column '{missing[0]}'; "
            f"it must have {', '.join(nearest.required)}"
        )
    unknown = next(name for name in columns if name not in nearest.columns)
    hint = difflib.get_close_matches(unknown, nearest.columns, n=1, cutoff=0.0)[0]
    raise InputError(
        f"{path} looks like {nearest.title} but has the unknown column '{unknown}'; "
        f"the nearest known column is '{hint}'. Rename it or leave it out"
    )


def _short(line: str, limit: int = 100) -> str:
    return repr(line if len(line) <= limit else line[:limit] + "...")
