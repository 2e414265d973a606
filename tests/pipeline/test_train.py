import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from math import log
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from data.errors import InputError
from data.readers import Trace
from models.bundle import Bundle
from models.examples import prepare
from models.forecaster import Settings
from models.guard.guard import Guard
from models.guard.score import sustained_scores
from models.guard.skill import ONSETS
from pipeline.split import Span
from pipeline.train import calibrated, fit, proven, train_on, versions
from tests.pipeline.conftest import EPOCHS, SEED, Run

MARKS = [
    "tenant",
    "lane",
    "model",
    "session",
    "prompt_tokens",
    "cached_tokens",
    "max_tokens",
    "output_tokens",
]


def test_the_test_span_is_never_seen(
    run: Run, tmp_path: Path, small_settings: Callable[..., Settings]
) -> None:
    """Turn around who asks for what in the test span: times, and the size of a request at large, stay."""
    origin = run.trace.requests["arrived_at"][0]
    tested = pl.col("arrived_at") >= origin + timedelta(seconds=run.spans.test.start_s)
    past, tail = run.trace.requests.filter(~tested), run.trace.requests.filter(tested)
    turned = pl.concat([past, tail.with_columns(pl.col(MARKS).reverse())])
    prepared = prepare(turned)
    test = run.spans.test.holds(prepared.ticks.t_s)
    assert len(prepared.ticks) == len(run.prepared.ticks)
    assert (prepared.examples.features[test] != run.prepared.examples.features[test]).any()
    assert (prepared.load[test] != run.prepared.load[test]).any()

    settings = small_settings(seed=SEED)
    fit(replace(run.trace, requests=turned), prepared, run.spans, tmp_path, settings, lambda *_: None)
    for name in ("model.onnx", "bundle.json"):
        assert (tmp_path / name).read_bytes() == (run.out / "bundle" / name).read_bytes(), name


def test_the_bundle_tells_what_it_was_made_from(run: Run) -> None:
    manifest = Bundle.load(run.out / "bundle").manifest
    origin = run.trace.requests["arrived_at"][0]
    assert manifest.training.source == run.trace.name
    assert manifest.training.data_sha256 == run.trace.sha256
    assert manifest.training.requests == run.trace.requests.height
    for told, second in (
        (manifest.training.first, run.spans.train.start_s),
        (manifest.training.last, run.spans.train.end_s),
    ):
        exact = origin + timedelta(seconds=second)
        assert timedelta(0) <= exact - datetime.fromisoformat(told) < timedelta(seconds=1)
    assert manifest.versions == versions()
    assert {"python", "torch", "polars", "tidegate"} <= set(manifest.versions)


def test_the_log_loss_is_that_of_the_calibration_span(run: Run) -> None:
    ticks, losses = run.prepared.ticks, []
    for t, eligible, onset, p in zip(
        ticks.t_s.tolist(),
        ticks.eligible.tolist(),
        ticks.next_onset_s.tolist(),
        run.fitted.p_onset.tolist(),
        strict=True,
    ):
        if eligible and run.spans.calibrate.start_s <= t < run.spans.calibrate.end_s:
            losses.append(-log(p if 0 < onset - t <= 60 else 1 - p))
    told = run.fitted.bundle.manifest.metrics["calibrate_log_loss"]
    assert told == pytest.approx(sum(losses) / len(losses), rel=1e-6)


def test_what_is_unknown_is_forecast_nowhere_and_what_is_known_everywhere(run: Run) -> None:
    known = np.isfinite(run.prepared.examples.features).all(axis=1)
    assert not known.all()
    assert np.array_equal(~np.isnan(run.fitted.p_onset), known)
    assert np.array_equal(~np.isnan(run.fitted.peak_load).any(axis=1), known)
    assert ((run.fitted.p_onset[known] >= 0) & (run.fitted.p_onset[known] <= 1)).all()
    assert (np.diff(run.fitted.peak_load[known], axis=1) > 0).all()


def test_calibration_looks_at_its_own_span_alone(run: Run) -> None:
    ticks, score = run.prepared.ticks, sustained_scores(run.fitted.p_slots)
    span = run.spans.calibrate.holds(ticks.t_s)
    state = calibrated(score, ticks, span)
    assert proven(state, score, ticks, span) == run.fitted.bundle.manifest.guard
    assert state.threshold is not None
    assert state.advisory_reason is None
    assert state.effective_negatives >= 59
    assert calibrated(np.where(span, score, 99.0), ticks, span) == state
    low, high = np.quantile(score[ticks.negative & span], [0.90, 0.99])
    assert state.scale == pytest.approx(high - low)
    assert np.mean(score[ticks.negative & span] > state.threshold) <= 0.05


def test_evidence_of_skill_comes_from_the_calibration_span_alone(run: Run) -> None:
    ticks = run.prepared.ticks
    span = run.spans.calibrate.holds(ticks.t_s)
    score = np.random.default_rng(0).normal(size=len(ticks)) + 6.0 * ticks.onset_within(0, 60)
    state = calibrated(score, ticks, span)
    found = proven(state, score, ticks, span)
    assert not Guard.start(found).advisory
    onsets = run.prepared.events.onset_s[run.spans.calibrate.holds(run.prepared.events.onset_s)]
    assert 0 < len(found.skill) <= min(len(onsets), ONSETS)
    assert proven(state, np.where(span, score, 99.0), ticks, span) == found
    assert found.model_copy(update={"skill": ()}) == state


def test_scores_that_know_nothing_bring_no_evidence_that_opens_the_gate(run: Run) -> None:
    ticks = run.prepared.ticks
    span = run.spans.calibrate.holds(ticks.t_s)
    for seed in range(5):
        score = np.random.default_rng(seed).normal(size=len(ticks))
        assert Guard.start(proven(calibrated(score, ticks, span), score, ticks, span)).advisory


def test_scores_that_are_all_alike_leave_a_scale_to_work_with(run: Run) -> None:
    ticks = run.prepared.ticks
    span = run.spans.calibrate.holds(ticks.t_s)
    assert calibrated(np.zeros(len(ticks)), ticks, span).scale == 1.0


def test_without_a_calm_tick_calibration_says_why_it_stays_advisory(run: Run) -> None:
    ticks = run.prepared.ticks
    state = calibrated(sustained_scores(run.fitted.p_slots), ticks, np.zeros(len(ticks), dtype=np.bool_))
    assert state.threshold is None
    assert state.effective_negatives == 0
    assert state.scale == 1.0
    assert state.advisory_reason


def test_a_train_span_without_an_eligible_tick_is_told_in_a_sentence(run: Run, tmp_path: Path) -> None:
    spans = replace(run.spans, train=Span(0, 600))
    with pytest.raises(InputError, match="No tick of the training span is eligible: it lies in warm-up"):
        fit(run.trace, run.prepared, spans, tmp_path / "bundle", Settings(), lambda *_: None)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.usefixtures("small_settings")
def test_training_on_a_whole_trace_keeps_nothing_back(hour: Trace, tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    fitted = train_on(hour, tmp_path, seed=SEED, progress=lambda *step: told.append(step))
    window = fitted.bundle.manifest.training
    learned_s = datetime.fromisoformat(window.last) - datetime.fromisoformat(window.first)
    span = hour.requests["arrived_at"][-1] - hour.requests["arrived_at"][0]
    # A quarter of what warm-up and the gap leave is for calibration, and nothing for a test.
    usable_s = int(span.total_seconds()) - 600 - 670
    assert abs(learned_s.total_seconds() - 0.75 * usable_s) <= 10
    assert json.loads((tmp_path / "bundle.json").read_text())["training"]["requests"] == hour.requests.height
    assert [share for what, share in told if what == "train the forecaster"] == [
        (epoch + 1) / EPOCHS for epoch in range(EPOCHS)
    ]


@pytest.mark.usefixtures("small_settings")
def test_a_trace_of_minutes_is_told_in_a_sentence(hour: Trace, tmp_path: Path) -> None:
    short = replace(hour, requests=hour.requests.head(1_000))
    with pytest.raises(InputError, match="too short to train, calibrate and test apart"):
        train_on(short, tmp_path / "bundle", seed=0, progress=lambda *_: None)
    assert not (tmp_path / "bundle").exists()
