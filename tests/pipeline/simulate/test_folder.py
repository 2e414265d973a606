import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from data.errors import InputError
from pipeline import backtest
from pipeline.report import HTML_FILE, JSON_FILE
from pipeline.simulate.folder import TICKS_FILE, add_to_report, read_folder
from tests.pipeline.conftest import Run
from tests.pipeline.simulate.sample_simulation import simulation

SHA256 = "0" * 64


@pytest.fixture
def copied(hour_run: Run, tmp_path: Path) -> Path:
    """A copy of the folder of a real backtest."""
    return shutil.copytree(hour_run.out, tmp_path / "backtest", ignore=shutil.ignore_patterns("bundle"))


def test_what_a_backtest_wrote_is_read(hour_run: Run, copied: Path) -> None:
    assert TICKS_FILE == backtest.TICKS_FILE
    found = read_folder(copied, SHA256)
    assert found.report == json.loads((hour_run.out / JSON_FILE).read_text("utf-8"))
    assert found.ticks.equals(hour_run.result.ticks)


def test_a_simulation_adds_to_the_report_and_changes_nothing_else_in_it(copied: Path) -> None:
    before = {name: (copied / name).read_text("utf-8") for name in (JSON_FILE, HTML_FILE)}
    assert add_to_report(read_folder(copied, SHA256), simulation()) == copied / HTML_FILE
    report = json.loads((copied / JSON_FILE).read_text("utf-8"))
    assert report.pop("simulation") == simulation()
    assert report == json.loads(before[JSON_FILE])
    page = (copied / HTML_FILE).read_text("utf-8")
    start, end = page.index("<h2>What users get</h2>"), page.index("<h2>Contenders")
    assert (page[:start] + page[end:]).split() == before[HTML_FILE].split()


def test_a_later_simulation_takes_the_place_of_an_earlier_one(copied: Path) -> None:
    other = simulation() | {"unknown_output": 4_711}
    add_to_report(read_folder(copied, SHA256), simulation())
    first = [(copied / name).read_bytes() for name in (JSON_FILE, HTML_FILE)]
    add_to_report(read_folder(copied, SHA256), other)
    assert b"4,711 requests of unknown length" in (copied / HTML_FILE).read_bytes()
    add_to_report(read_folder(copied, SHA256), simulation())
    assert [(copied / name).read_bytes() for name in (JSON_FILE, HTML_FILE)] == first


def test_bursts_and_lead_times_of_the_page_come_from_the_ticks(run: Run, tmp_path: Path) -> None:
    folder = shutil.copytree(run.out, tmp_path / "day", ignore=shutil.ignore_patterns("bundle"))
    before = (folder / HTML_FILE).read_text("utf-8")
    assert "anticipated onsets" in before
    add_to_report(read_folder(folder, run.trace.sha256), simulation())
    page = (folder / HTML_FILE).read_text("utf-8")
    start, end = page.index("<h2>What users get</h2>"), page.index("<h2>Contenders")
    assert (page[:start] + page[end:]).split() == before.split()


def spoil_report(copied: Path, **changed: object) -> None:
    report = json.loads((copied / JSON_FILE).read_text("utf-8"))
    (copied / JSON_FILE).write_text(json.dumps(report | changed), "utf-8")


@pytest.mark.parametrize("name", [JSON_FILE, TICKS_FILE])
def test_a_folder_that_lacks_a_file_is_none_of_a_backtest(copied: Path, name: str) -> None:
    (copied / name).unlink()
    with pytest.raises(InputError, match=rf"that `tidegate backtest` wrote; .*backtest has no {name}\.$"):
        read_folder(copied, SHA256)


def test_a_folder_that_is_not_there_or_a_file_is_told(copied: Path) -> None:
    with pytest.raises(InputError, match=r"that `tidegate backtest` wrote; .*nowhere has no report.json"):
        read_folder(copied / "nowhere", SHA256)
    with pytest.raises(InputError, match=r"that `tidegate backtest` wrote; .*report.html has no report.json"):
        read_folder(copied / HTML_FILE, SHA256)


def test_a_backtest_of_another_trace_is_refused_by_its_hash(copied: Path) -> None:
    with pytest.raises(InputError, match=r"is one of hour, whose file has SHA-256 000000000000…, not ffff"):
        read_folder(copied, "f" * 64)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": 1}', "\xff"])
def test_a_report_of_another_form_asks_for_another_backtest(copied: Path, text: str) -> None:
    (copied / JSON_FILE).write_bytes(text.encode("latin-1"))
    with pytest.raises(
        InputError, match=r"is no report of this version of Tidegate \(.*Run the backtest again"
    ):
        read_folder(copied, SHA256)


def test_a_report_of_an_earlier_version_is_refused(copied: Path) -> None:
    spoil_report(copied, schema_version=1)
    with pytest.raises(InputError, match="2 was expected"):
        read_folder(copied, SHA256)


def test_ticks_that_lack_columns_or_rows_or_are_no_parquet_are_refused(copied: Path) -> None:
    ticks = pl.read_parquet(copied / TICKS_FILE)
    ticks.drop("tightening", "load").write_parquet(copied / TICKS_FILE)
    with pytest.raises(InputError, match=r"lacks the columns tightening, load. Run the backtest again"):
        read_folder(copied, SHA256)
    ticks[[0, 1, 3]].write_parquet(copied / TICKS_FILE)
    with pytest.raises(InputError, match="without a gap"):
        read_folder(copied, SHA256)
    ticks.clear().write_parquet(copied / TICKS_FILE)
    with pytest.raises(InputError, match="not empty"):
        read_folder(copied, SHA256)
    (copied / TICKS_FILE).write_text("t_s,alarm\n0,1\n")
    with pytest.raises(InputError, match="can't be read as Parquet"):
        read_folder(copied, SHA256)


def test_ticks_of_another_span_are_refused(copied: Path) -> None:
    ticks = pl.read_parquet(copied / TICKS_FILE)
    ticks[1:].write_parquet(copied / TICKS_FILE)
    with pytest.raises(InputError, match=r"must begin where the test span of report.json does, at second"):
        read_folder(copied, SHA256)
