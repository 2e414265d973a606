"""Backtest the cases of a suite one after the other; what is finished is kept and not run again."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from data.errors import InputError
from data.readers import load_trace
from data.workload import read_truth
from models.guard.guard import RATE
from pipeline.backtest import backtest
from pipeline.contenders import LIGHTGBM, TOLD
from pipeline.report import interval, number, percent
from pipeline.suite import Case
from pipeline.train import Progress

ROW_FILE, JSON_FILE, MARKDOWN_FILE = "row.json", "suite.json", "suite.md"
COLUMNS = (
    "case",
    "onsets",
    "recall",
    "random",
    "false alarms",
    "strict",
    "precision",
    "lead, s",
    "LightGBM hindsight",
    "told hindsight",
    "verdict",
)


def evaluate(
    cases: Sequence[Case],
    out: Path,
    *,
    progress: Callable[[str], Progress] = lambda name: lambda what, share: None,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Rows of the cases, in order; writes a folder a case, suite.json and suite.md.

    A case that is stopped half-way starts again; a finished one with the same recipe is read from its folder.
    Traces that were made for a case are deleted after it.

    Args:
        cases: of the suite.
        out: folder, made where it isn't there.
        progress: gives the progress of the case of that name.
        seed: of training.

    Raises:
        InputError: when the folder can't be written to. What a case itself refuses is told in its row.

    """
    rows = []
    for case in cases:
        folder = out / case.name
        row = _finished(folder, case, seed)
        if row is None:
            row = _run(case, folder, progress(case.name), seed)
            _write(folder / ROW_FILE, json.dumps(row, indent=1, allow_nan=False) + "\n")
        rows.append(row)
        _write(out / JSON_FILE, json.dumps({"rows": rows}, indent=1, allow_nan=False) + "\n")
        _write(out / MARKDOWN_FILE, markdown(rows))
    return rows


def _finished(folder: Path, case: Case, seed: int) -> dict[str, Any] | None:
    """The row of a case that was run before, by the same recipe and seed."""
    try:
        row: dict[str, Any] = json.loads((folder / ROW_FILE).read_text("utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return row if (row.get("recipe"), row.get("seed")) == (case.recipe, seed) else None


def _run(case: Case, folder: Path, progress: Progress, seed: int) -> dict[str, Any]:
    made = folder / "made"
    try:
        made.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"The suite can't be written to {folder}: {error}") from error
    row = {"name": case.name, "recipe": case.recipe, "seed": seed, "expected": case.expected}
    try:
        progress("make and read the trace", 0.0)
        path = case.make(made)
        trace = load_trace(path, source=case.name)
        result = backtest(trace, folder, seed=seed, causes=read_truth(path), progress=progress)
    except InputError as error:
        return row | {"status": "refused", "sentence": str(error), "kept": case.expected == "refused"}
    finally:
        shutil.rmtree(made)
    return row | summary(result.report, case)


def summary(report: dict[str, Any], case: Case) -> dict[str, Any]:
    """What a row of the suite tells of a report."""
    contenders = {one["name"]: one for one in report["contenders"]}
    ours = report["contenders"][0]["scores"]
    best = {
        name: contenders[name]["hindsight"]["recall"]
        if name in contenders and contenders[name]["hindsight"]
        else None
        for name in (LIGHTGBM, TOLD)
    }
    rates = [
        day["contenders"][0]["scores"]["false_alarm_rate"]["value"]
        for day in report["days"] or [{"contenders": report["contenders"]}]
    ]
    worst = max((rate for rate in rates if rate is not None), default=None)
    return {
        "status": "done",
        "requests": report["trace"]["requests"],
        "span_s": report["trace"]["span_s"],
        **{
            name: ours[name]
            for name in (
                "onsets",
                "base_rate",
                "event_recall",
                "random_recall",
                "false_alarm_rate",
                "strict_false_alarm_rate",
                "episode_precision",
                "episodes_per_hour",
                "lead_time_s",
                "alarm_share",
            )
        },
        "worst_day_false_alarm_rate": worst,
        "hindsight_recall": best,
        "targets": report["targets"],
        "day_targets": [target for day in report["days"] for target in day["targets"]],
        "recall_by_cause": report["recall_by_cause"],
        "defects": report["defects"],
        "skill": report["verdict"]["skill"],
        "advisory": report["verdict"]["advisory"],
        "sentences": report["verdict"]["sentences"],
        "kept": _kept(report, case),
    }


def _kept(report: dict[str, Any], case: Case) -> bool:
    """Whether the case went as promised: the rate held, targets met on every day, nothing found in noise."""
    if case.expected == "refused" or report["defects"]:
        return False
    if case.expected == "skill":
        judged = [report["targets"], *(day["targets"] for day in report["days"])]
        return all(target["met"] is not False for targets in judged for target in targets)
    share = report["contenders"][0]["scores"]["alarm_share"]
    return case.expected == "harmless" or (
        report["verdict"]["skill"] != "shown" and (share is None or bool(share <= RATE))
    )


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row as text, in the order of COLUMNS."""
    if row["status"] == "refused":
        return (row["name"], *([number(None)] * (len(COLUMNS) - 2)), _verdict(row))
    rate, recall = row["false_alarm_rate"], row["event_recall"]
    return (
        row["name"],
        f"{row['onsets']:,}",
        f"{number(recall['value'])} {interval(recall)}".strip(),
        number(row["random_recall"]),
        f"{percent(rate['value'])} {interval(rate, 100, 1)}".strip(),
        percent(row["strict_false_alarm_rate"]["value"]),
        number(row["episode_precision"]["value"]),
        number(row["lead_time_s"]["p50"], 0),
        number(row["hindsight_recall"][LIGHTGBM]),
        number(row["hindsight_recall"][TOLD]),
        _verdict(row),
    )


def _verdict(row: dict[str, Any]) -> str:
    if row["status"] == "refused":
        return f"refused{'' if row['kept'] else ', unexpectedly'}: {row['sentence']}"
    said = [f"skill {row['skill']}" + (", advisory" if row["advisory"] else "")]
    for target in row["targets"]:
        if target["met"] is not None:
            reached = "met" if target["met"] else f"short by {target['short_by']:.2f}"
            said.append(f"{target['factor']:g} x {target['against']} {reached}")
    return "; ".join(said + row["defects"])


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a Markdown table, with how many kept their promise."""
    lines = [
        "# Suite",
        "",
        tally(rows),
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
        *(f"| {' | '.join(cell.replace('|', '/') for cell in cells(row))} |" for row in rows),
        "",
        "Brackets hold 90 % intervals from resampled hours. Hindsight: recall of one threshold that spends a "
        "false-alarm rate of 5 % and is known only afterwards. A dash means unknown, never zero.",
    ]
    return "\n".join(lines) + "\n"


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """The rows for the terminal."""
    shown = Table(*COLUMNS, box=SIMPLE_HEAD, caption=tally(rows), padding=(0, 1, 0, 0))
    for row in rows:
        shown.add_row(*map(Text, cells(row)), style=None if row["kept"] else "yellow")
    return shown


def tally(rows: Sequence[dict[str, Any]]) -> str:
    """How many rows kept what is promised.

    >>> tally([{"kept": True}, {"kept": False}])
    '1 of 2 cases went as promised: the false-alarm rate every day, and the targets where causes are known.'
    """
    kept = sum(row["kept"] for row in rows)
    return (
        f"{kept} of {len(rows)} cases went as promised: the false-alarm rate every day, and the targets "
        "where causes are known."
    )


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f"{path.name}.half")
    half.write_text(text, encoding="utf-8")
    half.replace(path)
