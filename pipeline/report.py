"""The report of a backtest: report.json for machines, report.html for people, a table for the terminal."""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import polars as pl
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import ArrayLike
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from pipeline import plots
from pipeline.simulate.plot import users_plot
from pipeline.simulate.report import points, points_range, sentences
from pipeline.targets import sentence

JSON_FILE, HTML_FILE = "report.json", "report.html"
UNKNOWN = "–"
BADGES = {"shown": "Skill shown", "not shown": "Skill not shown", "cannot be shown": "Skill cannot be shown"}


def write_report(
    report: Mapping[str, Any], ticks: pl.DataFrame, out_dir: Path, *, onsets: ArrayLike, lead_times: ArrayLike
) -> Path:
    """Write report.json and report.html into a folder and return the path of the latter.

    The same arguments give the same bytes.

    Args:
        report: what report.schema.json describes, in plain Python types.
        ticks: the test span, as `pipeline.plots.load_plot` takes it; alarms are the forecaster's.
        out_dir: folder, made where it isn't there.
        onsets: seconds of the burst onsets in the test span.
        lead_times: lead times of the forecaster's anticipated onsets, s.

    Raises:
        jsonschema.ValidationError: when the report is not of the described form.
        ValueError: when it holds NaN or an infinite number: unknown is null.
        InputError: when the ticks lack a column.

    """
    text = json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    plain = json.loads(text)
    validate(plain)
    page = render(plain, ticks, onsets=onsets, lead_times=lead_times)
    out_dir.mkdir(parents=True, exist_ok=True)
    (out_dir / JSON_FILE).write_text(text, encoding="utf-8")
    (out_dir / HTML_FILE).write_text(page, encoding="utf-8")
    return out_dir / HTML_FILE


@cache
def schema() -> dict[str, Any]:
    """Form of report.json, JSON Schema 2020-12."""
    loaded: dict[str, Any] = json.loads((files("pipeline") / "report.schema.json").read_text("utf-8"))
    return loaded


def validate(report: Mapping[str, Any]) -> None:
    """Check a report against its form; raises jsonschema.ValidationError naming the place."""
    jsonschema.Draft202012Validator(schema()).validate(report)


def render(
    report: Mapping[str, Any], ticks: pl.DataFrame, *, onsets: ArrayLike, lead_times: ArrayLike
) -> str:
    """The report as one self-contained HTML page."""
    causes, reliability = report["recall_by_cause"], report["reliability"]
    contenders, onsets_count = report["contenders"], forecaster(report)["scores"]["onsets"]
    simulation = report.get("simulation")
    figures = {
        "load": plots.load_plot(ticks, onsets),
        "recall": plots.recall_plot(contenders, report["settings"]["budget"]) if onsets_count else None,
        "lead": plots.lead_plot(lead_times) if np.size(lead_times) else None,
        "causes": plots.cause_plot(causes) if causes else None,
        "reliability": plots.reliability_plot(reliability) if reliability else None,
        "users": users_plot(simulation) if simulation else None,
    }
    environment = Environment(
        loader=PackageLoader("pipeline"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": percent,
        "number": number,
        "interval": interval,
        "clock": clock,
        "claim": _claim,
        "target": sentence,
        "points": points,
        "points_range": points_range,
        "simulated": sentences,
    }
    return environment.get_template("report.html.j2").render(
        report=report,
        ours=forecaster(report),
        contenders=ranked(report),
        headline=headline(report),
        badge=BADGES[report["verdict"]["skill"]],
        palette=plots.PALETTE,
        simulation=simulation,
        figures={name: svg and Markup(svg) for name, svg in figures.items()},
    )


def headline(report: Mapping[str, Any]) -> str:
    """The verdict in one sentence: what was anticipated, and at what price."""
    scores = forecaster(report)["scores"]
    skill, onsets = report["verdict"]["skill"], scores["onsets"]
    recall, false_alarms = scores["event_recall"]["value"], scores["false_alarm_rate"]["value"]
    if recall is None:
        found = "the test span holds no burst to anticipate"
    else:
        found = f"{percent(recall, 0)} of {onsets} burst{'' if onsets == 1 else 's'} anticipated"
    if false_alarms is None:
        price = "no calm tick to count false alarms on"
    else:
        price = f"false alarms on {percent(false_alarms)} of calm ticks"
    opening = {
        "shown": "The forecast has skill on this trace",
        "not shown": "No skill was shown on this trace",
        "cannot be shown": "No skill can be shown on this trace",
    }[skill]
    return f"{opening}: {found}, {price}."


def forecaster(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """The contender that the report is about: the first forecaster, else the first of all."""
    contenders = report["contenders"]
    return next((one for one in contenders if one["kind"] == "forecaster"), contenders[0])


def ranked(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Forecaster first, then baselines by falling recall, then those that know the future."""
    place = {"forecaster": 0, "baseline": 1, "told": 2, "oracle": 3}
    return sorted(
        report["contenders"],
        key=lambda one: (place[one["kind"]], -(one["scores"]["event_recall"]["value"] or 0)),
    )


def summary_table(report: Mapping[str, Any]) -> Table:
    """Contenders for the terminal, the forecaster first, each with all the numbers that belong together."""
    scores = forecaster(report)["scores"]
    table = Table(
        "contender",
        title=Text(headline(report)),
        caption=f"{scores['onsets']:,} onsets, base rate {percent(scores['base_rate'])}; 90 % intervals",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),  # eight columns fit a terminal of 80
    )
    for name in ("false\nalarms", "\nrecall", "random\nrecall", "pre-\ncision", "lead\ns", "in\nalarm"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("forecaster\nis", min_width=10)
    for one in ranked(report):
        row = one["scores"]
        cells = (
            one["title"],
            f"{percent(row['false_alarm_rate']['value'])}\n{_range(row['false_alarm_rate'], 100, 1)}",
            f"{number(row['event_recall']['value'])}\n{_range(row['event_recall'])}",
            number(row["random_recall"]),
            number(row["episode_precision"]["value"]),
            number(row["lead_time_s"]["p50"], 0),
            percent(row["alarm_share"]),
            _claim(one["difference"]),
        )
        # Text, not str: brackets in a title are no markup.
        table.add_row(*map(Text, cells), style="bold" if one["kind"] == "forecaster" else None)
    return table


def percent(share: float | None, digits: int = 1) -> str:
    r"""A share in percent, on one line.

    >>> percent(0.0432), percent(None)
    ('4.3\xa0%', '–')
    """
    return UNKNOWN if share is None else f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"


def number(value: float | None, digits: int = 2, sign: str = "") -> str:
    """A number, or a dash where it is unknown.

    >>> number(0.123), number(0.123, sign="+"), number(None)
    ('0.12', '+0.12', '–')
    """
    return UNKNOWN if value is None else f"{value:{sign},.{digits}f}"


def interval(estimate: Mapping[str, float | None], scale: float = 1, digits: int = 2) -> str:
    """The 90 % interval of an estimate in brackets; empty where it is unknown.

    >>> interval({"value": 0.05, "low": 0.031, "high": 0.064}, scale=100, digits=1)
    '[3.1, 6.4]'
    """
    bounds = _range(estimate, scale, digits, ", ")
    return f"[{bounds}]" if bounds else ""


def clock(seconds: float) -> str:
    """Seconds since the first request as days, hours and minutes.

    >>> clock(93_600), clock(1_230)
    ('1 d 02:00', '00:20')
    """
    minutes = int(seconds) // 60
    days, rest = divmod(minutes, 1440)
    return (f"{days} d " if days else "") + f"{rest // 60:02d}:{rest % 60:02d}"


def _range(
    estimate: Mapping[str, float | None], scale: float = 1, digits: int = 2, between: str = "–"
) -> str:
    """Bounds of an estimate; empty where they are unknown."""
    low, high = estimate["low"], estimate["high"]
    if low is None or high is None:
        return ""
    return f"{scale * low:.{digits}f}{between}{scale * high:.{digits}f}"


def _claim(difference: Mapping[str, Any] | None) -> str:
    """Better, worse or no difference; a dash where there was no onset to tell by."""
    if difference is None:
        return ""
    return UNKNOWN if difference["recall"]["value"] is None else str(difference["claim"])
