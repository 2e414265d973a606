"""Following a file: every line once and in order, whatever the rotation."""

import gzip
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.live.tail import HEAD_BYTES, MAX_LINE_BYTES, Position, Tail


@pytest.fixture
def log(tmp_path) -> Path:
    return tmp_path / "access.log"


@pytest.fixture
def follow() -> Iterator[Callable[..., Tail]]:
    """Tails that are closed after the test."""
    with ExitStack() as stack:
        yield lambda *arguments: stack.enter_context(closing(Tail(*arguments)))


def write(path: Path, text: str, at_s: int | None = None) -> None:
    """Append; `at_s` sets the time of change, since a fast test has them all at once."""
    with path.open("a") as file:
        file.write(text)
    if at_s:
        os.utime(path, (at_s, at_s))


def texts(tail: Tail) -> list[str]:
    """All lines that can be read now."""
    found = []
    while (batch := tail.read()).lines or batch.behind:
        found += [line.text.decode() for line in batch.lines]
    return found


def test_lines_come_once_numbered_and_a_partial_last_line_waits(follow, log):
    write(log, "one\ntwo\nthr")
    tail = follow(log)
    assert [(line.number, line.text) for line in tail.read().lines] == [(1, b"one"), (2, b"two")]
    assert texts(tail) == []
    write(log, "ee\r\n")
    assert [(line.number, line.text) for line in tail.read().lines] == [(3, b"three")]


def test_a_file_that_is_absent_is_waited_for(follow, log):
    tail = follow(log)
    assert tail.read().position is None
    write(log, "one\n")
    assert texts(tail) == ["one"]


def test_another_process_goes_on_where_the_position_says(follow, log):
    write(log, "one\ntwo\n")
    position = follow(log).read().position
    write(log, "three\n")
    batch = follow(log, position).read()
    assert [(line.number, line.text) for line in batch.lines] == [(3, b"three")]
    assert batch.notes == ()


def test_a_renamed_file_is_read_to_its_end_while_the_writer_still_has_it_open(follow, log, tmp_path):
    write(log, "one\n")
    tail = follow(log)
    assert texts(tail) == ["one"]
    log.rename(tmp_path / "access.log.1")
    write(tmp_path / "access.log.1", "two\n")
    log.touch()
    assert texts(tail) == ["two"]
    write(tmp_path / "access.log.1", "three\nfour without end")
    assert texts(tail) == ["three"]
    write(log, "five\n")
    assert texts(tail) == ["four without end", "five"]


def test_a_renamed_file_is_read_to_its_end_even_when_it_is_compressed_and_removed_at_once(
    follow, log, tmp_path
):
    write(log, "one\n")
    tail = follow(log)
    assert texts(tail) == ["one"]
    write(log, "two\n")
    (tmp_path / "access.log.1.gz").write_bytes(gzip.compress(log.read_bytes()))
    log.unlink()
    write(log, "three\n")
    assert texts(tail) == ["two", "three"]


def test_a_truncated_file_is_finished_in_its_copy(follow, log, tmp_path):
    write(log, "one\n", 1000)
    tail = follow(log)
    assert texts(tail) == ["one"]
    write(log, "two\n", 1001)
    shutil.copyfile(log, tmp_path / "access.log.1")
    os.utime(tmp_path / "access.log.1", (1002, 1002))
    log.write_text("")
    write(log, "three\n", 1003)
    assert texts(tail) == ["two", "three"]


def test_a_truncated_file_that_has_grown_past_the_old_place_is_noticed(follow, log):
    write(log, "one\n")
    tail = follow(log)
    assert texts(tail) == ["one"]
    log.write_text("a longer line than before\n")
    batch = tail.read()
    assert [line.text for line in batch.lines] == [b"a longer line than before"]
    assert "lines of access.log after line 1 may be lost" in batch.notes[0]


def test_a_truncation_right_after_a_look_is_noticed_though_the_file_has_grown_past_the_old_place(follow, log):
    write(log, f"one {'x' * 20_000}\n")
    tail = follow(log)
    assert len(tail.read().lines) == 1
    with log.open("r+") as file:  # in place, as copying and truncating does
        file.truncate()
        file.write("".join(f"two {n}\n" for n in range(5_000)))
    assert texts(tail) == [f"two {n}" for n in range(5_000)]


def test_rotations_while_nobody_followed_are_read_in_order(follow, log, tmp_path):
    write(log, "one\n", 1000)
    position = follow(log).read().position
    write(log, "two\n", 1001)
    log.rename(tmp_path / "access.log.2")
    write(tmp_path / "access.log.1", "three\nfour\n", 1002)
    write(tmp_path / "access.log.3", "from long before\n", 900)
    write(tmp_path / "access.log.old", "something else\n", 1002)
    write(log, "five\n", 1003)
    assert texts(follow(log, position)) == ["two", "three", "four", "five"]


def test_rotated_by_date_before_the_suffix(follow, log, tmp_path):
    write(log, "one\n", 1000)
    position = follow(log).read().position
    write(log, "two\n", 1001)
    log.rename(tmp_path / "access-20260301.log")
    write(log, "three\n", 1002)
    assert texts(follow(log, position)) == ["two", "three"]


def test_a_file_of_which_only_a_partial_line_was_seen_is_found_after_rotation(follow, log, tmp_path):
    write(log, "on", 1000)
    position = follow(log).read().position
    write(log, "e\n", 1001)
    log.rename(tmp_path / "access.log.1")
    write(log, "two\n", 1002)
    assert texts(follow(log, position)) == ["one", "two"]


def test_a_rotated_file_that_is_gone_is_told_of(follow, log):
    write(log, "one\n")
    position = follow(log).read().position
    log.unlink()
    write(log, "three\n")
    batch = follow(log, position).read()
    assert [line.text for line in batch.lines] == [b"three"]
    assert batch.notes
    assert batch.position is not None
    assert batch.position.line == 1


def test_a_line_over_the_limit_is_cut_once_and_the_next_one_is_whole(follow, log):
    with log.open("wb") as file:
        file.write(b"x" * (MAX_LINE_BYTES + 1))
    tail = follow(log)
    first = tail.read()
    assert [(line.number, len(line.text), line.cut) for line in first.lines] == [(1, MAX_LINE_BYTES, True)]
    write(log, "still the same line")
    assert texts(tail) == []
    write(log, "\ntwo\n")
    again = follow(log, first.position)  # a restart in the middle of it
    for follower in (tail, again):
        assert [(line.number, line.text) for line in follower.read().lines] == [(2, b"two")]


def test_a_whole_line_over_the_limit_is_cut_too(follow, log):
    log.write_bytes(b"x" * (MAX_LINE_BYTES + 5) + b"\ntwo\n")
    assert [(line.number, line.cut) for line in follow(log).read().lines] == [(1, True), (2, False)]


def test_a_directory_is_an_error_to_tell(follow, tmp_path):
    with pytest.raises(OSError, match="Is a directory"):
        follow(tmp_path).read()


STEPS = st.lists(
    st.sampled_from(["write", "half", "read", "rename", "copytruncate", "restart", "crash"]), max_size=25
)


@given(STEPS)
def test_whatever_happens_every_line_is_read_in_order_and_after_a_crash_some_again(tmp_path_factory, steps):
    log = tmp_path_factory.mktemp("log") / "access.log"
    tail, saved, time_s, written = Tail(log), None, 1000, 0
    seen: list[str] = []

    def add(text: str) -> None:
        nonlocal time_s
        time_s += 1
        write(log, text, time_s)

    def shift() -> None:
        for number in range(9, 0, -1):
            if (rotated := log.with_name(f"access.log.{number}")).exists():
                rotated.rename(log.with_name(f"access.log.{number + 1}"))

    def read() -> None:
        nonlocal saved
        seen.extend(texts(tail))
        saved = tail.position

    for step in ["write", "read", *steps, "write", "read"]:
        if step == "write":
            written += 1
            add(f"line {written:04} {'x' * (written * 97 % HEAD_BYTES)}\n")
        elif step == "half":
            written += 1
            add(f"line {written:04} ")
            seen.extend(texts(tail))
            add("end\n")
        elif step == "read":
            read()
        elif step == "rename" and log.exists() and log.stat().st_size:
            shift()
            log.rename(log.with_name("access.log.1"))
        elif step == "copytruncate" and log.exists() and log.stat().st_size:
            shift()
            time_s += 1
            shutil.copy2(log, log.with_name("access.log.1"))
            os.utime(log.with_name("access.log.1"), (time_s, time_s))
            log.write_text("")
            os.utime(log, (time_s, time_s))
        elif step in ("restart", "crash"):
            if step == "restart":
                read()
            else:
                seen.extend(texts(tail))
            tail.close()
            tail = Tail(log, saved)
    tail.close()
    numbers = [int(text.split()[1]) for text in seen]
    assert set(numbers) == set(range(1, written + 1))
    if "crash" not in steps:
        assert numbers == sorted(set(numbers))


def test_positions_are_plain_values(follow, log):
    write(log, "one\n")
    position = follow(log).read().position
    assert position is not None
    assert position == Position(
        position.device, position.inode, offset=4, line=1, head_bytes=4, head=position.head
    )
