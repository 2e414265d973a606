import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pipeline import cli
from pipeline.suite import Sizes
from pipeline.terminal import console

Command = Callable[..., tuple[object, str, str]]


@pytest.fixture
def evaluate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `tidegate evaluate` on a tiny suite; gives exit code, stdout and stderr."""
    monkeypatch.setattr(console, "width", 300)
    monkeypatch.setattr("pipeline.suite.Sizes", partial(Sizes, noise_days=0.02, noise_per_s=1.0))
    monkeypatch.delenv("TIDEGATE_TRACES", raising=False)

    def run(*arguments: object) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["tidegate", "evaluate", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return end.value.code, out, err

    return run


def test_one_case_of_the_suite_from_the_command_line(evaluate: Command, tmp_path: Path) -> None:
    code, said, err = evaluate("--suite", "--only", "zeros", "--out", tmp_path / "suite")
    assert (code, err) == (0, "")
    assert "Real traces and ServeGen are left out" in said
    assert "refused: No request of zeros has work" in said
    assert "1 of 1 cases went as promised" in said
    assert (tmp_path / "suite" / "suite.md").read_text().count("| zeros |") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "Give --suite"),
        (("--suite", "--only", "nonsense"), "--only must be one of synthetic-0"),
        (("--suite", "--traces", "/no/such/folder"), "--traces must be a folder; got '/no/such/folder'"),
    ],
)
def test_what_cannot_be_run_is_told_in_a_sentence(
    evaluate: Command, arguments: tuple[str, ...], sentence: str
) -> None:
    code, _, err = evaluate(*arguments)
    assert code == 2
    assert sentence in err
