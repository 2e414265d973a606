import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import polars as pl
import pytest

from data.errors import InputError
from data.lake import Lake
from data.lake.check import check
from data.lake.compaction import compact
from data.lake.files import data_files
from data.readers import POLARS_QUARANTINE
from data.schema import POLARS_REQUESTS, TABLES

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def requests(source: str, ids: list[str], start_s: float = 0.0) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "source": [source] * len(ids),
            "request_id": ids,
            "arrived_at": [EPOCH + timedelta(seconds=start_s + n) for n in range(len(ids))],
            "prompt_tokens": [10] * len(ids),
        },
        schema_overrides={"arrived_at": POLARS_REQUESTS["arrived_at"]},
    )


def test_what_is_appended_comes_back_by_arrival(location: str) -> None:
    full = requests("s", ["s:9", "s:10", "s:11"]).with_columns(
        arrived_at=pl.lit(EPOCH + timedelta(microseconds=1)),
        block_hashes=pl.Series([[1, 2], [], None], dtype=pl.List(pl.Int64)),
        block_tokens=pl.lit(512, pl.Int32),
        finished_at=pl.lit(EPOCH + timedelta(seconds=2.5)),
    )
    with Lake(location) as lake:
        lake.append_requests(full.reverse())
        lake.append_requests(requests("other", ["x"]))
        back = lake.requests("s")
        assert dict(back.schema) == POLARS_REQUESTS
        assert back["request_id"].to_list() == ["s:9", "s:10", "s:11"]
        assert back.select(full.columns).equals(full.cast({"arrived_at": back["arrived_at"].dtype}))
        assert back["lane"].null_count() == 3
        assert lake.requests()["source"].to_list() == ["other", "s", "s", "s"]


def test_many_rows_come_back_in_order(location: str) -> None:
    count = 300_000
    frame = pl.DataFrame({"n": range(count)}).select(
        source=pl.lit("s"),
        request_id=pl.format("s:{}", "n"),
        arrived_at=(pl.col("n") // 3).cast(POLARS_REQUESTS["arrived_at"]),
        prompt_tokens="n",
    )
    with Lake(location) as lake:
        lake.append_requests(frame.sample(fraction=1, shuffle=True, seed=1))
        assert lake.requests("s")["prompt_tokens"].equals(frame["prompt_tokens"])


def test_a_lake_lasts_and_may_move(tmp_path: Path) -> None:
    with Lake(tmp_path / "a") as lake:
        lake.append_requests(requests("s", [f"{n}" for n in range(200)]))
    (tmp_path / "a").rename(tmp_path / "b")
    with Lake(tmp_path / "b") as lake:
        assert lake.sources().rows() == [("s", 200, EPOCH, EPOCH + timedelta(seconds=199))]


def test_an_empty_lake_has_every_table(location: str) -> None:
    with Lake(location) as lake:
        for table in TABLES:
            frame = lake.query(f"FROM lake.{table.name}")
            assert frame.columns == [column.name for column in table.columns]
            assert [*frame.schema.values()] == [column.polars for column in table.columns]
        assert lake.sources().height == 0
        assert lake.requests("nobody").height == 0
        lake.append_requests(pl.DataFrame(schema=POLARS_REQUESTS))
        assert lake.requests().height == 0


def test_quarantine(location: str) -> None:
    row = {"source": "s", "file": "f.csv", "line": 3, "reason": "it is 'bad'", "raw": "a,b\u2028c"}
    with Lake(location) as lake:
        lake.append_quarantine(pl.DataFrame([row], schema=POLARS_QUARANTINE))
        assert lake.query("FROM lake.quarantine").drop("at").to_dicts() == [row]


def test_a_failed_transaction_leaves_nothing(location: str) -> None:
    with Lake(location) as lake:

        def write() -> None:
            lake.insert("requests", requests("s", ["a"]))
            raise KeyError("in the middle")

        with pytest.raises(KeyError):
            lake.transact(write)
        assert lake.requests().height == 0
        with pytest.raises(duckdb.ConstraintException):
            lake.append_requests(requests("s", ["a"]).drop("prompt_tokens"))
        lake.append_requests(requests("s", ["a"]))
        assert lake.requests().height == 1


def test_files_survive_a_rollback_so_that_a_retry_can_add_them_again(location: str) -> None:
    with Lake(location) as lake:
        file = lake.new_file("requests")
        empty = pl.DataFrame(schema=POLARS_REQUESTS)
        pl.concat([empty, requests("s", ["a", "b"])], how="diagonal").write_parquet(file)
        attempts = 0

        def write() -> None:
            nonlocal attempts
            attempts += 1
            lake.add_files("requests", [file])
            if attempts == 1:
                raise duckdb.TransactionException("Failed to commit: database is locked")

        lake.transact(write)
        assert attempts == 2
        assert lake.requests("s")["request_id"].to_list() == ["a", "b"]


def test_an_error_that_is_no_conflict_is_not_tried_again(location: str) -> None:
    attempts = 0

    def write() -> None:
        nonlocal attempts
        attempts += 1
        raise duckdb.BinderException("no such column")

    with Lake(location) as lake, pytest.raises(duckdb.BinderException):
        lake.transact(write)
    assert attempts == 1


def test_what_is_no_lake_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "catalog.sqlite").write_text("not a database " * 100)
    for name in ("file", "folder"):
        with pytest.raises(InputError, match=r"can't be opened as a lake: .*; give a writable folder"):
            Lake(tmp_path / name)


def write_some(location: str, source: str, appends: int) -> None:
    with Lake(location) as lake:
        for n in range(appends):
            # Small appends stay in the catalog, larger ones become Parquet: both must hold.
            size = 2 if n % 2 else 40
            lake.append_requests(requests(source, [f"{n}-{k}" for k in range(size)], start_s=n))


def test_two_writing_processes_and_a_reader_lose_no_row(location: str) -> None:
    appends = 12
    writers = [
        subprocess.Popen([sys.executable, __file__, location, source, str(appends)])
        for source in ("one", "two")
    ]
    seen = [0]
    with Lake(location) as lake:
        while any(writer.poll() is None for writer in writers):
            seen.append(lake.requests().height)
            time.sleep(0.02)
        for writer in writers:
            assert writer.wait() == 0
        rows = appends // 2 * (2 + 40)
        assert lake.sources()["rows"].to_list() == [rows, rows]
        assert lake.requests().select("source", "request_id").n_unique() == 2 * rows
    assert seen == sorted(seen)  # what was seen once never vanishes
    assert all(count % 2 == 0 for count in seen)  # and no append is seen in part


def test_compaction_beside_writers_and_a_reader_loses_no_row(location: str) -> None:
    appends = 12
    writers = [
        subprocess.Popen([sys.executable, __file__, location, source, str(appends)])
        for source in ("one", "two")
    ]
    seen = [0]
    with Lake(location) as reader, Lake(location) as keeper:
        while any(writer.poll() is None for writer in writers):
            compact(keeper, history=timedelta(0))
            seen.append(reader.requests().height)
        for writer in writers:
            assert writer.wait() == 0
        compact(keeper)
        rows = appends // 2 * (2 + 40)
        assert reader.sources()["rows"].to_list() == [rows, rows]
        assert data_files(reader)["rows"].to_list() == [2 * rows]
        assert check(reader) == []
    assert seen == sorted(seen)


if __name__ == "__main__":
    write_some(sys.argv[1], sys.argv[2], int(sys.argv[3]))
