"""Text files in blocks of whole lines, with bounded memory whatever the lines are.

A row is one line, so that a line number always means the line that an editor shows. A line that is longer
than any row is cut while it is read: only its start is kept, for the quarantine.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from data.errors import InputError
from data.readers.gzipped import opened

BLOCK_BYTES = 12 << 20
"""About 250,000 rows of a CSV trace."""

LINE_BYTES = 4 << 20
"""The longest line that is read as a row: block hashes of a prompt of a million tokens stay well below."""

RAW_BYTES = 64 << 10
"""As much of a bad row is kept in quarantine."""

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Block:
    """Whole lines of a file, the first of which is line number `first`.

    `long` has the length in bytes of every line that is too long, by number; `text` has only its start.
    `size_bytes` is how much of the file was read for the block.
    """

    first: int
    text: bytes
    size_bytes: int = 0
    long: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def count(self) -> int:
        """How many lines there are; the last one may lack its line break."""
        return self.text.count(b"\n") + (not self.text.endswith(b"\n"))

    def lines(self) -> list[bytes]:
        """Each line without its line break."""
        return [line.removesuffix(b"\r") for line in self.text.removesuffix(b"\n").split(b"\n")]

    def numbered(self) -> Iterator[tuple[int, bytes]]:
        """Line number and text of every line that is neither blank nor too long."""
        for number, line in enumerate(self.lines(), self.first):
            if line.strip() and number not in self.long:
                yield number, line

    def too_long(self) -> list[tuple[int, str]]:
        """Number of, and reason against, every line that is too long."""
        return [(n, f"the line is longer than {LINE_BYTES:,} bytes") for n in self.long]

    def raw(self, numbers: Sequence[int]) -> list[str]:
        """The text of these lines; bytes that are not UTF-8 become U+FFFD."""
        lines = self.lines()
        return [
            clipped(line, self.long.get(number, len(line)))
            for number, line in ((number, lines[number - self.first]) for number in numbers)
        ]


def clipped(row: bytes, size_bytes: int) -> str:
    """A row as the quarantine keeps it: its start alone where it is large."""
    if size_bytes <= RAW_BYTES:
        return row.decode(errors="replace")
    return row[:RAW_BYTES].decode(errors="replace") + f"... (cut here; the row has {size_bytes:,} bytes)"


def blocks(path: Path, block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """The file, unpacked, in blocks that end with a line; a byte order mark is dropped.

    Raises InputError where a gzip file is cut or damaged, after the last line before that place.
    """
    number, read_bytes = 1, 0
    with opened(path) as stream:
        start = stream.file.read(len(BOM))
        start = b"" if start == BOM else start
        while text := start + stream.file.read(block_bytes):
            start = b""
            text += (tail := stream.file.readline(LINE_BYTES + 1))
            cut = len(tail) > LINE_BYTES and not tail.endswith(b"\n")
            text, long = _shortened(text, number, _skip_line(stream.file) if cut else 0)
            size_bytes, read_bytes = stream.position_bytes() - read_bytes, stream.position_bytes()
            trouble = stream.trouble()
            if trouble:  # the last line is not whole, so it is no row
                text = text[: text.rfind(b"\n") + 1]
                long = {line: size for line, size in long.items() if line < number + text.count(b"\n")}
            block = Block(number, text, size_bytes, long)
            if text:
                yield block
                number += block.count
            if trouble:
                break
        if trouble := stream.trouble():
            raise InputError(f"{path} is not whole: {trouble}, in line {number:,}; fetch or copy it again")


def _skip_line(file: io.BufferedReader) -> int:
    """Pass over the rest of a line; its bytes, without the line break."""
    skipped = 0
    while piece := file.readline(1 << 20):
        skipped += len(piece.removesuffix(b"\n").removesuffix(b"\r"))
        if piece.endswith(b"\n"):
            break
    return skipped


def _shortened(text: bytes, first: int, skipped_bytes: int) -> tuple[bytes, dict[int, int]]:
    """The text with lines that are too long cut to their start, and the length of each by number.

    `skipped_bytes` of the last line are not in the text.
    """
    if not skipped_bytes and not _may_have_long_line(text):
        return text, {}
    lines = text.removesuffix(b"\n").split(b"\n")
    sizes = [len(line.removesuffix(b"\r")) for line in lines]
    sizes[-1] += skipped_bytes
    long = {first + n: size for n, size in enumerate(sizes) if size > LINE_BYTES}
    end = b"\n" if text.endswith(b"\n") else b""
    return b"\n".join(line if len(line) <= LINE_BYTES else line[:RAW_BYTES] for line in lines) + end, long


def _may_have_long_line(text: bytes) -> bool:
    """False where no line can be too long: such a line would fill one of these windows."""
    half = LINE_BYTES // 2
    return any(text.find(b"\n", at, at + half) < 0 for at in range(0, len(text) - half + 1, half))
