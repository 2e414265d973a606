import gzip
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.errors import InputError
from data.readers import load_trace, trace_name
from data.readers.blocks import LINE_BYTES, RAW_BYTES, blocks

HEADER = b"request_id,arrived_at,prompt_tokens\n"


@pytest.mark.parametrize("packed", [False, True])
def test_a_line_of_40_mb_takes_no_more_memory_than_a_block(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "long.csv"
    with gzip.open(path, "wb", compresslevel=1) if packed else path.open("wb") as file:
        file.write(HEADER + b"a,1,5\n")
        for _ in range(40):
            file.write(b"x" * 1_000_000)
        file.write(b"\nb,2,5\n")
    tracemalloc.start()
    lengths = [block.long for block in blocks(path, 1 << 20)]
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [length for found in lengths for length in found.items()] == [(3, 40_000_000)]
    assert peak_bytes < 4 * LINE_BYTES
    trace = load_trace(path)
    assert trace.requests["request_id"].to_list() == ["a", "b"]
    raw = trace.quarantined["raw"].item()
    assert raw == "x" * RAW_BYTES + "... (cut here; the row has 40,000,000 bytes)"


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")), max_size=12),
    st.booleans(),
    st.integers(1, 60),
    st.booleans(),
)
def test_every_line_comes_once_whatever_the_blocks(
    tmp_path: Path, lines: list[bytes], ended: bool, block_bytes: int, packed: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("data.readers.blocks.LINE_BYTES", 20)
        patch.setattr("data.readers.blocks.RAW_BYTES", 8)
        path = tmp_path / "lines.txt"
        text = b"\n".join(lines) + (b"\n" if ended else b"")
        path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + text) if packed else b"\xef\xbb\xbf" + text)
        found = [
            (number, line, block.long.get(number))
            for block in blocks(path, block_bytes)
            for number, line in enumerate(block.lines(), block.first)
        ]
        size_bytes = sum(block.size_bytes for block in blocks(path, block_bytes))
    clean = [line.removesuffix(b"\r") for line in text.removesuffix(b"\n").split(b"\n")] if text else []
    assert [number for number, _, _ in found] == list(range(1, len(clean) + 1))
    for line, (_, start, size) in zip(clean, found, strict=True):
        if size is None:
            assert (start, len(line) <= 20) == (line, True)
        else:
            assert (start, size) == (line[:8], len(line))
    if text:
        assert size_bytes == path.stat().st_size


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_gzip_file_cut_anywhere_is_said_and_its_whole_rows_are_right(tmp_path: Path, cut: int) -> None:
    rows = b"".join(b"r%d,%d,5\n" % (n, n * 7919 % 1000) for n in range(300))
    packed = gzip.compress(HEADER + rows)
    path = tmp_path / "cut.csv.gz"
    path.write_bytes(packed[: len(packed) * cut // 60])
    seen: list[bytes] = []
    with pytest.raises(InputError, match="is not whole: its gzip stream stops after"):
        seen.extend(block.text for block in blocks(path, 100))
    assert (HEADER + rows).startswith(b"".join(seen))
    assert not seen or seen[-1].endswith(b"\n")


def test_damage_and_a_stranger_after_the_end_are_said(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv.gz"
    packed = bytearray(gzip.compress(HEADER + b"a,1,5\n"))
    path.write_bytes(packed + b"junk")
    with pytest.raises(InputError, match="is damaged before byte"):
        list(blocks(path))
    packed[-6] ^= 1  # in the checksum
    path.write_bytes(packed)
    with pytest.raises(InputError, match="is damaged before byte"):
        list(blocks(path))


def test_names_of_traces() -> None:
    names = ["a.csv", "a.csv.gz", "a.b.jsonl.gz", "a", "a.gz"]
    assert [trace_name(Path("x") / name) for name in names] == ["a", "a", "a.b", "a", "a"]
