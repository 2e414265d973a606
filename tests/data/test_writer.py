import shutil
import threading
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from data.errors import Busy, InputError
from data.lake import Lake
from data.writer import LakeWriter

AT = datetime(2026, 1, 1, tzinfo=UTC)


def ticks(source: str, count: int) -> pl.DataFrame:
    at = pl.datetime_range(AT, AT.replace(hour=23), "5s", eager=True, time_unit="us")[:count]
    return pl.DataFrame({"tick_at": at}).with_columns(
        source=pl.lit(source), eligible=True, alarm=False, tightened=False
    )


def count(folder: Path, table: str = "ledger") -> int:
    with Lake(folder) as lake:
        return int(lake.query(f"SELECT count(*) FROM lake.{table}").item())


def snapshots(folder: Path) -> int:
    with Lake(folder) as lake:
        return int(lake.query("SELECT count(*) FROM ducklake_snapshots('lake')").item())


def test_acknowledged_is_committed(tmp_path: Path) -> None:
    with LakeWriter(str(tmp_path)) as writer:
        assert writer.put("ledger", ticks("s", 3)).result(30) is None
        assert count(tmp_path) == 3  # read by another connection, while the writer lives
        state = writer.state()
        assert (state.written, state.failed, state.buffered_rows) == ({"ledger": 3}, {}, 0)
        assert state.last_error is None
        assert state.last_commit_age_s is not None
        assert state.last_commit_age_s >= 0.0


def test_many_threads_share_few_commits_and_close_writes_what_waits(tmp_path: Path) -> None:
    with Lake(tmp_path):
        before = snapshots(tmp_path)
    writer = LakeWriter(str(tmp_path), max_wait_s=3600.0)
    futures: list[Future[None]] = [writer.put("ledger", ticks("first", 1))]  # nothing came before it
    futures[0].result(30)

    def send(number: int) -> None:
        futures.extend(writer.put("ledger", ticks(f"{number}", 2)) for _ in range(10))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not any(future.done() for future in futures[1:])
    writer.close()
    writer.close()
    assert all(future.result(0) is None for future in futures)
    assert count(tmp_path) == 161
    assert snapshots(tmp_path) == before + 2


def test_much_that_waits_goes_at_once(tmp_path: Path) -> None:
    with LakeWriter(str(tmp_path), max_rows=80, max_wait_s=3600.0) as writer:
        writer.put("ledger", ticks("a", 1)).result(30)
        assert not writer.put("ledger", ticks("b", 9)).done()
        writer.put("ledger", ticks("c", 1)).result(30)
        assert count(tmp_path) == 11


def test_a_full_buffer_refuses_at_once_and_takes_nothing(tmp_path: Path) -> None:
    with LakeWriter(str(tmp_path), max_rows=100, max_wait_s=3600.0) as writer:
        writer.put("ledger", ticks("large", 200)).result(30)  # larger than the bound, and none waited
        held = writer.put("ledger", ticks("held", 5))
        with pytest.raises(Busy, match=r"5 rows wait .* at most 100 may"):
            writer.put("ledger", ticks("too many", 96))
        assert writer.state().buffered_rows == 5
        assert not held.cancel()  # what was taken is written, whoever stops waiting
    assert count(tmp_path) == 205
    with pytest.raises(Busy, match="closed"):
        writer.put("ledger", ticks("late", 1))


def test_a_lost_catalog_fails_those_rows_and_the_writer_recovers(tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    catalog = folder / "catalog.sqlite"
    with LakeWriter(str(folder), max_wait_s=0.0) as writer:
        writer.put("ledger", ticks("before", 1)).result(30)
        kept = tmp_path / "kept"
        shutil.move(folder, kept)
        catalog.mkdir(parents=True)
        assert writer.put("ledger", ticks("lost", 2)).exception(60) is not None
        state = writer.state()
        assert (state.written["ledger"], state.failed["ledger"], state.buffered_rows) == (1, 2, 0)
        assert state.last_error
        shutil.rmtree(folder)
        shutil.move(kept, folder)
        writer.put("ledger", ticks("after", 3)).result(30)
        assert writer.state().last_error is None
    assert count(folder) == 4


@pytest.mark.parametrize(
    ("table", "frame", "says"),
    [
        ("ledgers", ticks("s", 1), "must be one of requests, outcomes"),
        ("ledger", ticks("s", 1).with_columns(colour=1), "'colour'"),
        ("ledger", ticks("s", 1).drop("source"), "'source'"),
        ("ledger", ticks("s", 1).with_columns(source=None), "'source'"),
        ("ledger", ticks("s", 1).with_columns(alarm=pl.lit("maybe")), "don't fit"),
    ],
)
def test_rows_that_do_not_fit_are_refused_before_they_spoil_others(
    tmp_path: Path, table: str, frame: pl.DataFrame, says: str
) -> None:
    with LakeWriter(str(tmp_path)) as writer:
        with pytest.raises(InputError, match=says):
            writer.put(table, frame)
        assert writer.state().buffered_rows == 0
