"""A planted rule, one small forecaster that learned it, and the bundle made of it: trained once a session."""

from pathlib import Path

import numpy as np
import pytest

from features.windows import NAMES
from models.bundle import GuardState, TrainingWindow, write_bundle
from models.export import export
from models.forecaster import NONE, Examples, Forecaster, Settings, train
from models.trees import TreeSettings

SMALL = Settings(
    members=2,
    hidden=32,
    epochs=30,
    batch=256,
    learning_rate=5e-3,
    input_dropout=0.0,
    dropout=0.2,
    seed=3,
    trees=TreeSettings(rounds=20),
)
TOLD = NAMES.index("scheduled_40_s")


def planted(seed: int, ticks: int) -> Examples:
    """Noise in every feature but one: above 1 it announces an onset in 35 s, and a peak of four baselines."""
    random = np.random.default_rng(seed)
    features = random.standard_normal((ticks, len(NAMES))).astype(np.float32)
    features[:, NAMES.index("baseline")] = random.normal(7.0, 0.3, ticks)
    features[:, NAMES.index("refusals_60_s")] = 0.25  # never varies
    soon = features[:, TOLD] > 1.0
    slot = np.where(soon, 3, NONE).astype(np.int64)
    peak = np.where(soon, 4.0, 1.0) * random.lognormal(0.0, 0.2, ticks)
    return Examples(features, slot, peak.astype(np.float32))


@pytest.fixture(scope="session")
def unseen() -> Examples:
    """Ticks that follow the rule and were not learned from."""
    return planted(1, 1_000)


@pytest.fixture(scope="session")
def forecaster() -> Forecaster:
    return train(planted(0, 6_000), SMALL)


@pytest.fixture(scope="session")
def model(forecaster: Forecaster, unseen: Examples) -> bytes:
    """The forecaster's ONNX graph."""
    return export(forecaster, unseen.features[:64])


def write(folder: Path, model: bytes, forecaster: Forecaster, event_recall: float = 0.5) -> None:
    """A bundle with every field filled in."""
    write_bundle(
        folder,
        model,
        scaler_mean=tuple(forecaster.encoder.mean.tolist()),
        scaler_scale=tuple(forecaster.encoder.scale.tolist()),
        training=TrainingWindow(
            source="planted",
            data_sha256="0" * 64,
            first="2026-01-01T00:00:00Z",
            last="2026-01-02T00:00:00Z",
            requests=6_000,
        ),
        guard=GuardState(
            threshold=1.5, scale=0.7, effective_negatives=400, thinning_step=3, advisory_reason=None
        ),
        metrics={"event_recall": event_recall, "lead_time_s": None},
        versions={"tidegate": "0.1.0"},
    )


@pytest.fixture
def bundle_folder(tmp_path: Path, model: bytes, forecaster: Forecaster) -> Path:
    folder = tmp_path / "bundle"
    write(folder, model, forecaster)
    return folder
