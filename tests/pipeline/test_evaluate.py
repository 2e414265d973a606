import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from models.forecaster import Settings as ForecasterSettings
from pipeline.evaluate import JSON_FILE, MARKDOWN_FILE, ROW_FILE, cells, evaluate, markdown, summary
from pipeline.suite import Case, Sizes, suite
from tests.pipeline.conftest import Run
from tests.pipeline.sample_report import sample

TINY = Sizes(seeds=1, days=0.09, requests_per_s=1.0, noise_days=0.06, noise_per_s=0.5)
Small = Callable[..., ForecasterSettings]


def counted(case: Case, made: list[str]) -> Case:
    """The case, telling each time that its trace is made."""

    def make(folder: Path) -> Path:
        made.append(case.name)
        return case.make(folder)

    return Case(case.name, case.recipe, case.expected, make)


@pytest.fixture(scope="module")
def made() -> list[str]:
    return []


@pytest.fixture(scope="module")
def cases(made: list[str]) -> list[Case]:
    return [counted(one, made) for one in suite(None, TINY) if one.name in ("poisson", "zeros")]


@pytest.fixture(scope="module")
def out(cases: list[Case], small_settings: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("suite")
    evaluate(cases, out)
    return out


def test_noise_is_left_alone_and_silence_is_refused_in_a_sentence(out: Path) -> None:
    noise, zeros = json.loads((out / JSON_FILE).read_text())["rows"]
    assert (noise["status"], noise["kept"]) == ("done", True)
    assert noise["skill"] != "shown"
    assert noise["alarm_share"] <= 0.05
    assert noise["hindsight_recall"]["told"] is None
    assert (zeros["status"], zeros["kept"]) == ("refused", True)
    assert "No request of zeros has work" in zeros["sentence"]


def test_every_case_leaves_its_report_and_no_trace(out: Path) -> None:
    left = {path.name for path in (out / "poisson").iterdir()}
    assert left == {"report.json", "report.html", "ticks.parquet", "bundle", ROW_FILE}
    assert {path.name for path in (out / "zeros").iterdir()} == {ROW_FILE}


def test_what_is_finished_is_not_run_again_unless_its_recipe_changed(
    out: Path, cases: list[Case], made: list[str], tmp_path: Path
) -> None:
    out = shutil.copytree(out, tmp_path / "suite")  # tests share the other one, in any order
    before = (out / MARKDOWN_FILE).read_text()
    made.clear()
    evaluate(cases, out)
    assert made == []
    assert (out / MARKDOWN_FILE).read_text() == before
    zeros = cases[1]
    evaluate([Case(zeros.name, "another recipe", zeros.expected, zeros.make)], out)
    assert made == ["zeros"]


def test_a_torn_row_is_run_again(cases: list[Case], tmp_path: Path, made: list[str]) -> None:
    (tmp_path / "zeros").mkdir()
    (tmp_path / "zeros" / ROW_FILE).write_text('{"name": "ze')
    made.clear()
    (row,) = evaluate(cases[1:], tmp_path)
    assert made == ["zeros"]
    assert row["status"] == "refused"


def report_of(**changes: Any) -> dict[str, Any]:
    report: dict[str, Any] = sample()["report"] | changes
    return report


def test_a_row_of_skill_is_held_against_targets_and_defects() -> None:
    judge = partial(summary, case=Case("w", "recipe", "skill", lambda folder: folder))
    met, missed = (
        {"met": value, "factor": 1.2, "against": "lightgbm", "short_by": 0.1} for value in (True, False)
    )
    assert judge(report_of(targets=[met]))["kept"]
    assert judge(report_of(targets=[met | {"met": None}]))["kept"]
    assert not judge(report_of(targets=[met, missed]))["kept"]
    assert not judge(report_of(targets=[met], defects=["Defect: ..."]))["kept"]


def test_skill_in_noise_is_a_broken_promise() -> None:
    judge = partial(summary, case=Case("n", "recipe", "noise", lambda folder: folder))
    told = report_of()["verdict"]
    assert not judge(report_of(verdict=told | {"skill": "shown"}))["kept"]


def test_a_row_as_text_has_every_number_of_the_report(run: Run) -> None:
    row = {"name": "w", **summary(run.result.report, Case("w", "r", "skill", lambda folder: folder))}
    said = dict(zip(("case", "onsets", "recall"), cells(row), strict=False))
    scores = run.result.report["contenders"][0]["scores"]
    assert said["onsets"] == str(scores["onsets"])
    assert said["recall"].startswith(f"{scores['event_recall']['value']:.2f}")
    assert row["hindsight_recall"]["told"] is not None
    assert markdown([row]).count("| w |") == 1
