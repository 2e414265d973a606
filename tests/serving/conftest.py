"""A small real bundle, trained on noise: enough to serve, too poor to trust."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from features.windows import NAMES
from models.bundle import write_bundle

TICKS = 64


@pytest.fixture(scope="session")
def model() -> bytes:
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


@pytest.fixture(scope="session")
def bundle_folder(model: bytes, tmp_path_factory: pytest.TempPathFactory) -> Callable[[float | None], Path]:
    """Folder of a bundle with the given threshold; one that stays advisory without it."""

    def folder(threshold: float | None) -> Path:
        path = tmp_path_factory.mktemp("bundle")
        write_bundle(
            path,
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
        return path

    return folder
