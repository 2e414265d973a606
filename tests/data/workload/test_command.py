import sys
from pathlib import Path

import pytest

from data.readers import load_trace
from pipeline.cli import main


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["tidegate", "synth", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


def test_synth_writes_a_trace_and_its_truth(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "hour.csv"
    assert run(monkeypatch, str(path), "--days", "0.02", "--seed", "5", "--rate", "4") == 0
    trace = load_trace(path)
    assert trace.requests.height == pytest.approx(0.02 * 86_400 * 4, rel=0.15)
    causes = len((tmp_path / "hour.truth.csv").read_text().splitlines()) - 1
    printed = capsys.readouterr().out
    assert f"{trace.requests.height:,}" in printed
    assert "cause: cron" in printed
    assert causes > 10


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["hour.txt"], "must end in one of"), (["hour.csv", "--days", "0"], "days must be from")],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    words: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, *words) == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
