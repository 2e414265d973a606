"""Backtest: train on the past of a trace, guard the rest of it, and report."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from data.errors import InputError
from data.readers import Trace
from features.windows import NAMES
from models.examples import TraceExamples, prepare
from models.forecaster import Settings as ForecasterSettings
from pipeline import scoring
from pipeline.contenders import Contender, compete
from pipeline.findings import Findings
from pipeline.report import write_report
from pipeline.split import split
from pipeline.train import Fitted, Progress, fit
from serving.predictor import tightening_target

BUNDLE_FOLDER = "bundle"
TICKS_FILE = "ticks.parquet"


@dataclass(frozen=True, slots=True)
class Result:
    """What a backtest wrote and found."""

    report: dict[str, Any]
    report_path: Path
    ticks: pl.DataFrame


def backtest(
    trace: Trace,
    out: Path,
    *,
    test_fraction: float = 0.35,
    seed: int = 0,
    causes: pl.DataFrame | None = None,
    progress: Progress = lambda what, share: None,
) -> Result:
    """Backtest a trace into a folder: report.json, report.html, ticks.parquet and the bundle.

    Args:
        trace: requests sorted by arrival.
        out: folder, made where it isn't there.
        test_fraction: share of the trace, at its end, that is tested.
        seed: of training and of the intervals; the same seed gives the same report.
        causes: what is known of the causes of bursts (t_s, cause), for recall by cause.
        progress: told what is being done and how far it is, 0 to 1.

    Raises:
        InputError: when the trace is empty or too short, or the fraction out of range.

    """
    progress("bins, events and features", 0.0)
    prepared = prepare(trace.requests)
    spans = split(len(prepared.bins.work), test_fraction)
    test = spans.test.holds(prepared.ticks.t_s)
    if not test.any():
        raise InputError(f"Test fraction must leave ticks to test on; got {test_fraction}. Use 0.1 or more.")
    settings = replace(ForecasterSettings(), seed=seed)
    fitted = fit(trace, prepared, spans, out / BUNDLE_FOLDER, settings, progress)
    contenders = compete(prepared, spans, fitted, seed, lambda share: progress("contenders", share))
    progress("score and report", 0.0)
    ticks = tick_table(prepared, fitted, contenders[0], test)
    findings = Findings(trace, prepared, spans, fitted, contenders, seed, test_fraction, causes)
    report = findings.report()
    path = write_report(
        report,
        ticks,
        out,
        onsets=findings.onsets,
        lead_times=scoring.lead_times(findings.ours, findings.onsets),
    )
    ticks.write_parquet(out / TICKS_FILE)
    progress("score and report", 1.0)
    return Result(report, path, ticks)


def tick_table(
    prepared: TraceExamples, fitted: Fitted, forecaster: Contender, test: NDArray[np.bool_]
) -> pl.DataFrame:
    """One row a test tick.

    p_onset is the probability of an onset within 60 s; score and threshold, which decide, stand as
    probabilities as well.
    """
    ticks, guarded = prepared.ticks.select(test), forecaster.guarded
    known_baseline = np.exp(prepared.examples.features[test, NAMES.index("baseline")].astype(np.float64))
    highest = fitted.peak_load[test, -1]
    tightening = [
        tightening_target(float(peak), float(level)) if alarm else 0.0
        for alarm, peak, level in zip(guarded.alarm, highest, known_baseline, strict=True)
    ]
    return pl.DataFrame(
        {
            "t_s": ticks.t_s,
            "p_onset": fitted.p_onset[test],
            "score": 1.0 / (1.0 + np.exp(-forecaster.score)),
            "threshold": 1.0 / (1.0 + np.exp(-guarded.threshold)),
            "alarm": guarded.alarm.astype(np.int8),
            "tightening": tightening,
            "eligible": ticks.eligible,
            "next_onset_s": ticks.next_onset_s,
            "load": prepared.load[test],
            "baseline": prepared.baseline[test],
        }
    ).with_columns(
        pl.col("p_onset", "score", "threshold", "baseline").fill_nan(None),
        pl.when(pl.col("next_onset_s") >= 0).then("next_onset_s").alias("next_onset_s"),
    )
