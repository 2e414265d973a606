from pathlib import Path

import numpy as np
import polars as pl
import pytest

from data.errors import InputError
from data.readers import load_trace
from data.servegen import Client, Pool, Window, write_trace
from data.servegen.pool import Empirical

FIFTY = Empirical(np.array([50]), np.array([1.0]))
WINDOWS = {start: Window(0.2, "Weibull", 0.8) for start in range(0, 86_400, 600)}
POOL = Pool("m", (Client(0, WINDOWS, {0: (FIFTY, FIFTY)}),), 86_400)


def test_a_written_trace_says_that_it_is_semi_synthetic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data.servegen.write.PART_ROWS", 1_000)  # several parts
    path = tmp_path / "drawn.parquet"
    count = write_trace(POOL, path, days=1, requests_per_s=0.1)
    trace = load_trace(path)
    assert trace.semi_synthetic
    assert trace.format == "tidegate"
    assert trace.requests.height == count == pytest.approx(8_640, rel=0.1)
    assert trace.quarantined.is_empty()
    assert pl.read_parquet(path)["arrived_at"].is_sorted()
    assert [file.name for file in tmp_path.iterdir()] == ["drawn.parquet"]


def test_a_trace_that_was_not_drawn_is_not_semi_synthetic(tmp_path: Path) -> None:
    path = tmp_path / "own.parquet"
    pl.DataFrame({"request_id": ["a"], "arrived_at": [1.5], "prompt_tokens": [5]}).write_parquet(path)
    assert not load_trace(path).semi_synthetic


@pytest.mark.parametrize(
    ("name", "days", "rate", "message"),
    [
        ("t.csv", 1, None, "must end in .parquet, where its mark is kept; got 't.csv'"),
        ("none/t.parquet", 1, None, "does not exist"),
        ("t.parquet", 1.5, None, "days must be from 0.00694 to 1"),
        ("t.parquet", 0, None, "days must be from"),
        ("t.parquet", 1, 5_000.0, "would have 432,000,000. Give fewer days or a rate"),
        ("t.parquet", 1, -1.0, "from 1 to 100,000,000 requests"),
        ("t.parquet", 1, float("nan"), "from 1 to 100,000,000 requests"),
        ("t.parquet", 1, 1e-9, "no request came"),
    ],
)
def test_what_cannot_be_written_is_said(
    tmp_path: Path, name: str, days: float, rate: float | None, message: str
) -> None:
    with pytest.raises(InputError) as error:
        write_trace(POOL, tmp_path / name, days=days, requests_per_s=rate)
    assert message in str(error.value)
    assert list(tmp_path.iterdir()) == []
