"""Files that may be compressed with gzip, read as a stream of bytes.

A gzip file that is cut or damaged is read up to that place, and then says so: `Stream.trouble`.
"""

import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

MAGIC = b"\x1f\x8b"
CHUNK_BYTES = 1 << 18
GZIP = 31
"""zlib's window bits for data with a gzip header."""


@dataclass(frozen=True, slots=True)
class Stream:
    """The bytes of a file, unpacked; how far the file itself was read; what broke it off, if anything."""

    file: io.BufferedReader
    position_bytes: Callable[[], int]
    trouble: Callable[[], str | None]


@contextmanager
def opened(path: Path) -> Iterator[Stream]:
    """Open a file, unpacking gzip as it is read: memory does not grow with the file."""
    with path.open("rb") as file:
        if file.peek(len(MAGIC))[: len(MAGIC)] == MAGIC:
            unpacking = _Unpacking(file)
            yield Stream(io.BufferedReader(unpacking, CHUNK_BYTES), file.tell, lambda: unpacking.trouble)
        else:
            yield Stream(file, file.tell, lambda: None)


def trace_name(path: Path) -> str:
    """The file's name without its ending, and without `.gz` before that.

    >>> trace_name(Path("traces/AzureLMMInferenceTrace_multimodal.csv.gz"))
    'AzureLMMInferenceTrace_multimodal'
    """
    return Path(path.name.removesuffix(".gz")).stem


class _Unpacking(io.RawIOBase):
    """The content of a gzip file; an end that comes too early is noted in `trouble`, not raised.

    Raised here, it would take the bytes that a buffering reader has gathered so far with it.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.trouble: str | None = None
        self._decoder: zlib._Decompress | None = None
        self._packed = b""
        self._members = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill the buffer as far as one step gets; 0 at the end."""
        while self.trouble is None:
            at_end = False
            if not self._packed:
                self._packed = self.file.read(CHUNK_BYTES)
                at_end = not self._packed
            if self._decoder is None:
                if self._members:
                    self._packed = self._packed.lstrip(b"\0")  # tape-style padding after the last member
                if not self._packed:
                    if at_end:
                        return 0
                    continue
                self._decoder = zlib.decompressobj(wbits=GZIP)
            piece = self._step(len(buffer))
            if piece:
                buffer[: len(piece)] = piece
                return len(piece)
            if at_end and self._decoder is not None and self.trouble is None:
                self.trouble = f"its gzip stream stops after {self.file.tell():,} bytes without an end"
        return 0

    def _step(self, most: int) -> bytes:
        """Unpack at most that many bytes of what is at hand."""
        decoder = self._decoder
        if decoder is None:
            return b""
        try:
            piece = decoder.decompress(self._packed, most)
        except zlib.error as error:
            self.trouble = f"its gzip stream is damaged before byte {self.file.tell():,} ({error})"
            return b""
        if decoder.eof:
            self._packed, self._decoder = decoder.unused_data, None
            self._members += 1
        else:
            self._packed = decoder.unconsumed_tail
        return piece
