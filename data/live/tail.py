"""Follow a growing text file through rotation, line by line, and know where it stopped.

    tail = Tail(path, position)      # None: from the start of the file
    batch = tail.read()              # whole lines, and the position after them
    position = batch.position        # to be kept once the lines are safe

Rotation by rename, by copying and truncating, and several rotations while nobody followed are all read to
their end, as long as the rotated files lie uncompressed beside the path (`access.log.1`,
`access.log-20260301`). Lines that can't be found again are told of in `notes`.
"""

import hashlib
import os
import re
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path

READ_BYTES = 4 << 20
"""Bytes of one batch."""

MAX_LINE_BYTES = 1 << 20
"""A longer line is cut."""

HEAD_BYTES = 1024
"""A file is told by its first bytes: inodes are used again, and copies have others."""


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a file: `offset` bytes and `line` lines of it are done.

    `head` is the SHA-256 of the first `head_bytes` bytes that were seen. `inside` is true in the middle of a
    line that was cut already.
    """

    device: int
    inode: int
    offset: int = 0
    line: int = 0
    head_bytes: int = 0
    head: str = hashlib.sha256(b"").hexdigest()
    inside: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its line break; `cut` when it was too long and only its beginning is here."""

    number: int
    text: bytes
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Lines:
    """Consecutive lines of one file, and the position after them: None while there is no file.

    `notes` say what was noticed; `behind` is true when more may be read at once.
    """

    lines: tuple[Line, ...]
    position: Position | None
    notes: tuple[str, ...] = ()
    behind: bool = False


class Tail:
    """Follows one path. The file is held open: its end can be read after it was renamed or removed."""

    def __init__(self, path: Path, position: Position | None = None) -> None:
        self.path = path
        self.position = position
        self._file: FileIO | None = None

    def close(self) -> None:
        """Let go of the file."""
        if self._file:
            self._file.close()
            self._file = None

    def read(self) -> Lines:
        """The next lines, at most about READ_BYTES of them; none when nothing was added.

        Raises OSError for a path that exists and can't be read.
        """
        notes: list[str] = []
        if not self._file and not self._open(notes):
            return Lines((), self.position, tuple(notes))
        file, position = self._opened()
        file.seek(position.offset)
        block = file.read(READ_BYTES)
        if not _continues(file, position):  # truncated, perhaps just now: the lines may lie in a copy
            self.close()
            return self._more(notes)
        lines, after = _split(block, position)
        if after.offset == position.offset and (following := self._following()):
            lines, after = _rest(block, position)
            self._move(following)
            if lines:  # the last line of a file that is done, without a line break
                return Lines(lines, self.position, tuple(notes), behind=True)
            return self._more(notes)
        self.position = _with_head(file, after, position.offset + len(block))
        return Lines(lines, self.position, tuple(notes), behind=len(block) == READ_BYTES)

    def _more(self, notes: list[str]) -> Lines:
        more = self.read()
        return replace(more, notes=(*notes, *more.notes))

    def _opened(self) -> tuple[FileIO, Position]:
        if self._file is None or self.position is None:
            raise RuntimeError("no file is open")
        return self._file, self.position

    def _open(self, notes: list[str]) -> bool:
        """Open the file that the position is in, or the path from its start; False where there is none."""
        if self.position:
            for path in (self.path, *_rotated(self.path)):
                file = _try_open(path)
                if file and _continues(file, self.position):
                    status = os.fstat(file.fileno())
                    self._file = file
                    self.position = replace(self.position, device=status.st_dev, inode=status.st_ino)
                    return True
                if file:
                    file.close()
        file = _try_open(self.path)
        if file is None:
            return False
        if self.position and self.position.head_bytes:
            notes.append(
                f"lines of {self.path.name} after line {self.position.line} may be lost: the file that held "
                "them was removed, compressed or truncated before they were read"
            )
        self._move(file)
        return True

    def _move(self, file: FileIO) -> None:
        self.close()
        status = os.fstat(file.fileno())
        self._file, self.position = file, Position(status.st_dev, status.st_ino)

    def _following(self) -> FileIO | None:
        """The file after the open one, once it holds something: until then the open one may still grow."""
        done = os.fstat(self._opened()[0].fileno())
        path = _stat(self.path)
        if path and os.path.samestat(path, done):
            return None
        for rotated in _rotated(self.path):
            status = _stat(rotated)
            if status and not os.path.samestat(status, done) and status.st_mtime_ns >= done.st_mtime_ns:
                return _try_open(rotated)
        return _try_open(self.path) if path and path.st_size else None


def _rotated(path: Path) -> list[Path]:
    """Uncompressed rotated files of this path, oldest first."""
    name = re.compile(
        rf"{re.escape(path.name)}[.-]\d[\d.-]*|{re.escape(path.stem)}[.-]\d[\d.-]*{re.escape(path.suffix)}"
    )
    found = path.parent.iterdir() if path.parent.is_dir() else ()
    aged = [(status.st_mtime_ns, f) for f in found if name.fullmatch(f.name) and (status := _stat(f))]
    return [file for _, file in sorted(aged)]


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _try_open(path: Path) -> FileIO | None:
    """The file, unbuffered: a buffer would show what stood there before the file was truncated."""
    try:
        return path.open("rb", buffering=0)
    except FileNotFoundError:
        return None


def _continues(file: FileIO, position: Position) -> bool:
    """True when the file begins as the one of the position did, and reaches as far."""
    status = os.fstat(file.fileno())
    if not position.head_bytes:  # nothing to tell it by
        return (status.st_dev, status.st_ino) == (position.device, position.inode)
    file.seek(0)
    head = hashlib.sha256(file.read(position.head_bytes)).hexdigest()
    return head == position.head and status.st_size >= max(position.offset, position.head_bytes)


def _with_head(file: FileIO, position: Position, seen: int) -> Position:
    """The position with as much of the file's head as was seen: a partial line tells a file as well."""
    size = min(HEAD_BYTES, seen)
    if size <= position.head_bytes:
        return position
    file.seek(0)
    return replace(position, head_bytes=size, head=hashlib.sha256(file.read(size)).hexdigest())


def _split(block: bytes, position: Position) -> tuple[tuple[Line, ...], Position]:
    """Whole lines of a block that starts at the position, and the position after them."""
    end = block.rfind(b"\n") + 1
    lines: list[Line] = []
    number, inside = position.line, position.inside
    for text in block[:end].split(b"\n")[:-1]:
        if inside:
            inside = False  # the end of a line that was reported, cut, before
            continue
        number += 1
        lines.append(_line(number, text))
    if len(block) - end > MAX_LINE_BYTES:
        if not inside:
            number += 1
            lines.append(_line(number, block[end:]))
        end, inside = len(block), True
    after = replace(position, offset=position.offset + end, line=number, inside=inside)
    return tuple(lines), after


def _rest(block: bytes, position: Position) -> tuple[tuple[Line, ...], Position]:
    """What is left of a file that is done: a last line without a line break, or nothing."""
    if not block or position.inside:
        return (), position
    return (_line(position.line + 1, block),), position


def _line(number: int, text: bytes) -> Line:
    cut = len(text) > MAX_LINE_BYTES
    return Line(number, text[:MAX_LINE_BYTES].removesuffix(b"\r"), cut)
