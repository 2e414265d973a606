from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from data.errors import InputError
from data.readers import load_trace
from data.schema import UTC_US
from data.workload import Workload, write


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_what_is_written_reads_back_the_same(workload: Workload, tmp_path: Path, suffix: str) -> None:
    short = Workload(workload.requests.head(20_000), workload.causes)
    path = tmp_path / f"day.{suffix}"
    assert write(short, path) == tmp_path / "day.truth.csv"
    trace = load_trace(path)
    assert trace.quarantined.is_empty()
    assert trace.format == "tidegate"
    assert_frame_equal(trace.requests.drop("source"), short.requests.drop("source"))


def test_the_truth_reads_back_the_same(workload: Workload, tmp_path: Path) -> None:
    truth = pl.read_csv(write(workload, tmp_path / "day.parquet"))
    again = truth.with_columns(
        pl.col("at").str.to_datetime("%Y-%m-%dT%H:%M:%S%.6fZ", time_unit="us", time_zone="UTC")
    )
    assert again.schema["at"] == UTC_US
    assert_frame_equal(again, workload.causes)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("day.xlsx", r"must end in one of \.csv, \.jsonl, \.parquet; got 'day\.xlsx'"),
        ("no/day.csv", "does not exist"),
    ],
)
def test_a_wrong_path_is_told_in_a_sentence(
    workload: Workload, tmp_path: Path, name: str, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        write(workload, tmp_path / name)


def test_a_path_that_cannot_be_written_is_told_in_a_sentence(workload: Workload, tmp_path: Path) -> None:
    (tmp_path / "day.csv").mkdir()
    with pytest.raises(InputError, match="can't be written"):
        write(workload, tmp_path / "day.csv")
