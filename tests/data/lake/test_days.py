"""One file a day: what is staged, ingested, and freed of repeats."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.ingest import ingest
from data.lake import Lake
from data.lake.files import data_files
from data.lake.lake import _by_day
from data.schema import UTC_US

START = datetime(2024, 3, 1, tzinfo=UTC)


@given(st.lists(st.none() | st.integers(0, 200), min_size=1))
def test_every_row_lands_in_the_part_of_its_day(hours: list[int | None]) -> None:
    times = [None if hour is None else START + timedelta(hours=hour) for hour in hours]
    frame = pl.DataFrame({"at": times, "n": range(len(times))}, schema={"at": UTC_US, "n": pl.Int64})
    parts = [*_by_day(frame, "at")]
    days = [set(part["at"].dt.date()) for part in parts]
    assert all(len(day) == 1 for day in days)
    assert len(set.union(*days)) == len(parts)
    for part in parts:  # rows of a day keep their order
        assert part["n"].is_sorted()
    assert sorted(pl.concat(parts).rows(), key=lambda row: row[1]) == frame.rows()


def trace(path: Path, ids: list[int]) -> Path:
    lines = [f"r{n},{(START + timedelta(hours=8 * n)).isoformat()},{n + 1}" for n in ids]
    path.write_text("request_id,arrived_at,prompt_tokens\n" + "\n".join(lines) + "\n")
    return path


def days(lake: Lake) -> list[tuple[int, bool]]:
    """Rows of each file of requests, and whether it is one day's."""
    files = data_files(lake).filter(pl.col("table") == "requests")
    return files.select("rows", pl.col("first_day") == pl.col("last_day")).rows()


def test_an_ingest_of_several_days_out_of_order(location: str, tmp_path: Path) -> None:
    with Lake(location) as lake:
        ingest(trace(tmp_path / "t.csv", [5, 0, 7, 3, 1, 8, 2, 4, 6]), lake)
        assert days(lake) == [(3, True)] * 3


def test_files_without_repeats_stay_and_those_of_repeats_alone_go(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data.ingest.FILE_ROWS", 1)
    with Lake(location) as lake:
        ingest(trace(tmp_path / "one.csv", [0, 1, 2, 4]), lake, source="s")
        assert days(lake) == [(3, True), (1, True)]
        again = ingest(trace(tmp_path / "two.csv", [0, 1, 2, 3, 4, 4, 5, 6, 6]), lake, source="s")
        assert (again.stored, again.duplicates) == (3, 6)
        assert days(lake) == [(3, True), (1, True), (2, True), (1, True)]
        assert lake.requests("s")["prompt_tokens"].to_list() == [1, 2, 3, 4, 5, 6, 7]
        assert {str(path) for path in lake.data.rglob("*.parquet")} == {*data_files(lake)["path"]}


def test_a_stage_that_fails_leaves_no_file(location: str) -> None:
    frame = pl.DataFrame({"arrived_at": [START, START + timedelta(days=1)]}, schema={"arrived_at": UTC_US})
    with Lake(location) as lake:
        given = lake.new_file
        made: list[Path] = []

        def full_at_the_second(table: str) -> Path:
            made.append(given(table))
            return made[-1] if len(made) < 2 else made[-1] / "below a file" / "x"

        lake.new_file = full_at_the_second  # type: ignore[method-assign]
        with pytest.raises(OSError, match="below a file"):
            lake.stage("requests", frame)
        assert len(made) == 2
        assert [*lake.data.rglob("*.parquet")] == []
