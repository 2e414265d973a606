"""A small real bundle, trained on noise: enough to serve, too poor to trust."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.noise_bundle import noise_model, write_noise_bundle


@pytest.fixture(scope="session")
def model() -> bytes:
    return noise_model()


@pytest.fixture(scope="session")
def bundle_folder(model: bytes, tmp_path_factory: pytest.TempPathFactory) -> Callable[[float | None], Path]:
    """Folder of a bundle with the given threshold; one that stays advisory without it."""

    def folder(threshold: float | None) -> Path:
        return write_noise_bundle(tmp_path_factory.mktemp("bundle"), model, threshold)

    return folder


@pytest.fixture(scope="session")
def other_bundle_folder(
    model: bytes, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[float | None], Path]:
    """The same of another version: its graph has a doc_string."""

    def folder(threshold: float | None) -> Path:
        return write_noise_bundle(tmp_path_factory.mktemp("bundle"), model + b"\x32\x05other", threshold)

    return folder
