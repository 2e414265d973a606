import os
from collections.abc import Callable
from pathlib import Path

import pytest

TRACES = Path(
    os.environ.get("TIDEGATE_TRACES", Path(__file__).resolve().parents[2] / ".." / "shared" / "traces")
)


@pytest.fixture
def real_trace() -> Callable[[str], Path]:
    """Path of a public trace file; the test is skipped where it is absent."""

    def find(name: str) -> Path:
        path = TRACES / name
        if not path.is_file():
            pytest.skip(f"{name} is not in {TRACES}; set TIDEGATE_TRACES to a folder with the public traces")
        return path

    return find
