"""A lake's rows as plain files that need no lake to be read."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, get_args

import polars as pl

from data.errors import InputError, StorageError
from data.lake.connection import is_full
from data.lake.lake import Lake
from data.lake.offered import between
from data.lake.retention import chosen
from data.schema import Table

Form = Literal["parquet", "csv"]
Span = tuple[datetime | None, datetime | None]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def export(
    lake: Lake,
    to: str | Path,
    *,
    table: str = "requests",
    form: Form = "parquet",
    source: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> dict[Path, int]:
    """Write a table to `to`/TABLE/YYYY-MM-DD.parquet or .csv, one file a UTC day; files and their rows.

    Requests come as `Lake.requests` gives them, with ends that came later, so an exported day can be ingested
    again. Rows without a time go to `undated`. Files of the same days are replaced.

    Raises:
        InputError: when there is no such table or form, a time has no zone, or the folder can't be written.

    """
    (one,) = chosen(table)
    if form not in get_args(Form):
        raise InputError(f"the form must be one of {', '.join(get_args(Form))}; got '{form}'")
    where, parameters = between(one.time, source, since, until)
    day = f'epoch_us("{one.time}") // 86_400_000_000'
    days = lake.query(f"SELECT DISTINCT {day} AS day FROM lake.{table} {where} ORDER BY day", parameters)[
        "day"
    ]
    folder, written = Path(to) / table, dict[Path, int]()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number in days:
            start = None if number is None else EPOCH + timedelta(days=number)
            path = folder / f"{'undated' if start is None else start.date().isoformat()}.{form}"
            written[path] = _write(lake, one, path, form, source, _within(start, since, until))
    except OSError as error:
        if is_full(error, folder):
            raise StorageError(f"the disk of {folder} is full; free some space, then export again") from error
        raise InputError(f"{folder} can't be written: {error.strerror}; give another folder") from error
    return written


def _within(start: datetime | None, since: datetime | None, until: datetime | None) -> Span:
    """The part of a day that was asked for; (None, None) for rows without a time."""
    if start is None:
        return None, None
    end = start + timedelta(days=1)
    return max(start, since or start), min(end, until or end)


def _write(lake: Lake, table: Table, path: Path, form: Form, source: str | None, span: Span) -> int:
    """Write one day to a file, which is whole when it has its name; its rows."""
    if table.name == "requests":
        frame = lake.requests(source, *span)
    else:
        where, parameters = between(table.time, source, *span)
        if span == (None, None):
            where = f'{where or "WHERE true"} AND "{table.time}" IS NULL'
        frame = lake.query(f'FROM lake.{table.name} {where} ORDER BY "{table.time}", rowid', parameters)
    part = path.with_name(f"{path.name}.part")
    if form == "parquet":
        frame.write_parquet(part)
    else:
        flat = [
            ("[" + pl.col(name).cast(pl.List(pl.String)).list.join(",") + "]").alias(name)
            for name, kind in frame.schema.items()
            if isinstance(kind, pl.List)
        ]
        frame.with_columns(flat).write_csv(part, datetime_format="%Y-%m-%dT%H:%M:%S%.6fZ")
    part.replace(path)
    return frame.height
