"""Text files as rows of text: blocks of whole lines, split as CSV or JSON.

A row is one line, so that a line number always means the line that an editor shows; a quoted field can't
span lines. Blank lines are not rows.
"""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import polars as pl

from data.readers.format import Rows

BLOCK_BYTES = 12 << 20
"""About 250,000 rows of a CSV trace."""

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Block:
    """Whole lines of a file, the first of which is line number `first`."""

    first: int
    text: bytes

    @cached_property
    def count(self) -> int:
        """How many lines there are; the last one may lack its line break."""
        return self.text.count(b"\n") + (not self.text.endswith(b"\n"))

    def lines(self) -> list[bytes]:
        """Each line without its line break."""
        return [line.removesuffix(b"\r") for line in self.text.removesuffix(b"\n").split(b"\n")]

    def numbered(self) -> Iterator[tuple[int, bytes]]:
        """Line number and text of every line that is not blank."""
        return ((n, line) for n, line in enumerate(self.lines(), self.first) if line.strip())

    def raw(self, numbers: Sequence[int]) -> list[str]:
        """The text of these lines; bytes that are not UTF-8 become U+FFFD."""
        lines = self.lines()
        return [lines[number - self.first].decode(errors="replace") for number in numbers]


def blocks(path: Path, block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """The file in blocks that end with a line; a byte order mark is dropped."""
    first = 1
    with path.open("rb") as file:
        if file.read(len(BOM)) != BOM:
            file.seek(0)
        while text := file.read(block_bytes):
            block = Block(first, text + file.readline())
            yield block
            first += block.count


def csv_rows(path: Path, header: Sequence[str], header_line: int, block_bytes: int) -> Iterator[Rows]:
    """CSV rows below the header, block by block.

    Where the header has a space after its commas, such spaces are dropped from the rows too.
    """
    spaced = False
    for block in blocks(path, block_bytes):
        if block.first <= header_line:
            above = header_line + 1 - block.first
            parts = block.text.split(b"\n", above)
            spaced |= b", " in parts[:above][-1]
            block = Block(header_line + 1, b"".join(parts[above:]))
        if block.text:
            plain = None if spaced else _plain_csv(block, header)
            yield plain or _careful_csv(block, header, spaced)


def _plain_csv(block: Block, header: Sequence[str]) -> Rows | None:
    """The block by the fast parser, or None unless every line plainly has one field per column."""
    if b'"' in block.text:
        return None
    schema = dict.fromkeys(header, pl.String)
    try:
        values = pl.read_csv(block.text, has_header=False, schema=schema, quote_char=None)
    except (pl.exceptions.ComputeError, pl.exceptions.SchemaError):
        return None  # a line with too many fields, or bytes that are not UTF-8
    if values.height != block.count:
        return None
    # A line that is too short, or blank, has no last field; but then that field may just be empty.
    if values[header[-1]].null_count() and block.text.count(b",") != block.count * (len(header) - 1):
        return None
    return Rows(_numbered(values, block.first), (), block.raw, len(block.text))


def _careful_csv(block: Block, header: Sequence[str], spaced: bool = False) -> Rows:
    """The block line by line: quotes, and lines that are not a row."""
    good: list[Sequence[str | int | None]] = []
    broken: list[tuple[int, str]] = []
    for number, line in block.numbered():
        try:
            fields = next(csv.reader([line.decode()], strict=True, skipinitialspace=spaced))
        except UnicodeDecodeError:
            broken.append((number, "the line is not UTF-8"))
        except csv.Error as error:
            broken.append((number, f"the line is not CSV: {error}"))
        else:
            if len(fields) == len(header):
                good.append([*(text or None for text in fields), number])
            else:
                broken.append((number, f"the line has {len(fields)} fields, the header has {len(header)}"))
    return Rows(_text_frame(good, header), broken, block.raw, len(block.text))


def json_rows(path: Path, columns: Sequence[str], block_bytes: int) -> Iterator[Rows]:
    """JSON rows, one object a line; keys outside `columns` break the row."""
    known = set(columns)
    for block in blocks(path, block_bytes):
        good: list[Sequence[str | int | None]] = []
        broken: list[tuple[int, str]] = []
        for number, line in block.numbered():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                broken.append((number, f"the line is not JSON: {error}"))
                continue
            if not isinstance(row, dict):
                broken.append((number, f"the line is not a JSON object but {type(row).__name__}"))
            elif unknown := row.keys() - known:
                broken.append((number, f"unknown key '{min(unknown)}'"))
            else:
                good.append([*(_json_text(row.get(name)) for name in columns), number])
        yield Rows(_text_frame(good, columns), broken, block.raw, len(block.text))


def _json_text(value: object) -> str | None:
    """A JSON value as text; null stays unknown."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _numbered(values: pl.DataFrame, first: int) -> pl.DataFrame:
    """The frame with the column `line`, counted from `first`."""
    return values.with_columns(pl.int_range(first, first + values.height, dtype=pl.Int64).alias("line"))


def _text_frame(rows: Sequence[Sequence[str | int | None]], columns: Sequence[str]) -> pl.DataFrame:
    schema = {**dict.fromkeys(columns, pl.String), "line": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")
