"""A log into a lake: every request once, also when the process dies at the worst moment."""

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from data.config import LogFile
from data.errors import InputError
from data.lake import Lake
from data.live.follow import Follower, follow_log, load, save, state_file, state_folder
from data.live.tail import Position
from data.writer import LakeWriter

NOW = datetime.now(UTC).isoformat()


def line(name: str, **more: object) -> str:
    facts = {"request_id": name, "start_time": NOW, "duration_ms": 5, "status": 200, "prompt_tokens": 9}
    return json.dumps(facts | more) + "\n"


def write(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.writelines(lines)


@pytest.fixture
def log(tmp_path) -> LogFile:
    return LogFile(source="edge", path=tmp_path / "access.log", form="envoy")


@pytest.fixture
def lake(tmp_path) -> str:
    return str(tmp_path / "lake")


def stored(lake: str) -> list[str]:
    with Lake(lake) as opened:
        return opened.query("SELECT request_id FROM lake.requests ORDER BY ALL")["request_id"].to_list()


def until(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    pytest.fail("it did not happen within 30 s")


@contextmanager
def following(log: LogFile, lake: str, told: list[str] | None = None) -> Iterator[Follower]:
    """A follower in a thread, with a writer of its own; both are stopped after the block."""
    stop = threading.Event()
    with LakeWriter(lake, max_wait_s=0.01) as writer:
        tell = ([] if told is None else told).append
        follower = Follower(
            log, lake, writer.put, state_file(log, state_folder(lake)), tell, poll_s=0.01, retry_s=0.01
        )
        thread = threading.Thread(target=follower.run, args=(stop,))
        thread.start()
        try:
            yield follower
        finally:
            stop.set()
            thread.join()


def read_through(log: LogFile, lake: str, lines: int) -> Follower:
    """Follow until that many lines were dealt with."""
    with following(log, lake) as follower:
        until(lambda: follower.counts.total() >= lines)
    return follower


def test_lines_go_into_the_lake_as_they_are_written_and_are_accounted_for(log, lake):
    told: list[str] = []
    with following(log, lake, told) as follower:
        until(lambda: bool(told))
        assert told == [f"{log.path} is not there yet: waiting for it"]
        write(log.path, line("a"), line("b", prompt_tokens=None))
        until(lambda: follower.counts.total() == 2)
        write(log.path, line("c"), line("a"), line("d", path="/healthz"))
        until(lambda: follower.counts.total() == 5)
    assert follower.counts == {"stored": 2, "quarantined": 1, "duplicates": 1, "ignored": 1}
    assert stored(lake) == ["a", "c"]
    with Lake(lake) as opened:
        bad = opened.query("SELECT source, file, line, reason, raw FROM lake.quarantine").row(0, named=True)
    assert (bad["source"], bad["file"], bad["line"]) == ("edge", "access.log", 2)
    assert bad["reason"] == "prompt_tokens is unknown: the record has none"
    assert json.loads(bad["raw"])["request_id"] == "b"


def test_a_restart_goes_on_where_the_last_one_stopped(log, lake):
    write(log.path, line("a"), line("b"))
    read_through(log, lake, 2)
    write(log.path, line("c"))
    assert read_through(log, lake, 1).counts == {"stored": 1, "quarantined": 0, "duplicates": 0, "ignored": 0}
    assert stored(lake) == ["a", "b", "c"]


KILLED = """
import os, sys, threading
from pathlib import Path
from data.config import LogFile
from data.live import follow
from data.writer import LakeWriter

follow.save = lambda state, position: os._exit(9)  # dies between the commit and the saved place
log = LogFile(source="edge", path=Path(sys.argv[1]), form="envoy")
state = follow.state_file(log, Path(sys.argv[2]) / "collect")
writer = LakeWriter(sys.argv[2], max_wait_s=0.01)
follow.Follower(log, sys.argv[2], writer.put, state, print).run(threading.Event())
"""


def test_a_process_killed_between_commit_and_saved_place_loses_nothing_and_doubles_nothing(log, lake):
    write(log.path, line("a"), line("b"), "not JSON\n")
    root = Path(__file__).resolve().parents[3]
    killed = subprocess.run([sys.executable, "-c", KILLED, str(log.path), lake], cwd=root, check=False)
    assert killed.returncode == 9
    assert stored(lake) == ["a", "b"]
    assert load(state_file(log, state_folder(lake))) is None
    write(log.path, line("c"))
    assert read_through(log, lake, 4).counts == {"stored": 1, "quarantined": 0, "duplicates": 3, "ignored": 0}
    assert stored(lake) == ["a", "b", "c"]
    with Lake(lake) as opened:
        assert opened.query("SELECT count(*) FROM lake.quarantine").item() == 1


def test_lines_whose_commit_fails_are_told_of_once_and_tried_again(log, lake):
    told: list[str] = []
    failures = 3
    stop = threading.Event()
    with LakeWriter(lake, max_wait_s=0.01) as writer:

        def put(table, frame):
            nonlocal failures
            if failures and frame.height:
                failures -= 1
                failed: Future[None] = Future()
                failed.set_exception(OSError("the disk is away"))
                return failed
            return writer.put(table, frame)

        follower = Follower(log, lake, put, state_file(log, Path(lake)), told.append, 0.01, 0.01)
        write(log.path, line("a"))
        thread = threading.Thread(target=follower.run, args=(stop,))
        thread.start()
        until(lambda: follower.counts["stored"] == 1)
        stop.set()
        thread.join()
    assert told == [
        f"{log.path} waits, a new try every 0.01 s: the disk is away",
        f"Stopped following {log.path}: 1 stored, 0 quarantined, 0 duplicates, 0 ignored.",
    ]
    assert stored(lake) == ["a"]


def test_only_one_process_follows_a_log(log, lake):
    write(log.path, line("a"))
    with following(log, lake) as follower:
        until(lambda: follower.counts["stored"] == 1)
        second = Follower(log, lake, follower.put, follower.state, print)
        with pytest.raises(InputError, match="is followed by another process already"):
            second.run(threading.Event())


def test_a_lost_line_is_told_of(log, lake):
    write(log.path, line("a"))
    read_through(log, lake, 1)
    log.path.unlink()
    write(log.path, line("b", status=503))
    told: list[str] = []
    with following(log, lake, told) as follower:
        until(lambda: follower.counts["stored"] == 1)
    assert told[0].startswith("edge: lines of access.log after line 1 may be lost")


def test_a_state_file_that_holds_no_place_is_refused_with_the_remedy(log, lake, tmp_path):
    state = tmp_path / "state.json"
    for content in ("", "[]", '{"offset": 3}'):
        state.write_text(content)
        with pytest.raises(InputError, match="does not hold a place in a log; delete it"):
            Follower(log, lake, print, state, print).run(threading.Event())


def test_a_place_is_saved_whole(tmp_path):
    position = Position(1, 2, offset=10, line=1, head_bytes=10, head="ab", inside=True)
    save(tmp_path / "state.json", position)
    assert load(tmp_path / "state.json") == position


def test_a_lake_in_a_database_has_its_places_in_var(lake):
    assert state_folder("postgresql://tide@db/lake") == Path("var/collect")
    assert state_folder(lake) == Path(lake) / "collect"


def test_every_source_and_path_has_a_place_of_its_own(log, tmp_path):
    other = LogFile(source="edge", path=tmp_path / "other.log", form="envoy")
    assert state_file(log, tmp_path) != state_file(other, tmp_path)


def test_the_task_ends_when_it_is_cancelled(log, lake):
    write(log.path, line("a"))

    async def collect() -> None:
        with LakeWriter(lake, max_wait_s=0.01) as writer:
            task = asyncio.create_task(follow_log(log, lake, writer.put, print))
            while not any(writer.state().written.values()):
                await asyncio.sleep(0.02)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    asyncio.run(collect())
    assert stored(lake) == ["a"]
