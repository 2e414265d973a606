"""Compaction, retention, statistics, checks and exports of one lake after the other."""

import json
import os
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from data.errors import InputError
from data.ingest import ingest
from data.lake import Lake
from data.lake.check import check
from data.lake.compaction import compact
from data.lake.export import export
from data.lake.files import data_files, orphans
from data.lake.retention import retain
from data.lake.stats import source_stats, table_stats
from data.schema import POLARS_REQUESTS, TABLES
from pipeline.cli import app

START = datetime(2024, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)
NOTHING = timedelta(0)


def rows(source: str, count: int, first_hour: float, step_hours: float) -> pl.DataFrame:
    arrivals = [START + timedelta(hours=first_hour + step_hours * n) for n in range(count)]
    return pl.DataFrame(
        {
            "source": [source] * count,
            "request_id": [f"{source}:{first_hour}:{n}" for n in range(count)],
            "arrived_at": arrivals,
            "prompt_tokens": range(count),
        },
        schema_overrides={"arrived_at": POLARS_REQUESTS["arrived_at"]},
    )


def end(source: str, request_id: str, at: datetime) -> pl.DataFrame:
    schema = next(table for table in TABLES if table.name == "outcomes").polars
    row = {"source": source, "request_id": request_id, "finished_at": at, "outcome": "served"}
    return pl.DataFrame([row], schema=schema)


def fill(lake: Lake) -> None:
    """Four days of two sources: files of two days each, and rows that wait in the catalog."""
    for day in range(3):
        lake.append("requests", rows("s", 100, 24 * day, 0.3))
        lake.append("requests", rows("t", 3, 24 * day, 1))


def later() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=5)


def sentences(lake: Lake) -> list[str]:
    return [finding.sentence for finding in check(lake) if finding.problem]


def test_compaction_makes_one_file_a_day_and_keeps_every_row(location: str) -> None:
    with Lake(location) as lake:
        fill(lake)
        before = lake.requests()
        done = compact(lake)
        assert (done.flushed_rows, done.merged_files, done.made_files, done.skipped_files) == (9, 4, 4, 0)
        assert lake.requests().equals(before)
        files = data_files(lake).filter(pl.col("table") == "requests")
        days = [date(2024, 3, n) for n in (1, 2, 3, 4)]
        assert files["first_day"].to_list() == files["last_day"].to_list() == days
        assert files["rows"].to_list() == [83, 103, 103, 20]
        again = compact(lake)
        assert (again.flushed_rows, again.merged_files, again.made_files) == (0, 0, 0)
        lake.append("requests", rows("u", 30, 0, 0.1))
        assert compact(lake).merged_files == 2  # that day alone
        assert data_files(lake).height == 4
        assert sentences(lake) == []


def test_files_are_deleted_after_the_grace_period_only(location: str) -> None:
    with Lake(location) as lake:
        fill(lake)
        compact(lake)
        on_disk = {*lake.data.rglob("*.parquet")}
        assert compact(lake, history=NOTHING, now=later()).deleted_files == 0
        assert {*lake.data.rglob("*.parquet")} >= on_disk
        gone = compact(lake, grace=NOTHING, history=NOTHING, now=later())
        assert gone.deleted_files > 0
        assert {str(path) for path in lake.data.rglob("*.parquet")} == {*data_files(lake)["path"]}
        assert lake.requests().height == 309


def test_files_of_an_ingest_under_way_are_left_alone(location: str) -> None:
    with Lake(location) as lake:
        lost = lake.stage("requests", rows("s", 3, 0, 1))
        lake.end_staging()
        with Lake(location) as other:
            staged = other.stage("requests", rows("o", 50, 0, 1))
            done = compact(lake, grace=NOTHING, now=later())
            assert done.staging
            assert all(path.exists() for path in staged + lost)
            other.transact(lambda: other.add_files("requests", staged))
        done = compact(lake, grace=NOTHING, now=later())
        assert not done.staging
        assert done.deleted_files == len(lost)
        assert orphans(lake) == []
        assert lake.requests()["source"].unique().to_list() == ["o"]


def test_rows_without_a_time_survive_compaction_and_retention(location: str) -> None:
    schema = next(table for table in TABLES if table.name == "quarantine").polars
    aside = pl.DataFrame(
        {"source": "s", "file": "f", "line": 1, "reason": "bad", "raw": "", "at": [None, START, START + DAY]},
        schema=schema,
    )
    with Lake(location) as lake:
        lake.append("quarantine", aside)
        compact(lake)
        compact(lake)
        assert retain(lake, 1, table="quarantine", now=START + 2 * DAY)["rows"].to_list() == [1]
        assert lake.query('FROM lake.quarantine ORDER BY "at" NULLS FIRST')["at"].to_list() == [
            None,
            START + DAY,
        ]


def test_retention_drops_whole_files_and_tells_before(location: str) -> None:
    with Lake(location) as lake:
        fill(lake)
        compact(lake)
        now = START + 3 * DAY + timedelta(hours=7)
        told = retain(lake, 1, dry_run=True, now=now)
        assert lake.requests().height == 309
        done = retain(lake, 1, now=now)
        assert told.equals(done)
        assert done.filter(pl.col("table") == "requests").row(0) == ("requests", 186, 2, START + 2 * DAY)
        assert lake.requests()["arrived_at"].min() == START + 2 * DAY
        assert data_files(lake)["first_day"].to_list() == [date(2024, 3, 3), date(2024, 3, 4)]
        assert sentences(lake) == []
        with pytest.raises(InputError, match=r"table must be one of requests, .*; got 'nowhere'"):
            retain(lake, 1, table="nowhere")
        with pytest.raises(InputError, match="days must be 0 or more; got -1"):
            retain(lake, -1)


def test_statistics(location: str, tmp_path: Path) -> None:
    with Lake(location) as lake:
        fill(lake)
        trace = tmp_path / "v.csv"
        trace.write_text(
            "request_id,arrived_at,prompt_tokens\na,2024-03-02T00:00:00Z,5\nb,2024-03-02T00:00:01Z,-1\n"
        )
        ingest(trace, lake)
        tables = {row["table"]: row for row in table_stats(lake).to_dicts()}
        assert tables["requests"]["rows"] == 310
        assert (tables["requests"]["waiting_rows"], tables["requests"]["files"]) == (9, 4)
        assert tables["requests"]["size_bytes"] > 0
        assert tables["decisions"] == {
            "table": "decisions", "rows": 0, "waiting_rows": 0, "files": 0, "size_bytes": 0,
        }  # fmt: skip
        days = source_stats(lake)
        assert days.filter(source="s")["rows"].to_list() == [80, 100, 100, 20]
        assert days.filter(source="t")["files"].to_list() == [0, 0, 0]
        assert days.filter(source="v").select("rows", "quarantined").sum().row(0) == (1, 1)
        assert days.filter(source="s")["last"].to_list()[0] == START + timedelta(hours=23.7)
        whole = data_files(lake).filter(pl.col("table") == "requests")["size_bytes"].sum()
        assert abs(days["size_bytes"].sum() - whole) <= days.height  # rounding


def test_what_is_wrong_is_told(location: str) -> None:
    with Lake(location) as lake:
        fill(lake)
        assert check(lake) == []
        lake.append("requests", rows("s", 2, 0, 0.3))
        lake.append("outcomes", end("s", "nobody", START + 2 * DAY))
        lake.append("outcomes", end("s", "dropped by retention the day before", START))
        lost = lake.stage("requests", rows("x", 1, 0, 1))
        found = check(lake)
        assert [finding.sentence for finding in found if finding.problem] == [
            "requests: 2 ids of s were stored more than once, such as s:0:0",
            "outcomes: 1 of s have no request, such as nobody",
        ]
        assert [finding.sentence for finding in found if not finding.problem] == [
            f"{lost[0]} belongs to no table: a write was cut off, or is under way"
        ]
        missing, cut, changed = (Path(path) for path in data_files(lake)["path"].to_list()[:3])
        missing.unlink()
        cut.write_bytes(cut.read_bytes()[:-10])
        content = bytearray(changed.read_bytes())
        content[-4:] = b"none"
        changed.write_bytes(content)
    with Lake(location) as lake:
        told = sentences(lake)
        assert len(told) == 3
        assert f"{missing} is missing" in told[0]
        assert f"{cut} has " in told[1]
        assert f"{changed} can't be read" in told[2]


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_what_is_exported_can_be_ingested_again(location: str, form: str, tmp_path: Path) -> None:
    with Lake(location) as lake:
        fill(lake)
        lake.append("outcomes", end("s", "s:0:1", START + timedelta(hours=1)))
        out = tmp_path / "out"
        written = export(lake, out, form=form, source="s", since=START + DAY / 2, until=START + 2 * DAY)  # type: ignore[arg-type]
        assert [path.name for path in written] == [f"2024-03-01.{form}", f"2024-03-02.{form}"]
        assert [*written.values()] == [40, 100]
        original = lake.requests("s", START + DAY / 2, START + 2 * DAY)
    with Lake(tmp_path / "second") as second:
        for path in written:
            ingest(path, second, source="s")
        assert second.requests("s").drop("source").equals(original.drop("source"))


def test_what_can_not_be_exported_is_told(location: str, tmp_path: Path) -> None:
    with Lake(location) as lake:
        fill(lake)
        with pytest.raises(InputError, match="form must be one of parquet, csv; got 'xml'"):
            export(lake, tmp_path, form="xml")  # type: ignore[arg-type]
        with pytest.raises(InputError, match="table must be one of"):
            export(lake, tmp_path, table="nowhere")
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match="can't be written"):
            export(lake, tmp_path / "file")


@settings(max_examples=4, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9 * 24), min_size=1, max_size=30), min_size=1, max_size=3))
def test_compaction_changes_no_answer(
    tmp_path_factory: pytest.TempPathFactory, appends: list[list[int]]
) -> None:
    with Lake(tmp_path_factory.mktemp("lake")) as lake:
        for number, hours in enumerate(appends):
            frame = pl.concat([rows(f"s{number}", 1, hour, 0) for hour in hours]).with_columns(
                request_id=pl.int_range(pl.len()).cast(pl.String)
            )
            lake.append("requests", frame)
        before = lake.requests()
        compact(lake)
        assert lake.requests().equals(before)
        files = data_files(lake)
        assert files["first_day"].to_list() == sorted(set(before["arrived_at"].dt.date()))
        assert files["first_day"].equals(files["last_day"].alias("first_day"))


def test_the_commands(location: str, tmp_path: Path) -> None:
    run = CliRunner()
    with Lake(location) as lake:
        fill(lake)
    place = ["--lake", location]
    stats = json.loads(run.invoke(app, ["lake", "stats", "--json", *place]).output)
    assert stats["tables"][0]["rows"] == 309
    assert stats["sources"][0]["day"] == "2024-03-01"
    assert "2024-03-04" in run.invoke(app, ["lake", "stats", *place]).output
    compacted = run.invoke(app, ["lake", "compact", *place]).output
    assert "9 rows moved from the catalog to files; 4 files became 4" in compacted
    exported = run.invoke(
        app, ["lake", "export", "--to", str(tmp_path / "o"), "--until", "2024-03-02", *place]
    )
    assert "83 rows in 1 files" in exported.output
    told = run.invoke(app, ["lake", "retain", "--days", "1", "--dry-run", *place], env={"COLUMNS": "120"})
    assert "309" in told.output
    clean = run.invoke(app, ["lake", "check", *place])
    assert (clean.exit_code, "has 0 faults; schema version 1" in clean.output) == (0, True)
    with Lake(location) as lake:
        Path(data_files(lake)["path"][0]).unlink()
    broken = run.invoke(app, ["lake", "check", *place])
    assert (broken.exit_code, "is missing" in broken.output.replace("\n", " ")) == (1, True)


def test_help_tells_what_each_command_does() -> None:
    environment = os.environ | {"COLUMNS": "120", "NO_COLOR": "1"}
    for command in ("stats", "compact", "retain", "check", "export"):
        shown = subprocess.run(
            [sys.executable, "-m", "pipeline.cli", "lake", command, "--help"],
            capture_output=True, text=True, check=True, env=environment,
        ).stdout  # fmt: skip
        assert "TIDEGATE_LAKE" in shown
