import re
from io import StringIO

import pytest
from rich.console import Console

from pipeline.progress import steps

BAR = 40
"""Cells of a bar that is full, as rich draws it by default."""
LINE = re.compile(r"\W*(?P<step>\w[\w ]*\w) +(?P<full>━*) *\d:\d\d:\d\d")


def cells(console: Console) -> dict[str, int]:
    """Full cells of each bar on the picture that the console showed, in order from the top."""
    assert isinstance(console.file, StringIO)
    shown = [LINE.match(line) for line in console.file.getvalue().splitlines() if line]
    return {line["step"]: len(line["full"]) for line in shown if line}


@pytest.fixture
def console() -> Console:
    """No terminal: rich shows the last picture only, and of each bar the full part only."""
    return Console(file=StringIO(), width=100, color_system=None)


def test_every_step_shows_full_at_the_end_in_the_order_told(console: Console) -> None:
    with steps(console) as told:
        told("read the trace", 0.0)
        told("train", 0.25)
        told("train", 0.5)
        told("report", 0.0)
    assert cells(console) == {"read the trace": BAR, "train": BAR, "report": BAR}
    assert list(cells(console)) == ["read the trace", "train", "report"]


def test_a_job_that_fails_leaves_its_step_unfinished_and_the_ones_before_done(console: Console) -> None:
    with pytest.raises(ValueError, match="broken"), steps(console) as told:  # noqa: PT012
        told("read the trace", 0.0)
        told("train", 0.5)
        raise ValueError("broken")
    assert cells(console) == {"read the trace": BAR, "train": BAR // 2}


def test_no_step_no_bar(console: Console) -> None:
    with steps(console):
        pass
    assert cells(console) == {}
