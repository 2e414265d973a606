"""The folder that a backtest wrote: read for a simulation, which is then added to its report."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import polars as pl

from data.errors import InputError
from features.ticks import TICK_S
from pipeline import scoring
from pipeline.report import JSON_FILE, validate, write_report

TICKS_FILE = "ticks.parquet"
COLUMNS = ("t_s", "alarm", "tightening", "eligible", "next_onset_s", "load", "baseline")


@dataclass(frozen=True, slots=True)
class Folder:
    """A backtest as it was written: what is in report.json, and a row a tick of its test span."""

    path: Path
    report: dict[str, Any]
    ticks: pl.DataFrame


def read_folder(path: Path, sha256: str) -> Folder:
    """Read a backtest of the trace whose file has that SHA-256.

    Raises:
        InputError: when something is missing, of another form, or of another trace.

    """
    report = _read_report(path / JSON_FILE)
    if report["trace"]["sha256"] != sha256:
        raise InputError(
            f"--backtest must be a backtest of the same trace; {path} is one of {report['trace']['name']}, "
            f"whose file has SHA-256 {report['trace']['sha256'][:12]}…, not {sha256[:12]}…."
        )
    ticks = _read_ticks(path / TICKS_FILE)
    start_s = report["split"]["test"]["start_s"]
    if not 0 <= ticks["t_s"][0] - start_s < TICK_S:
        raise InputError(
            f"{path / TICKS_FILE} must begin where the test span of {JSON_FILE} does, at second "
            f"{start_s:g}; it begins at {ticks['t_s'][0]}. Run the backtest again."
        )
    return Folder(path, report, ticks)


def add_to_report(folder: Folder, simulation: Mapping[str, Any]) -> Path:
    """Write the report again with a simulation in it, in place of an earlier one; the path of the page."""
    alarms = scored(folder.ticks)
    onsets = np.unique(alarms.next_onset_s)
    onsets = onsets[(onsets >= 0) & (onsets < folder.report["split"]["test"]["end_s"])]
    return write_report(
        folder.report | {"simulation": dict(simulation)},
        folder.ticks,
        folder.path,
        onsets=onsets,
        lead_times=scoring.lead_times(alarms, onsets),
    )


def scored(ticks: pl.DataFrame) -> scoring.Ticks:
    """Ticks of a file as those that are scored."""
    return scoring.Ticks(
        ticks["t_s"].to_numpy(),
        ticks["alarm"].to_numpy() == 1,
        ticks["eligible"].to_numpy(),
        ticks["next_onset_s"].fill_null(-1).to_numpy(),
    )


def _read_report(path: Path) -> dict[str, Any]:
    try:
        report: dict[str, Any] = json.loads(path.read_text("utf-8"))
        validate(report)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(_missing(path)) from None
    except (ValueError, jsonschema.ValidationError) as error:
        reason = error.message if isinstance(error, jsonschema.ValidationError) else str(error)
        raise InputError(
            f"{path} is no report of this version of Tidegate ({reason}). Run the backtest again."
        ) from error
    return report


def _read_ticks(path: Path) -> pl.DataFrame:
    try:
        ticks = pl.read_parquet(path)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(_missing(path)) from None
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{path} can't be read as Parquet ({error}). Run the backtest again.") from error
    missing = [name for name in COLUMNS if name not in ticks.columns]
    if missing:
        raise InputError(f"{path} lacks the columns {', '.join(missing)}. Run the backtest again.")
    scored(ticks)  # refuses a span with gaps
    return ticks


def _missing(path: Path) -> str:
    return f"--backtest must be a folder that `tidegate backtest` wrote; {path.parent} has no {path.name}."
