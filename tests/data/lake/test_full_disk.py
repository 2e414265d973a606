"""A disk that is full: a sentence, nothing half there, and a lake that goes on once there is space."""

import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from data.errors import StorageError
from data.lake import Lake
from data.lake.check import check
from data.lake.compaction import compact

START = datetime(2024, 3, 1, tzinfo=UTC)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a small file system can't be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def rows(source: str, count: int) -> pl.DataFrame:
    ids = pl.Series(range(count)).hash(seed=1).cast(pl.String) + pl.Series(range(count)).hash(seed=2).cast(
        pl.String
    )
    return pl.DataFrame({"request_id": ids}).with_columns(
        source=pl.lit(source), arrived_at=pl.lit(START), prompt_tokens=pl.lit(1)
    )


def fill(folder: Path) -> Path:
    """Take what space is left."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return ballast


def append_without_end(lake: Lake, count: int) -> None:
    for n in range(1000):  # the catalog may have reserved room for some
        lake.append("requests", rows(f"full-{n}", count))


@pytest.mark.parametrize("count", [3, 2000])  # into the catalog, and into a Parquet file
def test_an_append_to_a_full_disk_is_told_and_the_lake_goes_on(small_disk: Path, count: int) -> None:
    with Lake(small_disk / "lake") as lake:
        lake.append("requests", rows("before", 5))
        ballast = fill(small_disk)
        with pytest.raises(StorageError, match=r"disk of .*/lake/data or of the catalog is full"):
            append_without_end(lake, count)
        ballast.unlink()
        kept = lake.sources()
        assert kept.filter(pl.col("source") == "before")["rows"].to_list() == [5]
        assert set(kept.filter(pl.col("source") != "before")["rows"]) <= {count}  # each of them whole
        lake.append("requests", rows("after", count))
    with Lake(small_disk / "lake") as lake:
        assert lake.requests("after").height == count
        assert [finding for finding in check(lake) if finding.problem] == []


def test_a_stage_or_a_compaction_on_a_full_disk_leaves_the_lake_as_it_was(small_disk: Path) -> None:
    with Lake(small_disk / "lake") as lake:
        for n in range(3):
            lake.append("requests", rows(f"s{n}", 2000))
        before = lake.requests()
        ballast = fill(small_disk)
        with pytest.raises(StorageError, match="is full"):
            lake.stage("requests", rows("staged", 2000))
        with pytest.raises(StorageError, match="is full"):
            compact(lake)
        ballast.unlink()
        assert lake.requests().equals(before)
        compact(lake)
        assert lake.requests().equals(before)
        assert check(lake) == []
