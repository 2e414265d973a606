import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from data.readers import Trace, sha256_of
from pipeline import cli
from pipeline.report import HTML_FILE, JSON_FILE, validate
from pipeline.terminal import console
from tests.pipeline.conftest import Run

Command = Callable[..., tuple[object, str, str]]


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `tidegate simulate`; gives exit code, stdout and stderr."""
    monkeypatch.setattr(console, "width", 100)

    def run(*arguments: object) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["tidegate", "simulate", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return end.value.code, out, err

    return run


@pytest.fixture
def trace_file(hour: Trace, tmp_path: Path) -> Path:
    path = tmp_path / "hour.parquet"
    hour.requests.write_parquet(path)
    return path


@pytest.fixture
def folder(hour_run: Run, trace_file: Path, tmp_path: Path) -> Path:
    """A real backtest, of the hour as it lies in the file."""
    path = shutil.copytree(hour_run.out, tmp_path / "backtest", ignore=shutil.ignore_patterns("bundle"))
    report = json.loads((path / JSON_FILE).read_text("utf-8"))
    report["trace"]["sha256"] = sha256_of(trace_file)
    (path / JSON_FILE).write_text(json.dumps(report), "utf-8")
    return path


def written(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in (JSON_FILE, HTML_FILE)]


def test_a_backtest_is_played_to_users_and_its_report_says_so(
    simulate: Command, trace_file: Path, folder: Path
) -> None:
    code, said, err = simulate(trace_file, "--backtest", folder)
    assert (code, err) == (0, "")
    for words in ("What users get", "play to rules and oracle", "can't be told from under five hours"):
        assert words in said
    assert f"Report: {folder / HTML_FILE}" in said
    report = json.loads((folder / JSON_FILE).read_text("utf-8"))
    validate(report)
    found, test = report["simulation"], report["split"]["test"]
    assert found["span"]["start_s"] == test["start_s"]
    assert 0 <= found["span"]["end_s"] - test["end_s"] < 5
    assert found["settings"] == {"load": 0.6, "kv_room": 0.6, "replicas": None, "waits": False, "seed": 0}
    assert found["config_sha256"] is None
    assert b"<h2>What users get</h2>" in (folder / HTML_FILE).read_bytes()
    # Too little traffic to calibrate on: no alarm, and so the rules alone.
    rules, forecast, _ = (arm["lanes"] for arm in found["arms"])
    assert forecast == rules

    first = written(folder)
    assert simulate(trace_file, "--backtest", folder)[0] == 0
    assert written(folder) == first


def test_rules_come_from_the_configuration_and_the_fleet_from_the_options(
    simulate: Command, trace_file: Path, folder: Path, tmp_path: Path
) -> None:
    config = tmp_path / "tidegate.yaml"
    config.write_text("engine: {profile: a100, capacity_tokens: 60000}\n")
    options = ("--config", config, "--replicas", 2, "--kv-room", 0, "--wait", "--seed", 7)
    code, said, err = simulate(trace_file, "--backtest", folder, *options)
    assert (code, err) == (0, "")
    found = json.loads((folder / JSON_FILE).read_text("utf-8"))["simulation"]
    assert found["settings"] == {"load": 0.6, "kv_room": None, "replicas": 2, "waits": True, "seed": 7}
    assert found["config_sha256"] == sha256_of(config)
    assert (found["fleet"]["engine"], found["fleet"]["replicas"]) == ("llama2-70b on 8 A100-80GB", 2)
    assert (found["fleet"]["capacity_tokens"], found["fleet"]["kv_tokens"]) == (60_000, 2 * 83_500 * 16)
    assert "2 replicas of llama2-70b on 8 A100-80GB" in " ".join(said.split())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--load", "0"), "The load must be over 0, such as 0.6; got 0."),
        (("--load", "nan"), "The load must be over 0, such as 0.6; got nan."),
        (("--kv-room", "1.5"), "The KV room must be over 0 and at most 1; got 1.5."),
        (("--replicas", "0"), "A fleet must have 1 or more replicas; got 0."),
        (("--config", "/no/such/tidegate.yaml"), "/no/such/tidegate.yaml"),
    ],
)
def test_what_cannot_be_played_is_told_in_a_sentence_and_nothing_is_written(
    simulate: Command, trace_file: Path, folder: Path, options: tuple[str, str], sentence: str
) -> None:
    before = written(folder)
    code, _, err = simulate(trace_file, "--backtest", folder, *options)
    assert code == 2
    assert err.startswith("tidegate: ")
    assert sentence in err
    assert written(folder) == before


def test_a_trace_or_a_backtest_that_is_none_is_told_in_a_sentence(
    simulate: Command, trace_file: Path, folder: Path, tmp_path: Path
) -> None:
    code, _, err = simulate(tmp_path / "missing.csv", "--backtest", folder)
    assert (code, "doesn't exist; give the path of a trace file" in err) == (2, True)
    code, _, err = simulate(trace_file, "--backtest", tmp_path)
    assert (code, "must be a folder that `tidegate backtest` wrote" in err) == (2, True)
    other = tmp_path / "other.csv"
    other.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00.0000000,10,20\n")
    code, _, err = simulate(other, "--backtest", folder)
    assert (code, "must be a backtest of the same trace" in err) == (2, True)
