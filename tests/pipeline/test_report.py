import copy
import json
import math
from pathlib import Path

import jsonschema
import polars as pl
import pytest
from rich.console import Console

from pipeline import report as reports
from tests.pipeline.sample_report import sample

MARKUP = "<script>alert('x')</script>"


@pytest.fixture(scope="module")
def made():
    return sample(hours=8)


@pytest.fixture
def report(made):
    return copy.deepcopy(made["report"])


def write(made, report, folder: Path) -> str:
    path = reports.write_report(
        report, made["ticks"], folder, onsets=made["onsets"], lead_times=made["lead_times"]
    )
    assert path == folder / "report.html"
    return path.read_text(encoding="utf-8")


def test_same_report_gives_the_same_bytes(made, report, tmp_path: Path):
    assert write(made, report, tmp_path / "a" / "deep") == write(made, report, tmp_path / "b")
    first, second = (tmp_path / name / "report.json" for name in ("a/deep", "b"))
    assert first.read_bytes() == second.read_bytes()
    assert json.loads(first.read_text())["contenders"][0]["name"] == "forecaster"


def test_page_stands_alone_and_opens_with_the_verdict(made, report, tmp_path: Path):
    page = write(made, report, tmp_path)
    for reference in ("http-equiv", "<link", "<script", 'src="', "@import", "url(http"):
        assert reference not in page
    assert page.index("<h1>The forecast has skill on this trace: ") < page.index("False-alarm rate")
    assert page.count("<svg ") == 5
    assert report["trace"]["sha256"] in page
    assert "How to read this" in page
    assert "prefers-color-scheme: dark" in page


def test_forecaster_comes_first_and_the_oracle_last(made, report, tmp_path: Path):
    report["contenders"].reverse()
    page = write(made, report, tmp_path)
    body = page[page.index("<tbody>") :]
    titles = [one["title"] for one in reports.ranked(report)]
    places = [body.index(f"<td>{title}</td>") for title in titles]
    assert places == sorted(places)
    assert (titles[0], titles[1], titles[-1]) == ("Forecaster", "LightGBM on lags", "Perfect-lead oracle")


def test_text_from_the_data_is_escaped(made, report, tmp_path: Path):
    report["trace"]["name"] = report["guard"]["reason"] = MARKUP
    report["verdict"]["sentences"] = [MARKUP]
    report["contenders"][0]["title"] = report["contenders"][1]["title"] = MARKUP
    report["recall_by_cause"][0]["cause"] = MARKUP
    report["versions"][MARKUP] = MARKUP
    page = write(made, report, tmp_path)
    assert "<script" not in page
    # Title, trace, sentence, guard, versions twice, table twice, labels of two curves and of a bar.
    assert page.count("&lt;script&gt;alert(") >= 11


def test_what_is_unknown_is_a_dash_and_null(made, report, tmp_path: Path):
    unknown = {"value": None, "low": None, "high": None}
    scores = report["contenders"][0]["scores"]
    for name in ("false_alarm_rate", "strict_false_alarm_rate", "event_recall", "episode_precision"):
        scores[name] = unknown
    scores["lead_time_s"] = {"p10": None, "p50": None, "p90": None, "n": 0}
    scores |= {"base_rate": None, "alarm_share": None, "random_recall": None, "onsets": 0}
    report["contenders"][0] |= {"scores": scores, "hindsight": None, "curve": [], "threshold": None}
    report["contenders"][1]["difference"] = {"recall": unknown, "claim": "no difference"}
    report |= {"recall_by_cause": [], "reliability": [], "forecast": None}
    report["verdict"]["skill"] = "cannot be shown"
    reports.write_report(report, made["ticks"], tmp_path, onsets=[], lead_times=[])
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "No skill can be shown on this trace: the test span holds no burst to anticipate" in page
    assert '<p class="value">–</p>' in page
    assert "no onset was anticipated" in page
    assert "None" not in page
    assert "nan" not in page.lower().replace("tenant", "")
    assert page.count("<svg ") == 1
    assert "no difference" not in page


@pytest.mark.parametrize(
    ("skill", "opening"),
    [
        ("shown", "The forecast has skill on this trace: "),
        ("not shown", "No skill was shown on this trace: "),
        ("cannot be shown", "No skill can be shown on this trace: "),
    ],
)
def test_headline_says_what_was_anticipated_at_what_price(report, skill: str, opening: str):
    report["verdict"]["skill"] = skill
    scores = report["contenders"][0]["scores"]
    scores["event_recall"]["value"], scores["onsets"] = 0.5, 1
    scores["false_alarm_rate"]["value"] = 0.0412
    expected = f"{opening}50 % of 1 burst anticipated, false alarms on 4.1 % of calm ticks."
    assert reports.headline(report).replace("\N{NO-BREAK SPACE}", " ") == expected


def test_advisory_is_said_at_the_top(made, report, tmp_path: Path):
    assert "Advisory" not in write(made, report, tmp_path)
    report["verdict"]["advisory"] = True
    page = write(made, report, tmp_path)
    assert page.index("Advisory: reports, does not tighten") < page.index("<h1>")


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("written_at",), "2026-03-02", "'written_at' was unexpected"),
        (("trace", "sha256"), "abc", "does not match"),
        (("verdict", "skill"), "maybe", "is not one of"),
        (("settings", "tick_s"), 10, "5 was expected"),
        (("contenders", 0, "scores", "event_recall", "value"), "0.5", "is not of type"),
        (("contenders", 0, "curve"), [[0.1, 0.2, 0.3]], "Expected at most 2 items"),
        (("contenders",), [], "should be non-empty"),
    ],
)
def test_a_report_of_another_form_is_not_written(made, report, tmp_path: Path, place, value, message: str):
    inner = report
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    with pytest.raises(jsonschema.ValidationError, match=message):
        write(made, report, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_json_cannot_hold_is_refused(made, report, tmp_path: Path, value: float):
    report["contenders"][0]["threshold"] = value
    with pytest.raises(ValueError, match="JSON compliant"):
        write(made, report, tmp_path)


def test_schema_describes_every_property():
    def undescribed(part: dict, path: str) -> list[str]:
        found = []
        for name, inner in part.get("properties", {}).items():
            if not isinstance(inner, dict):
                continue
            named = f"{path}/{name}"
            if "description" not in inner and "$ref" not in inner:
                found.append(named)
            found += undescribed(inner, named)
        if part.get("type") == "object" and part.get("additionalProperties") is True:
            found.append(f"{path}: open")
        for inner in (part.get("items"), *part.get("anyOf", []), *part.get("$defs", {}).values()):
            if isinstance(inner, dict):
                found += undescribed(inner, f"{path}/*")
        return found

    schema = reports.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert undescribed(schema, "") == []


def printed(report, width: int) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as shown:
        console.print(reports.summary_table(report))
    return shown.get()


def test_terminal_table_holds_every_contender_and_no_markup(report):
    report["contenders"][1]["title"] = "[red]Last value[/red]"
    text = printed(report, width=120)
    for one in report["contenders"]:
        assert one["title"] in text
    assert "better" in text
    assert f"{report['contenders'][0]['scores']['onsets']} onsets" in text


def test_terminal_table_cuts_nothing_at_eighty_columns(report):
    estimate = report["contenders"][1]["scores"]["false_alarm_rate"]
    estimate |= {"value": 0.123, "low": 0.104, "high": 0.156}
    report["contenders"][1]["difference"]["claim"] = "no difference"
    text = printed(report, width=80)
    assert "…" not in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "10.4–15.6" in text


def test_ticks_may_hold_more_columns_than_are_drawn(made, report, tmp_path: Path):
    wide = made["ticks"].with_columns(score=pl.lit(0.0))
    reports.write_report(report, wide, tmp_path, onsets=made["onsets"], lead_times=made["lead_times"])
    assert (tmp_path / "report.json").exists()


def test_targets_are_told_as_far_as_they_are_missed(made, report, tmp_path: Path):
    target = report["targets"][0]
    target |= {"hindsight_recall": 0.5, "wanted": 0.6, "reached": 0.45, "met": False, "short_by": 0.15}
    report["targets"][1] |= {"wanted": None, "reached": None, "met": None, "short_by": None}
    page = write(made, report, tmp_path)
    assert "<td>short by 0.15</td>" in page
    assert "(0.50): recall 0.60 wanted, 0.45 reached, short by 0.15." in page
    assert "<td>not judged</td>" in page


def test_causes_tell_how_many_onsets_were_missed(made, report, tmp_path: Path):
    report["recall_by_cause"][0] |= {"cause": "cron", "onsets": 40, "missed": 31, "recall": 0.225}
    assert "<tr><td>cron</td><td>40</td><td>31</td><td>0.23</td></tr>" in write(made, report, tmp_path)


def test_days_are_told_one_by_one(made, report, tmp_path: Path):
    brief = {key: report["contenders"][0][key] for key in ("name", "title", "kind", "scores", "hindsight")}
    spans = {name: report["split"][name] for name in ("train", "calibrate", "test")}
    report["days"] = [
        {"day": day, **spans, "advisory": day == 2, "contenders": [brief], "targets": report["targets"]}
        for day in (2, 3)
    ]
    page = write(made, report, tmp_path)
    body = page[page.index("<h2>Day by day</h2>") :]
    assert body.index("<tr><td>2, advisory</td>") < body.index("<tr><td>3</td>")
