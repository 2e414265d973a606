"""A bundle that learned noise: quick to make, for tests of what surrounds the forecaster."""

from functools import cache
from pathlib import Path

import numpy as np

from features.windows import NAMES
from models.bundle import write_bundle

TICKS = 64


@cache  # many files need it, and it takes seconds
def noise_model() -> bytes:
    """The ONNX graph of a tiny forecaster."""
    # The training stack loads slowly: only tests that need a graph pay for it.
    from models.export import export
    from models.forecaster import NONE, Examples, Settings, train

    random = np.random.default_rng(0)
    features = random.normal(0.0, 1.0, (TICKS, len(NAMES))).astype(np.float32)
    examples = Examples(
        features,
        random.integers(0, NONE + 1, TICKS),
        random.lognormal(0.5, 0.3, TICKS).astype(np.float32),
    )
    return export(train(examples, Settings(members=1, hidden=8, epochs=2, batch=32)), features)


def write_noise_bundle(folder: Path, model: bytes, threshold: float | None) -> Path:
    """A bundle with that threshold and evidence of skill; advisory without one."""
    write_bundle(
        folder,
        model,
        scaler_mean=(0.0,) * len(NAMES),
        scaler_scale=(1.0,) * len(NAMES),
        training={
            "source": "noise",
            "data_sha256": "0" * 64,
            "first": "2026-01-01T00:00:00Z",
            "last": "2026-01-02T00:00:00Z",
            "requests": TICKS,
        },
        guard={
            "threshold": threshold,
            "effective_negatives": 0 if threshold is None else 100,
            "thinning_step": 1,
            "advisory_reason": "trained on noise" if threshold is None else None,
            "skill": () if threshold is None else ((True, 0.02),) * 5,
        },
        metrics={},
        versions={"tidegate": "0.1.0"},
    )
    return folder
