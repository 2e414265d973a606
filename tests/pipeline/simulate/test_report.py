import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.console import Console

from pipeline import report as reports
from pipeline.simulate.report import arm, sentences, table
from tests.pipeline.sample_report import sample
from tests.pipeline.simulate.sample_simulation import apart, simulation


@pytest.fixture
def played() -> dict[str, Any]:
    return simulation()


def printed(played: dict[str, Any], width: int = 80) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as shown:
        console.print(table(played))
    return shown.get()


@pytest.mark.parametrize(
    ("value", "half", "claim"),
    [
        (0.0065, 0.002, "+0.65 points [+0.45, +0.85] between forecast and rules alone: a gain is shown"),
        (-0.0065, 0.002, "-0.65 points [-0.85, -0.45] between forecast and rules alone: a loss is shown"),
        (
            0.001,
            0.002,
            "+0.10 points [-0.10, +0.30] between forecast and rules alone: no difference is shown",
        ),
        (0.0, 0.0, "+0.00 points [+0.00, +0.00] between forecast and rules alone: no difference is shown"),
        (
            0.0065,
            None,
            "+0.65 points between forecast and rules alone: whether that is more than chance can't",
        ),
    ],
)
def test_a_difference_is_claimed_only_where_the_interval_excludes_zero(
    played: dict[str, Any], value: float, half: float | None, claim: str
) -> None:
    arm(played, "forecast")["all"]["difference"].update(apart(value, half))  # type: ignore[attr-defined]
    assert sentences(played)[0].startswith("Of 2,000 calls, the share that is good differs by ")
    assert claim in sentences(played)[0]


def test_lanes_that_pay_for_it_are_named(played: dict[str, Any]) -> None:
    assert sentences(played)[0].endswith("above zero. In batch a loss is shown.")
    lanes = arm(played, "forecast")
    lanes["batch"]["difference"].update(apart(-0.003, 0.004))
    assert sentences(played)[0].endswith("above zero.")
    lanes["batch"]["difference"].update(apart(-0.003))
    lanes["standard"]["difference"].update(apart(-0.003))
    assert sentences(played)[0].endswith(" In standard and batch a loss is shown.")


def test_what_bounds_it_who_paid_and_what_the_fleet_was_are_said(played: dict[str, Any]) -> None:
    _, oracle, paid, fleet = sentences(played)
    assert "makes +0.50 points [+0.30, +0.70]: what perfect foresight of the onsets is worth" in oracle
    assert paid == "The forecast alone had 1,324 calls refused at least once, 10 of them in calm."
    assert fleet == (
        "Played on 2 replicas of llama2-70b on 8 H100-80GB, 0.81 times as fast, offered 60 % of what they "
        "can do on average, with KV room for 633,376 tokens; 17 requests of unknown length are left out."
    )


def test_nothing_restrained_one_replica_and_nothing_unknown(played: dict[str, Any]) -> None:
    arm(played, "forecast")["all"]["restrained"] = 0  # type: ignore[index]
    played["fleet"]["replicas"], played["unknown_output"] = 1, 0
    _, _, paid, fleet = sentences(played)
    assert paid == "The forecast had no call refused."
    assert fleet.startswith("Played on 1 replica of ")
    assert fleet.endswith("633,376 tokens.")


def test_the_table_fits_eighty_columns_with_millions_of_calls(played: dict[str, Any]) -> None:
    for one in played["arms"]:
        for lane in one["lanes"]:
            lane |= {"offered": 12_345_678, "falsely_restrained": 1_234_567}
            lane["difference"] = apart(-0.1234, 0.01)
    text = printed(played)
    assert "…" not in text
    assert all(len(line.rstrip()) <= 80 for line in text.splitlines())
    assert "[-13.34, -11.34]" in text
    assert "12,345,678" in text


def test_the_table_tells_each_lane_and_all(played: dict[str, Any]) -> None:
    rows = [line.split() for line in printed(played).splitlines() if line.strip()]
    assert ["standard", "1,000", "60.00", "+1.60", "+1.10", "7"] in rows
    assert ["batch", "1,000", "90.00", "-0.30", "-0.10", "3"] in rows
    assert ["all", "2,000", "75.00", "+0.65", "+0.50", "10"] in rows


def written(report: dict[str, Any], made: dict[str, Any], folder: Path) -> str:
    path = reports.write_report(
        report, made["ticks"], folder, onsets=made["onsets"], lead_times=made["lead_times"]
    )
    return path.read_text("utf-8")


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return sample(hours=2)


def test_the_page_has_a_section_where_a_span_was_played(
    made: dict[str, Any], played: dict[str, Any], tmp_path: Path
) -> None:
    without = written(made["report"], made, tmp_path / "without")
    page = written(made["report"] | {"simulation": played}, made, tmp_path / "with")
    assert "What users get" not in without
    section = page[page.index("<h2>What users get</h2>") : page.index("<h2>Contenders")]
    assert page.count("<svg ") == without.count("<svg ") + 1
    for sentence in sentences(played):
        assert sentence in section.replace("&#39;", "'")
    assert "+1.60<small>[+1.40, +1.80]</small>" in section
    assert "standard 0.80 s" in section
    assert "None" not in section
    assert json.loads((tmp_path / "with" / "report.json").read_text("utf-8"))["simulation"] == played


def test_what_is_unknown_is_a_dash(made: dict[str, Any], played: dict[str, Any], tmp_path: Path) -> None:
    for one in played["arms"]:
        one["lanes"][0] |= {"ttft_p50_s": None, "ttft_p95_s": None}
        one["lanes"][0]["difference"] = apart(None)
    page = written(made["report"] | {"simulation": played}, made, tmp_path)
    section = page[page.index("<h2>What users get</h2>") : page.index("<h2>Contenders")]
    assert section.count("<td>–</td>") == 3 * 2 + 2
    assert "None" not in section


def test_an_engine_with_markup_in_its_name_is_escaped(
    made: dict[str, Any], played: dict[str, Any], tmp_path: Path
) -> None:
    played["fleet"]["engine"] = "<script>alert('x')</script>"
    assert "<script" not in written(made["report"] | {"simulation": played}, made, tmp_path)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("arms",), []),
        (("arms", 0, "name"), "nobody"),
        (("arms", 0, "lanes", 0, "good_share"), 1.2),
        (("arms", 0, "lanes", 0, "restrained"), None),
        (("fleet", "replicas"), 0),
        (("settings", "kv_room"), 0),
        (("config_sha256",), "abc"),
        (("written_at",), "2026-03-02"),
    ],
)
def test_a_simulation_of_another_form_is_not_written(
    made: dict[str, Any], played: dict[str, Any], tmp_path: Path, place: tuple[Any, ...], value: Any
) -> None:
    report = copy.deepcopy(made["report"]) | {"simulation": played}
    inner: Any = played
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        written(report, made, tmp_path / "out")
    assert not (tmp_path / "out").exists()
