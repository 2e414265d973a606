"""Backtest: train on the past of a trace, guard the rest of it, and report."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from data.errors import InputError
from data.readers import Trace
from features.windows import NAMES, over_line
from models.examples import TraceExamples, prepare
from models.forecaster import Settings as ForecasterSettings
from pipeline import scoring
from pipeline.contenders import Contender, compete, field
from pipeline.findings import Findings, Fold
from pipeline.report import write_report
from pipeline.split import DAY_S, Split, days, split, walk_forward
from pipeline.train import Fitted, Progress, fit
from serving.forecast.predictor import tightening_target

BUNDLE_FOLDER = "bundle"
TICKS_FILE = "ticks.parquet"
TEST_FRACTION = 0.35
WALK_DAYS = 3
"""A trace of so many days is tested day by day unless a test fraction is asked for."""


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
    test_fraction: float | None = None,
    walk: bool | None = None,
    seed: int = 0,
    causes: pl.DataFrame | None = None,
    progress: Progress = lambda what, share: None,
) -> Result:
    """Backtest a trace into a folder: report.json, report.html, ticks.parquet and the bundle.

    Args:
        trace: requests sorted by arrival.
        out: folder, made where it isn't there.
        test_fraction: share of the trace, at its end, that is tested in one piece; 0.35 where neither this
            nor ``walk`` is given and the trace has less than three days.
        walk: test every day but the first, each with a forecaster trained on the days before it. The guard's
            budget goes on from day to day.
        seed: of training and of the intervals; the same seed gives the same report.
        causes: what is known of the causes of bursts (t_s, cause), for recall by cause.
        progress: told what is being done and how far it is, 0 to 1.

    Raises:
        InputError: when the trace is empty, too short or without any work, or the fraction out of range.

    """
    if walk and test_fraction is not None:
        raise InputError("Test a fraction or walk forward day by day, not both; give one of the two.")
    progress("bins, events and features", 0.0)
    prepared = prepare(trace.requests)
    if not prepared.bins.work.any():
        raise InputError(
            f"No request of {trace.name} has work, so that there is no load to forecast: prompt and output "
            "tokens are all zero or unknown. Check the columns that token counts are read from."
        )
    splits, fraction = _splits(prepared, test_fraction, walk)
    settings = replace(ForecasterSettings(), seed=seed)
    competitors = field(prepared, causes, seed)
    folds: list[Fold] = []
    for spans in splits:
        told = progress if fraction is not None else _on_day(progress, spans)
        fitted = fit(trace, prepared, spans, out / BUNDLE_FOLDER, settings, told)
        before = folds[-1].contenders if folds else ()
        contenders = compete(competitors, spans, fitted, partial(told, "contenders"), before)
        folds.append(Fold(spans, fitted, contenders))
    progress("score and report", 0.0)
    findings = Findings(trace, prepared, folds, seed, fraction, causes)
    ticks = tick_table(prepared, findings.fitted, findings.contenders[0], findings.test)
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


def _splits(
    prepared: TraceExamples, test_fraction: float | None, walk: bool | None
) -> tuple[list[Split], float | None]:
    """The test spans with what trains before each, and the fraction that is tested; None day by day."""
    seconds = len(prepared.bins.work)
    if walk or (walk is None and test_fraction is None and days(seconds) >= WALK_DAYS):
        return walk_forward(seconds), None
    fraction = TEST_FRACTION if test_fraction is None else test_fraction
    spans = split(seconds, fraction)
    if not spans.test.holds(prepared.ticks.t_s).any():
        raise InputError(f"Test fraction must leave ticks to test on; got {fraction}. Use 0.1 or more.")
    return [spans], fraction


def _on_day(progress: Progress, spans: Split) -> Progress:
    """Progress of one day of several."""
    return lambda what, share: progress(f"day {spans.test.start_s // DAY_S + 1}: {what}", share)


def tick_table(
    prepared: TraceExamples, fitted: Fitted, forecaster: Contender, test: NDArray[np.bool_]
) -> pl.DataFrame:
    """One row a test tick.

    p_onset is the probability of an onset within 60 s; score and threshold, which decide, stand as
    probabilities as well. An alarm asks for no tightening while the load is that of a burst already.
    """
    ticks, guarded = prepared.ticks.select(test), forecaster.guarded
    features = prepared.examples.features[test]
    known_baseline = np.exp(features[:, NAMES.index("baseline")].astype(np.float64))
    tightens = guarded.alarm & ~over_line(features)
    highest = fitted.peak_load[test, -1]
    tightening = [
        tightening_target(float(peak), float(level)) if ahead else 0.0
        for ahead, peak, level in zip(tightens, highest, known_baseline, strict=True)
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
