"""Which format a file has, told by its first line and never by its name."""

import csv
import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data.errors import InputError
from data.readers import azure, burstgpt, mooncake, tidegate
from data.readers.format import Format
from data.readers.lines import BOM
from data.readers.parquet import parquet_columns

FORMATS: tuple[Format, ...] = (azure.FORMAT, burstgpt.FORMAT, mooncake.FORMAT, tidegate.FORMAT)

FIRST_LINE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Sniffed:
    """A file's format, how its rows are written (csv, jsonl, parquet), its columns and its header's line."""

    form: Format
    kind: str
    columns: tuple[str, ...]
    header_line: int


def sniff(path: str | Path) -> Format:
    """The format of a trace file.

    Raises InputError for a directory, a missing or an empty file, a format that no reader knows, and a
    column that is missing or unknown.
    """
    return inspect(Path(path)).form


def inspect(path: Path) -> Sniffed:
    """The format, and what its first line says about the columns."""
    if not path.exists():
        raise InputError(f"{path} doesn't exist; give the path of a trace file")
    if not path.is_file():
        raise InputError(f"{path} is not a file; give the path of one trace file")
    with path.open("rb") as file:
        start = file.read(4)
    if start == b"PAR1":
        columns = tuple(parquet_columns(path))
        return Sniffed(_match(path, "parquet", columns, ", ".join(columns)), "parquet", columns, 0)
    if start[:2] == b"\x1f\x8b":
        raise InputError(f"{path} is compressed with gzip; unpack it first")
    number, line = _first_line(path)
    if line.lstrip().startswith("{"):
        form = _match(path, "jsonl", _json_keys(path, number, line), line)
        return Sniffed(form, "jsonl", form.columns, 0)
    columns = tuple(name.strip() for name in next(csv.reader([line], skipinitialspace=True)))
    return Sniffed(_match(path, "csv", columns, line), "csv", columns, number)


def _first_line(path: Path) -> tuple[int, str]:
    """Number and text of the first line that is not blank."""
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(FIRST_LINE_BYTES), b""), 1):
            text = (line.removeprefix(BOM) if number == 1 else line).strip()
            if text:
                return number, text.decode(errors="replace")
    raise InputError(f"{path} is empty; a trace has a header or one request a line")


def _json_keys(path: Path, number: int, line: str) -> tuple[str, ...]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InputError(
            f"{path} line {number} starts like JSON but isn't: {error}; got {_short(line)}"
        ) from error
    return tuple(row)


def _match(path: Path, kind: str, columns: Sequence[str], first: str) -> Format:
    """The format that has these columns; otherwise an InputError that names the nearest one's trouble."""
    given = set(columns)
    if len(given) < len(columns):
        twice = next(name for name in columns if list(columns).count(name) > 1)
        raise InputError(f"{path} has the column '{twice}' twice; each column may stand once")
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
            f"{path} must be in a known trace format; its first line is {_short(first)}. "
            f"Known formats: {known}"
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
