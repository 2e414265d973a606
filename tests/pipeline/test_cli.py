"""The command line as a user meets it: help, one sentence for bad input, and the way from trace to report."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import typer

from data.errors import InputError
from models.bundle import Bundle
from models.guard.guard import Guard
from pipeline import cli
from pipeline.terminal import console

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
Command = Callable[..., tuple[object, str, str]]
"""Runs the command line; gives exit code, stdout and stderr."""
ROOT = typer.main.get_command(cli.app)


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Path of the command and of all under it."""
    yield path
    for name, under in getattr(command, "commands", {}).items():
        yield from commands(under, (*path, name))


@pytest.fixture
def tidegate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command line in this process; gives exit code, stdout and stderr."""
    monkeypatch.setattr(console, "width", 100)

    def run(*arguments: object) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["tidegate", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return end.value.code, out, err

    return run


def azure_trace(path: Path, seconds: int) -> Path:
    """A trace of one request a second."""
    rows = (
        f"2026-01-05 {s // 3600:02}:{s // 60 % 60:02}:{s % 60:02}.0,{100 + s % 7},{10 + s % 3}\n"
        for s in range(seconds)
    )
    path.write_text(HEADER + "".join(rows))
    return path


def only_sentence(err: str) -> str:
    """The one line that stderr holds, without its opening."""
    (line,) = err.splitlines()
    assert line.startswith("tidegate: ")
    return line.removeprefix("tidegate: ")


def test_every_command_that_users_know_is_there() -> None:
    names = {" ".join(path) for path in commands(ROOT)}
    assert {"ingest", "synth", "backtest", "train", "serve", "traces list", "traces fetch"} <= names


@pytest.mark.parametrize("path", list(commands(ROOT)), ids=lambda path: " ".join(path) or "tidegate")
def test_help(path: tuple[str, ...], tidegate: Command) -> None:
    code, out, err = tidegate(*path, "--help")
    assert (code, err) == (0, "")
    assert f"Usage: tidegate {' '.join(path)}".rstrip() in out
    command: Any = ROOT
    for name in path:
        command = command.commands[name]
    assert command.help
    assert command.help.split()[0] in out
    for parameter in command.params:
        assert getattr(parameter, "help", None), f"{parameter.name} has no help"


def test_without_a_command_the_help_is_shown(tidegate: Command) -> None:
    code, out, err = tidegate()
    assert code == 2
    assert "Usage: tidegate" in out + err


@pytest.mark.parametrize("job", ["backtest", "train"])
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("missing.csv", "doesn't exist; give the path of a trace file"),
        ("folder", "is not a file; give the path of one trace file"),
        ("empty.csv", "is empty; a trace has a header or one request a line"),
        ("header.csv", "has a header but no rows; a trace has at least one request"),
        ("short.csv", "too short to train, calibrate and test apart"),
    ],
)
def test_a_trace_that_is_none_is_told_in_one_sentence(
    tmp_path: Path, tidegate: Command, job: str, name: str, sentence: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.csv").touch()
    (tmp_path / "header.csv").write_text(HEADER)
    azure_trace(tmp_path / "short.csv", seconds=300)
    code, _, err = tidegate(job, tmp_path / name, "--out", tmp_path / "out")
    assert code == 2
    assert sentence in only_sentence(err)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("fraction", ["1.5", "-0.2", "nan"])
def test_a_fraction_out_of_range_is_told_in_one_sentence(
    tmp_path: Path, tidegate: Command, fraction: str
) -> None:
    trace = azure_trace(tmp_path / "a.csv", seconds=300)
    code, _, err = tidegate("backtest", trace, "--out", tmp_path / "out", "--test-fraction", fraction)
    assert code == 2
    assert only_sentence(err) == f"Test fraction must be from 0 to 0.9; got {fraction}."
    assert not (tmp_path / "out").exists()


def test_a_fraction_that_is_no_number_is_told_by_the_option(tmp_path: Path, tidegate: Command) -> None:
    code, _, err = tidegate("backtest", "a.csv", "--out", tmp_path, "--test-fraction", "half")
    assert code == 2
    assert "Invalid value for '--test-fraction'" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["synth", "day.xlsx"],
            "The trace's name must end in one of .csv, .jsonl, .parquet; got 'day.xlsx'.",
        ),
        (["synth", "day.csv", "--days", "0"], "days must be from 0.0069 to 366; got 0.0."),
        (["traces", "fetch", "nothing"], "trace must be one of "),
        (
            ["serve", "--bundle", "nothing"],
            "Bundle nothing is not complete: nothing/bundle.json can't be read",
        ),
    ],
)
def test_other_commands_tell_bad_input_in_one_sentence_too(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tidegate: Command,
    arguments: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = tidegate(*arguments)
    assert code == 2
    assert only_sentence(err).startswith(sentence)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("odd", ["[/x]", "[bold]x[/bold]", "[red]", r"\[x]", ":warning:", "[link=a]b"])
def test_brackets_and_colons_in_an_error_are_printed_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
    tidegate: Command,
    odd: str,
) -> None:
    def fails() -> None:
        raise InputError(f"File {odd} is not there.")

    monkeypatch.setattr(cli, "app", fails)
    code, _, err = tidegate()
    assert code == 2
    assert only_sentence(err) == f"File {odd} is not there."


def test_a_fault_of_our_own_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "app", fails)
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_a_process_of_its_own_exits_with_2_and_no_traceback(tmp_path: Path) -> None:
    missing = tmp_path / "[" / "x].csv"
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.cli", "backtest", missing, "--out", tmp_path / "out"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == f"tidegate: {missing} doesn't exist; give the path of a trace file\n"
    assert "Traceback" not in done.stdout


def test_a_file_name_with_brackets_is_ingested_and_shown_as_it_is(tmp_path: Path, tidegate: Command) -> None:
    trace = azure_trace(tmp_path / "a[x].csv", seconds=3)
    code, said, err = tidegate("ingest", trace, "--lake", tmp_path / "lake")
    assert (code, err) == (0, "")
    row = next(line for line in said.splitlines() if "a[x]" in line)
    assert [cell.strip() for cell in row.split("│")[1:-1]] == ["a[x].csv", "3", "3", "0", "0"]


@pytest.mark.usefixtures("small_settings")
def test_from_a_workload_to_a_report_and_a_bundle(tmp_path: Path, tidegate: Command) -> None:
    day, out = tmp_path / "[day].csv", tmp_path / "out"
    code, said, _ = tidegate("synth", day, "--days", "0.05", "--rate", "3", "--seed", "4")
    assert code == 0
    assert said.endswith(f"{day}, its causes in {tmp_path / '[day].truth.csv'}\n")

    code, said, err = tidegate(
        "backtest", day, "--out", out, "--tracking", "", "--seed", "9", "--test-fraction", "0.4"
    )
    assert (code, err) == (0, "")
    assert said.endswith(f"Report: {out / 'report.html'}\n")
    report = json.loads((out / "report.json").read_text())
    assert all(sentence in said for sentence in report["verdict"]["sentences"])
    assert report["trace"]["requests"] == pl.read_csv(day, glob=False).height
    assert (report["settings"]["seed"], report["settings"]["test_fraction"]) == (9, 0.4)
    counted = sum(row["onsets"] for row in report["recall_by_cause"])
    assert counted == report["contenders"][0]["scores"]["onsets"]

    code, said, err = tidegate("train", day, "--out", tmp_path / "bundle", "--seed", "9")
    assert (code, err) == (0, "")
    bundle = Bundle.load(tmp_path / "bundle")
    assert said.endswith(f"Bundle: {tmp_path / 'bundle'} ({bundle.version})\n")
    guard = bundle.manifest.guard
    assert (
        guard.advisory_reason or Guard.start(guard).reason or "Calibrated: forecasts may tighten."
    ) in said
