"""A trace tested day by day; its days are eight hours long here, so that it has three."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from data.errors import InputError
from data.readers import Trace
from data.workload import read_truth
from models.forecaster import Settings as ForecasterSettings
from pipeline import contenders as field
from pipeline.backtest import Result, backtest
from pipeline.contenders import Contender
from pipeline.report import HTML_FILE, validate
from tests.pipeline.conftest import Run

DAY_S = 8 * 3600
Small = Callable[..., ForecasterSettings]


@pytest.fixture(scope="module")
def folds() -> list[list[Contender]]:
    """Contenders of each day, as they were made."""
    return []


@pytest.fixture(scope="module")
def walked(
    run: Run,
    folder: Path,
    folds: list[list[Contender]],
    small_settings: Small,
    tmp_path_factory: pytest.TempPathFactory,
) -> Result:
    def compete(*args: Any) -> list[Contender]:
        folds.append(field.compete(*args))
        return folds[-1]

    with pytest.MonkeyPatch.context() as patch:
        for module in ("split", "backtest", "findings"):
            patch.setattr(f"pipeline.{module}.DAY_S", DAY_S)
        patch.setattr("pipeline.backtest.compete", compete)
        patch.setattr(
            "pipeline.backtest.prepare", lambda requests: run.prepared
        )  # made before, from the same
        out = tmp_path_factory.mktemp("walk")
        return backtest(run.trace, out, causes=read_truth(folder / "day.csv"))


def test_three_days_are_walked_without_being_asked(walked: Result) -> None:
    report = walked.report
    validate(report)
    assert report["settings"]["test_fraction"] is None
    assert [day["day"] for day in report["days"]] == [2, 3]
    assert [day["test"]["start_s"] for day in report["days"]] == [DAY_S, 2 * DAY_S]
    assert report["split"]["test"] == {
        "start_s": DAY_S,
        "end_s": report["trace"]["span_s"],
    }


def test_every_tick_of_the_days_is_there_once(walked: Result) -> None:
    t_s = walked.ticks["t_s"].to_numpy()
    assert t_s[0] == DAY_S
    assert (np.diff(t_s) == 5).all()
    assert walked.ticks["p_onset"].null_count() == 0
    counted = sum(day["contenders"][0]["scores"]["ticks"] for day in walked.report["days"])
    assert counted == walked.ticks.height == walked.report["contenders"][0]["scores"]["ticks"]


def test_pooled_numbers_are_those_of_the_days_together(walked: Result) -> None:
    for place, whole in enumerate(walked.report["contenders"]):
        parts = [day["contenders"][place] for day in walked.report["days"]]
        assert {part["name"] for part in parts} == {whole["name"]}
        negative = sum(part["scores"]["negative"] for part in parts)
        false = sum(
            part["scores"]["negative"] * part["scores"]["false_alarm_rate"]["value"] for part in parts
        )
        assert whole["scores"]["negative"] == negative
        assert whole["scores"]["false_alarm_rate"]["value"] == pytest.approx(false / negative)


def test_each_day_has_its_own_forecaster_and_the_budget_goes_on(
    walked: Result, folds: list[list[Contender]]
) -> None:
    second, third = folds
    assert second[0].state != third[0].state
    for before, after in zip(second, third, strict=True):
        assert before.name == after.name
        if before.guard is not None and after.guard is not None:
            assert after.guard.ledger is before.guard.ledger
    alarm = walked.ticks["alarm"].to_numpy()
    assert alarm.tolist() == np.concatenate([second[0].guarded.alarm, third[0].guarded.alarm]).tolist()


def test_the_budget_holds_over_all_days(walked: Result) -> None:
    onset = pl.col("next_onset_s") - pl.col("t_s")
    calm = walked.ticks.filter(pl.col("eligible") & ((onset > 60) | onset.is_null()))
    assert calm.height > 2_000
    assert calm["alarm"].sum() <= 0.05 * calm.height


def test_the_page_tells_day_by_day(walked: Result) -> None:
    page = (walked.report_path.parent / HTML_FILE).read_text()
    assert "<h2>Day by day</h2>" in page
    assert "<h2>Targets</h2>" in page
    assert page.count("<tr><td>2") + page.count("<tr><td>3") >= 2


def test_a_fraction_and_a_walk_exclude_each_other(trace: Trace, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not both"):
        backtest(trace, tmp_path / "out", test_fraction=0.3, walk=True)
    assert not (tmp_path / "out").exists()


def test_a_walk_of_one_day_is_refused(hour: Trace, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="two days or more"):
        backtest(hour, tmp_path / "out", walk=True)
