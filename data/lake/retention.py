"""Retention: rows older than some days go."""

from datetime import UTC, datetime, timedelta

import polars as pl

from data.errors import InputError
from data.lake.files import data_files
from data.lake.lake import Lake
from data.schema import TABLES, Table


def retain(
    lake: Lake, days: int, *, table: str | None = None, dry_run: bool = False, now: datetime | None = None
) -> pl.DataFrame:
    """Delete rows from before the UTC day that was `days` days ago, by the time column of their table.

    Files of deleted days are dropped whole; `compact` removes them from the disk. Rows without a time stay:
    unknown is not old. With `dry_run` nothing is deleted.

    Returns:
        One row a table: table, rows (deleted), files (dropped whole), kept_from.

    Raises:
        InputError: when days is negative or there is no such table.

    """
    if days < 0:
        raise InputError(f"days must be 0 or more; got {days}")
    now = now or datetime.now(UTC)
    kept_from = datetime(now.year, now.month, now.day, tzinfo=UTC) - timedelta(days=days)
    files = data_files(lake).filter(pl.col("last_day") < kept_from.date())
    counted = []
    for one in chosen(table):
        rows = (_count if dry_run else _delete)(lake, one, kept_from)
        counted.append(
            {
                "table": one.name,
                "rows": rows,
                "files": files.filter(pl.col("table") == one.name).height,
                "kept_from": kept_from,
            }
        )
    return pl.DataFrame(counted)


def chosen(table: str | None) -> tuple[Table, ...]:
    """The table of this name, or all.

    Raises:
        InputError: when there is none of this name.

    """
    names = [one.name for one in TABLES]
    if table is not None and table not in names:
        raise InputError(f"table must be one of {', '.join(names)}; got '{table}'")
    return tuple(one for one in TABLES if table in (None, one.name))


def _count(lake: Lake, table: Table, kept_from: datetime) -> int:
    sql = f'SELECT count(*) FROM lake.{table.name} WHERE "{table.time}" < $kept_from'
    return int(lake.query(sql, {"kept_from": kept_from}).item())


def _delete(lake: Lake, table: Table, kept_from: datetime) -> int:
    sql = f'DELETE FROM lake.{table.name} WHERE "{table.time}" < $kept_from'
    return lake.execute(sql, {"kept_from": kept_from})
