import copy
import math
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.examples import TraceExamples
from models.guard.guard import RAISE
from pipeline.findings import REQUIRED_NEGATIVES, Findings, Fold, likely, probability
from pipeline.report import validate
from pipeline.split import Span
from tests.pipeline.conftest import SEED, TEST_FRACTION, Run

BASELINE = 1_000.0
LEAST_TOKENS = 0.5 * 10 * BASELINE
"""Work that lifts the load of 10 s by half of the baseline."""


@pytest.fixture
def level(run: Run) -> TraceExamples:
    """A trace whose baseline is known: none in the first minute, then steady."""
    known = np.where(np.arange(200) < 12, math.nan, BASELINE)
    return replace(run.prepared, baseline=known)


def causes(*rows: tuple[float, str, float | None, float]) -> pl.DataFrame:
    schema = {"t_s": pl.Float64, "cause": pl.String, "work_tokens": pl.Float64, "lasts_s": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def started(found: pl.DataFrame) -> list[tuple[float, str]]:
    return found.select("t_s", "cause").rows()


def test_light_causes_are_left_out(level: TraceExamples) -> None:
    found = likely(
        causes(
            (100.0, "cron", LEAST_TOKENS - 1, 0.0),
            (200.0, "cron", LEAST_TOKENS, 0.0),
            (300.0, "fan_out", 10 * LEAST_TOKENS, 0.0),
        ),
        level,
    )
    assert started(found) == [(200.0, "cron"), (300.0, "fan_out")]


def test_a_cause_of_unknown_work_or_in_an_unknown_baseline_stays(level: TraceExamples) -> None:
    found = likely(causes((100.0, "ramp", None, 0.0), (30.0, "cron", 1.0, 0.0)), level)
    assert started(found) == [(100.0, "ramp"), (30.0, "cron")]


def test_a_lasting_cause_repeats_every_minute_that_it_lasts(level: TraceExamples) -> None:
    found = likely(
        causes((100.5, "storm", None, 150.0), (400.0, "ramp", None, 59.9), (500.0, "ramp", None, 60.0)), level
    )
    assert started(found) == [
        (100.5, "storm"),
        (160.5, "storm"),
        (220.5, "storm"),
        (400.0, "ramp"),
        (500.0, "ramp"),
        (560.0, "ramp"),
    ]


def test_causes_before_the_first_and_after_the_last_tick_are_weighed_at_the_nearest(
    level: TraceExamples,
) -> None:
    found = likely(
        causes((-20.0, "cron", 1.0, 0.0), (9e6, "cron", 1.0, 0.0), (9e6, "shock", 1e9, 0.0)), level
    )
    assert started(found) == [(-20.0, "cron"), (9e6, "shock")]


def test_causes_without_figures_are_taken_as_they_are(level: TraceExamples) -> None:
    plain = pl.DataFrame({"t_s": [5.0, 700.0], "cause": ["cron", "ramp"]})
    assert likely(plain, level).equals(plain)


def test_no_cause_at_all(level: TraceExamples) -> None:
    assert likely(causes(), level).is_empty()


def findings(run: Run, named: pl.DataFrame | None) -> Findings:
    fold = Fold(run.spans, run.fitted, run.contenders)
    return Findings(run.trace, run.prepared, [fold], SEED, TEST_FRACTION, named)


def test_without_causes_no_recall_by_cause_is_told(run: Run) -> None:
    report = findings(run, None).report()
    validate(report)
    assert report["recall_by_cause"] == []
    assert {**report, "recall_by_cause": None} == {**run.result.report, "recall_by_cause": None}


def test_causes_that_are_all_light_leave_every_onset_unexplained(run: Run) -> None:
    light = causes(*((float(x) - 30, "cron", 1.0, 0.0) for x in run.prepared.events.onset_s))
    onsets = run.result.report["contenders"][0]["scores"]["onsets"]
    (row,) = findings(run, light).report()["recall_by_cause"]
    assert (row["cause"], row["onsets"]) == ("unexplained", onsets)


def test_a_training_span_without_bursts_is_told(run: Run) -> None:
    silent = replace(run.spans, train=Span(3600, 3605))
    report = findings(replace(run, spans=silent), None).report()
    (told,) = (said for said in report["verdict"]["sentences"] if said.startswith("Nothing to learn from"))
    assert f"from second {run.spans.test.start_s:,} on" in told
    assert not any("Nothing to learn" in said for said in run.result.report["verdict"]["sentences"])


def test_the_trace_is_described_as_it_is(run: Run) -> None:
    told = run.result.report["trace"]
    arrived_at = run.trace.requests["arrived_at"]
    assert told["requests"] == run.trace.requests.height
    assert told["quarantined"] == 0
    first_late = arrived_at[0] - datetime.fromisoformat(told["first_request"])
    assert timedelta(0) <= first_late < timedelta(milliseconds=1)
    assert told["span_s"] == int((arrived_at[-1] - arrived_at[0]).total_seconds()) + 1
    assert told["requests_per_s"] == pytest.approx(2.5, rel=0.05)


def test_the_guard_is_told_on_the_scale_of_the_ticks(run: Run, hour_run: Run) -> None:
    told, state = run.result.report["guard"], run.fitted.bundle.manifest.guard
    assert state.threshold is not None
    assert told["threshold"] == pytest.approx(1 / (1 + math.exp(-state.threshold)))
    assert told["threshold"] == run.result.report["contenders"][0]["threshold"]
    # The first tick has little budget yet, so it asks for a little more.
    most = 1 / (1 + math.exp(-(state.threshold + RAISE * state.scale)))
    assert told["threshold"] <= run.result.ticks["threshold"][0] < most
    assert told["effective_negatives"] >= told["required_negatives"] == REQUIRED_NEGATIVES
    assert hour_run.result.report["guard"]["threshold"] is None
    assert hour_run.result.report["guard"]["effective_negatives"] < REQUIRED_NEGATIVES


def test_every_contender_but_the_forecaster_is_compared_with_it(run: Run) -> None:
    first, *others = run.result.report["contenders"]
    assert first["difference"] is None
    own = first["scores"]["event_recall"]["value"]
    for row in others:
        theirs = row["scores"]["event_recall"]["value"]
        assert row["difference"]["recall"]["value"] == pytest.approx(own - theirs)


def test_peaks_are_covered_as_often_as_counted(run: Run) -> None:
    ticks = run.prepared.ticks
    work = run.prepared.bins.work
    for told, forecast in zip(
        run.result.report["forecast"]["peak_coverage"], run.fitted.peak_load.T, strict=True
    ):
        covered = []
        for t, eligible, quantile in zip(
            ticks.t_s.tolist(), ticks.eligible.tolist(), forecast.tolist(), strict=True
        ):
            if eligible and t >= run.spans.test.start_s:
                peak = max(work[s - 9 : s + 1].mean() for s in range(t + 1, t + 61))
                covered.append(peak <= quantile)
        assert told["covered"] == pytest.approx(np.mean(covered), abs=2 / len(covered))


@given(st.floats(-30, 30))
def test_probability_of_a_logit(logit: float) -> None:
    found = probability(logit)
    assert found is not None
    assert found == pytest.approx(1 / (1 + math.exp(-logit)))
    assert probability(None) is None


def test_a_gate_that_closed_is_the_reason_why_the_predictor_is_advisory(run: Run) -> None:
    ours, *rivals = run.contenders
    silent = np.arange(len(ours.guarded.alarm)) >= len(ours.guarded.alarm) // 2
    guarded = replace(ours.guarded, alarm=ours.guarded.alarm & ~silent, advisory=silent, reason="No skill.")
    state = ours.state.model_copy(update={"advisory_reason": None})
    manifest = run.fitted.bundle.manifest.model_copy(update={"guard": state})
    bundle = copy.copy(run.fitted.bundle)
    bundle.manifest = manifest
    fitted = replace(run.fitted, bundle=bundle)
    fold = Fold(run.spans, fitted, [replace(ours, guarded=guarded), *rivals])
    report = Findings(run.trace, run.prepared, [fold], SEED, TEST_FRACTION, None).report()
    assert (report["guard"]["advisory"], report["guard"]["reason"]) == (True, "No skill.")
    assert report["guard"]["advisory_share"] == pytest.approx(0.5, abs=0.01)
    assert (report["verdict"]["advisory"], report["verdict"]["sentences"][0]) == (True, "No skill.")
