"""Train, calibrate and bundle a forecaster."""

import importlib.metadata
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import lightning
import numpy as np
import torch
from numpy.typing import NDArray

from data.errors import InputError
from data.readers import Trace
from features.ticks import HORIZON_S, SLOTS, WARMUP_S, Ticks
from models.bundle import PEAK_QUANTILES, Bundle, GuardState, TrainingWindow, write_bundle
from models.examples import TraceExamples, prepare
from models.export import TICKS_AT_ONCE, export
from models.forecaster import Examples, Forecaster, Settings, train
from models.guard.calibration import calibrate
from models.guard.guard import RATE, Guard
from models.guard.replay import replay, warmed
from models.guard.score import SMALLEST_P, sustained_scores
from models.guard.skill import SkillGate
from pipeline.split import Split, split

PACKAGES = (
    "tidegate",
    "torch",
    "lightning",
    "onnx",
    "onnxruntime-gpu",
    "lightgbm",
    "polars",
    "numpy",
    "duckdb",
)

Progress = Callable[[str, float], None]
"""Told what is being done and how far it is, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A trained forecaster, loaded back from its bundle, and what it says of every tick of its trace.

    Attributes:
        bundle: as serving would load it.
        p_slots: probability of the next onset in each slot, (ticks, SLOTS), NaN where features are unknown.
        peak_load: quantiles of the highest load in that time, tokens/s, (ticks, quantiles).

    """

    bundle: Bundle
    p_slots: NDArray[np.float64]
    peak_load: NDArray[np.float64]

    @property
    def p_onset(self) -> NDArray[np.float64]:
        """Probability of an onset within 60 s, (ticks,), NaN where features are unknown."""
        return np.asarray(self.p_slots.sum(axis=1).clip(0.0, 1.0))


class _Epochs(lightning.Callback):
    def __init__(self, progress: Progress, epochs: int) -> None:
        self._progress = progress
        self._epochs = epochs

    def on_train_epoch_end(self, trainer: lightning.Trainer, _: lightning.LightningModule) -> None:
        self._progress("train the forecaster", (trainer.current_epoch + 1) / self._epochs)


def fit(
    trace: Trace, prepared: TraceExamples, spans: Split, folder: Path, settings: Settings, progress: Progress
) -> Fitted:
    """Train on the train span, calibrate on the calibrate span, and write a bundle into ``folder``.

    Raises:
        InputError: when no tick of the train span can be learned from.

    """
    ticks, examples = prepared.ticks, prepared.examples
    learn = spans.train.holds(ticks.t_s) & ticks.eligible
    if not learn.any():
        raise InputError(
            "No tick of the training span is eligible: it lies in warm-up, in events or in gaps. "
            "Use a longer trace."
        )
    forecaster = train(_select(examples, learn), settings, [_Epochs(progress, settings.epochs)])
    progress("export and check", 0.0)
    p_slots, peak_load = forecast(forecaster, examples.features)
    p_onset, score = p_slots.sum(axis=1), sustained_scores(p_slots)
    span = spans.calibrate.holds(ticks.t_s)
    model = export(forecaster, examples.features[learn | (span & ~np.isnan(p_onset))])
    write_bundle(
        folder,
        model,
        scaler_mean=forecaster.encoder.mean.tolist(),
        scaler_scale=forecaster.encoder.scale.tolist(),
        training=_window(trace, prepared, spans),
        guard=proven(calibrated(score, ticks, span), score, ticks, span),
        metrics={"calibrate_log_loss": _log_loss(p_onset[span], ticks.select(span))},
        versions=versions(),
    )
    return Fitted(Bundle.load(folder), p_slots, peak_load)


def train_on(trace: Trace, folder: Path, *, seed: int, progress: Progress) -> Fitted:
    """Train and calibrate on all of a trace, its last part for calibration.

    Raises:
        InputError: when the trace is empty or too short.

    """
    progress("bins, events and features", 0.0)
    prepared = prepare(trace.requests)
    spans = split(len(prepared.bins.work), test_fraction=0.0)
    return fit(trace, prepared, spans, folder, Settings(seed=seed), progress)


def forecast(
    forecaster: Forecaster, features: NDArray[np.float32]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Forecast every tick: p_slots (n, SLOTS) and peak load (n, quantiles), NaN where a feature is."""
    known = np.isfinite(features).all(axis=1)
    p_slots = np.full((len(features), SLOTS), np.nan)
    peak_load = np.full((len(features), len(PEAK_QUANTILES)), np.nan)
    with torch.inference_mode():
        for some in np.array_split(np.flatnonzero(known), 1 + int(known.sum()) // TICKS_AT_ONCE):
            said = forecaster(torch.from_numpy(features[some]))
            p_slots[some], peak_load[some] = (output.numpy() for output in said)
    return p_slots, peak_load


def calibrated(score: NDArray[np.float64], ticks: Ticks, span: NDArray[np.bool_]) -> GuardState:
    """Guard state from the scores of the calibration span: threshold, and the scale on which it moves."""
    negative = ticks.negative & span
    found = calibrate(score[span], negative[span], rate=RATE)
    calm = score[negative]
    # Half a decade of the upper tail: thresholds of different scores then move at a like pace.
    scale = float(np.diff(np.quantile(calm, [0.90, 0.99]))[0]) if len(calm) else 0.0
    return GuardState(
        threshold=found.threshold,
        scale=scale if scale > 0.0 else 1.0,
        effective_negatives=found.effective_negatives,
        thinning_step=found.step,
        advisory_reason=found.reason,
    )


def proven(
    state: GuardState, score: NDArray[np.float64], ticks: Ticks, span: NDArray[np.bool_]
) -> GuardState:
    """The state with what its alarms would have anticipated on the calibration span.

    The ledger has seen the hour before the span go by, as a service's first hour does.
    """
    gate, start_s = SkillGate(), int(ticks.t_s[span][0])
    hour = (ticks.t_s >= start_s - WARMUP_S) & (ticks.t_s < start_s)
    ledger = warmed(ticks.select(hour), start_s)
    replay(Guard(state.threshold, state.scale, ledger, gate), score[span], ticks.select(span))
    found = tuple((onset.anticipated, onset.chance) for onset in gate.onsets)
    return state.model_copy(update={"skill": found})


def versions() -> dict[str, str]:
    """Versions of what made a result."""
    return {"python": platform.python_version()} | {
        name: importlib.metadata.version(name) for name in PACKAGES
    }


def _log_loss(p_onset: NDArray[np.float64], ticks: Ticks) -> float | None:
    """Mean negative log-likelihood of "an onset within 60 s" over eligible ticks, nats; None without any."""
    p = np.clip(p_onset[ticks.eligible], SMALLEST_P, 1.0 - SMALLEST_P)
    came = ticks.onset_within(0, HORIZON_S[1])[ticks.eligible]
    return float(-np.log(np.where(came, p, 1.0 - p)).mean()) if len(p) else None


def _select(examples: Examples, chosen: NDArray[np.bool_]) -> Examples:
    return Examples(**{name: values[chosen] for name, values in asdict(examples).items()})


def _window(trace: Trace, prepared: TraceExamples, spans: Split) -> TrainingWindow:
    first, last = (
        datetime.fromtimestamp(prepared.bins.origin_us / 1e6 + second, UTC).isoformat(timespec="seconds")
        for second in (spans.train.start_s, spans.train.end_s)
    )
    return TrainingWindow(
        source=trace.name, data_sha256=trace.sha256, first=first, last=last, requests=trace.requests.height
    )
