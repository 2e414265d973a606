"""The Parquet files of a lake: those that its catalog knows, and those that it doesn't."""

from datetime import datetime
from pathlib import Path

import polars as pl

from data.lake.connection import quoted
from data.lake.lake import Lake
from data.schema import TABLES

_META = "__ducklake_metadata_lake"


def data_files(lake: Lake) -> pl.DataFrame:
    """One row a current file: table, path, rows, deleted_rows, size_bytes, first_day, last_day.

    Days are those of the table's time column, in UTC; null where the file has no time at all. Rows that wait
    in the catalog are in no file.
    """
    times = ", ".join(f"({quoted(table.name)}, {quoted(table.time)})" for table in TABLES)
    return lake.query(
        f"""
        SELECT
            t.table_name AS "table",
            {_path("f", "t")} AS path,
            f.record_count AS "rows",
            coalesce(d.delete_count, 0) AS deleted_rows,
            f.file_size_bytes AS size_bytes,
            CAST(s.min_value[:10] AS DATE) AS first_day,
            CAST(s.max_value[:10] AS DATE) AS last_day
        FROM {_META}.ducklake_data_file f
        JOIN {_META}.ducklake_table t ON t.table_id = f.table_id AND t.end_snapshot IS NULL
        JOIN (VALUES {times}) AS known(name, "time") ON known.name = t.table_name
        LEFT JOIN {_META}.ducklake_delete_file d ON d.data_file_id = f.data_file_id AND d.end_snapshot IS NULL
        LEFT JOIN {_META}.ducklake_column c
            ON c.table_id = t.table_id AND c.column_name = known."time" AND c.end_snapshot IS NULL
        LEFT JOIN {_META}.ducklake_file_column_stats s
            ON s.data_file_id = f.data_file_id AND s.column_id = c.column_id
        WHERE f.end_snapshot IS NULL
        ORDER BY t.table_name, first_day, f.data_file_id
        """,
        {"data": str(lake.data)},
    )


def known_paths(lake: Lake) -> set[Path]:
    """Every file that some snapshot needs, or that waits for its deletion."""
    frame = lake.query(
        f"""
        SELECT {_path("f", "t")} AS path FROM {_META}.ducklake_data_file f
        JOIN {_META}.ducklake_table t USING (table_id)
        UNION
        SELECT {_path("f", "t")} FROM {_META}.ducklake_delete_file f
        JOIN {_META}.ducklake_table t USING (table_id)
        UNION
        SELECT {_path("f")} FROM {_META}.ducklake_files_scheduled_for_deletion f
        """,
        {"data": str(lake.data)},
    )
    return {Path(path) for path in frame["path"]}


def delete_files(lake: Lake) -> list[Path]:
    """Files that say which rows of a current file are deleted."""
    frame = lake.query(
        f"""
        SELECT {_path("f", "t")} AS path FROM {_META}.ducklake_delete_file f
        JOIN {_META}.ducklake_table t ON t.table_id = f.table_id AND t.end_snapshot IS NULL
        WHERE f.end_snapshot IS NULL
        """,
        {"data": str(lake.data)},
    )
    return [Path(path) for path in frame["path"]]


def orphans(lake: Lake, before: datetime | None = None) -> list[Path]:
    """Parquet files that no snapshot knows, last written before a time: those of writes that were cut off.

    A write that is under way has such files too, so only old ones are certain.
    """
    # The disk first: what is committed meanwhile is then among the known.
    found = sorted(lake.data.rglob("*.parquet"))
    known = known_paths(lake)
    return [
        path
        for path in found
        if path not in known and (before is None or _written_at_s(path) < before.timestamp())
    ]


def _path(file: str, table: str | None = None) -> str:
    """SQL of a file's full path; relative ones lie in the folder of their table."""
    folder = "$data || '/' || " + (f"'main/' || {table}.path || " if table else "")
    return f"CASE WHEN {file}.path_is_relative THEN {folder}{file}.path ELSE {file}.path END"


def _written_at_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # its writer has just removed it
        return float("inf")
