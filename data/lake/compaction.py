"""Compaction: rows out of the catalog, one file a day, and nothing kept that no one needs.

Many small appends make many small files and a long history. Compaction writes what waits in the catalog to
Parquet, makes the small files of a day one file, splits files of several days, and drops old snapshots and
the files that only they needed. Readers and writers go on meanwhile: a data file never changes, and one that
was replaced stays on the disk for the grace period.
"""

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl

from data.lake.connection import quoted
from data.lake.files import data_files, known_paths, orphans
from data.lake.lake import Lake
from data.schema import TABLES, Table

SMALL_BYTES = 64 * 2**20
"""Files of a day are put together while they are smaller than this."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a compaction did.

    Attributes:
        flushed_rows: rows moved from the catalog to files.
        merged_files: files that were replaced.
        made_files: files that replaced them.
        skipped_files: files left as they were, since rows of them were deleted meanwhile.
        expired_snapshots: points of the history that can't be read any more.
        deleted_files: files removed from the disk.
        staging: an ingest was under way, so files that no snapshot knows were left alone.

    """

    flushed_rows: int
    merged_files: int
    made_files: int
    skipped_files: int
    expired_snapshots: int
    deleted_files: int
    staging: bool


def compact(
    lake: Lake,
    *,
    history: timedelta = timedelta(days=1),
    grace: timedelta = timedelta(days=1),
    now: datetime | None = None,
) -> Compaction:
    """Compact every table; snapshots older than `history` go, unneeded files once `grace` has passed.

    Raises:
        StorageError: when the disk is full; each day is compacted or as it was.

    """
    now = now or datetime.now(UTC)
    with lake.locked("compact"):
        flushed = sum(_flush(lake, table) for table in TABLES)
        merged = made = skipped = 0
        files = data_files(lake)
        for table in TABLES:
            for group in _groups(files.filter(pl.col("table") == table.name)):
                written = _rewrite(lake, table, group)
                if written is None:
                    skipped += group.height
                else:
                    merged += group.height
                    made += written
            # Files written by a flush keep a list of deleted rows even when all are; this lets go of them.
            lake.query(
                f"CALL ducklake_rewrite_data_files('lake', {quoted(table.name)}, delete_threshold => 0.95)"
            )
        expired = _clean(lake, "ducklake_expire_snapshots", now - history)
        deleted = _clean(lake, "ducklake_cleanup_old_files", now - grace)
        with _no_staging(lake) as free:
            lost = orphans(lake, now - grace) if free else []
            for path in lost:
                path.unlink(missing_ok=True)
    return Compaction(flushed, merged, made, skipped, expired, deleted + len(lost), not free)


def _flush(lake: Lake, table: Table) -> int:
    """Write a table's rows that wait in the catalog to files; how many they were."""
    answer = lake.query(f"CALL ducklake_flush_inlined_data('lake', table_name => {quoted(table.name)})")
    return int(answer.to_series(answer.width - 1).sum()) if answer.height else 0


def _groups(files: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Files to be rewritten together: those that share days, unless they are one file of one day or large."""
    spans = pl.col("first_day") != pl.col("last_day")
    small = pl.col("size_bytes") < SMALL_BYTES
    alive = pl.col("rows") > pl.col("deleted_rows")
    files = files.filter(pl.col("first_day").is_not_null(), spans | small, alive).sort(
        "first_day", "last_day"
    )
    starts = pl.col("first_day") > pl.col("last_day").cum_max().shift(1, fill_value=date.min)
    for _, group in files.with_columns(group=starts.cum_sum()).group_by("group", maintain_order=True):
        if group.height > 1 or group.select(spans).item():
            yield group.drop("group")


def _rewrite(lake: Lake, table: Table, group: pl.DataFrame) -> int | None:
    """Put a group's rows into one file a day; how many, or None when rows were deleted meanwhile.

    The files are written before the transaction, which is short then. Data files never change, so only a
    deletion can come between, and the counts tell that.
    """
    names = ", ".join(quoted(path) for path in group["path"])
    rows = f"FROM lake.{table.name} WHERE filename IN ({names})"
    staged: list[Path] = []
    try:
        copied = 0
        for condition in _days(lake, table, rows):
            staged.append(lake.new_file(table.name))
            copied += lake.execute(
                f'COPY (SELECT * {rows} AND {condition} ORDER BY source, "{table.time}", rowid) '
                f"TO {quoted(staged[-1])} (FORMAT parquet)"
            )
        if lake.transact(lambda: _swap(lake, table, rows, copied, staged)):
            return len(staged)
    except BaseException:
        _remove(lake, staged)
        raise
    _remove(lake, staged)
    return None


def _days(lake: Lake, table: Table, rows: str) -> list[str]:
    """A condition for each UTC day of the rows, and one for those without a time."""
    day = f'epoch_us("{table.time}") // 86_400_000_000'
    days = lake.query(f"SELECT DISTINCT {day} AS day {rows} ORDER BY day NULLS LAST")["day"]
    return [f'"{table.time}" IS NULL' if number is None else f"{day} = {number}" for number in days]


def _swap(lake: Lake, table: Table, rows: str, copied: int, staged: Sequence[Path]) -> bool:
    """Replace the rows by the staged files unless some were deleted since they were copied."""
    left = lake.db.execute(f"SELECT count(*) {rows}").fetchone()
    if left != (copied,):
        return False
    lake.db.execute(f"DELETE {rows}")
    lake.add_files(table.name, staged)
    return True


def _remove(lake: Lake, staged: Sequence[Path]) -> None:
    """Delete staged files, unless a commit whose answer was lost has made them the lake's own."""
    known = known_paths(lake)
    for path in staged:
        if path not in known:
            path.unlink(missing_ok=True)


def _clean(lake: Lake, call: str, before: datetime) -> int:
    return lake.query(f"CALL {call}('lake', older_than => $before)", {"before": before}).height


@contextmanager
def _no_staging(lake: Lake) -> Iterator[bool]:
    """True while no other process has files that it will add to a table; none may begin to."""
    lake.end_staging()
    with (lake.location.locks / "staging.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
