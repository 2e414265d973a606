"""CSV files as rows of text: a fast parser where every line is plain, the standard one elsewhere.

A quoted field can't span lines. Blank lines are not rows.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from data.readers.blocks import LINE_BYTES, Block, blocks
from data.readers.format import Rows, numbered, text_frame

csv.field_size_limit(max(csv.field_size_limit(), LINE_BYTES))  # the bound on a line is the bound on a field


PACKED = (b"\x1f\x8b", b"x\x01", b"x^", b"x\x9c", b"x\xda", b"\x28\xb5\x2f\xfd")
"""How gzip, zlib and zstd data starts: polars would unpack a block that happens to start so."""


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
            block = replace(block, first=header_line + 1, text=b"".join(parts[above:]))
        if block.text:
            plain = None if spaced else _plain_csv(block, header)
            yield plain or _careful_csv(block, header, spaced)


def _plain_csv(block: Block, header: Sequence[str]) -> Rows | None:
    """The block by the fast parser, or None unless every line plainly has one field per column."""
    text = block.text
    if block.long or len(header) == 1 or b'"' in text or text.startswith(PACKED):
        return None
    if text.count(b"\r") != text.count(b"\r\n"):
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
    return Rows(numbered(values, block.first), (), block.raw, block.size_bytes)


def _careful_csv(block: Block, header: Sequence[str], spaced: bool = False) -> Rows:
    """The block line by line: quotes, and lines that are not a row."""
    good: list[Sequence[str | int | None]] = []
    broken = block.too_long()
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
    return Rows(text_frame(good, header), broken, block.raw, block.size_bytes)
