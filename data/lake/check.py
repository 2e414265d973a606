"""Is a lake sound? Every file there and whole, nothing twice, nothing without what it belongs to."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb

from data.lake.connection import quoted
from data.lake.files import data_files, delete_files, orphans
from data.lake.lake import Lake


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was seen; `problem` tells what must be mended from what may be as it is."""

    problem: bool
    sentence: str


def check(lake: Lake) -> list[Finding]:
    """What is wrong with the lake, and what is worth knowing; a sound lake has no problem.

    The schema is not looked at: a lake that is open has that of this code.
    """
    broken = list(_files(lake))
    return [
        *broken,
        # Rows can't be looked at while files are broken.
        *([] if broken else [*_counts(lake), *_repeats(lake), *_lost_ends(lake)]),
        *(
            Finding(False, f"{path} belongs to no table: a write was cut off, or is under way")
            for path in orphans(lake)
        ),
    ]


def _files(lake: Lake) -> Iterator[Finding]:
    for table, path, rows, size in data_files(lake).select("table", "path", "rows", "size_bytes").rows():
        if sentence := _fault(lake, Path(path), rows, size):
            yield Finding(True, f"{table}: {sentence}")
    for path in delete_files(lake):
        if sentence := _fault(lake, path):
            yield Finding(True, f"deleted rows: {sentence}")


def _fault(lake: Lake, path: Path, rows: int | None = None, size: int | None = None) -> str | None:
    """What is wrong with a file, if anything."""
    try:
        found = path.stat().st_size
        if size is not None and found != size:
            return f"{path} has {found} bytes, the catalog says {size}"
        held = lake.query(f"SELECT sum(num_rows) FROM parquet_file_metadata({quoted(path)})").item()
        if rows is not None and held != rows:
            return f"{path} has {held} rows, the catalog says {rows}"
    except FileNotFoundError:
        return f"{path} is missing; bring it back from a backup"
    except (OSError, duckdb.Error) as error:
        return f"{path} can't be read: {' '.join(str(error).split())}"
    return None


def _counts(lake: Lake) -> Iterator[Finding]:
    """Each ingest accounts for its rows."""
    off = lake.query(
        'SELECT source, "at", "rows" FROM lake.ingests WHERE "rows" != stored + quarantined + duplicates'
    )
    for source, at, rows in off.rows():
        yield Finding(
            True, f"ingests: the {rows} rows of {source} at {at:%Y-%m-%d %H:%M} are not accounted for"
        )


def _repeats(lake: Lake) -> Iterator[Finding]:
    repeats = lake.query(
        """
        SELECT source, count(*) AS ids, arg_min(request_id, request_id) AS example FROM (
            SELECT source, request_id FROM lake.requests GROUP BY ALL HAVING count(*) > 1
        ) GROUP BY source ORDER BY source
        """
    )
    for source, ids, example in repeats.rows():
        yield Finding(True, f"requests: {ids} ids of {source} were stored more than once, such as {example}")


def _lost_ends(lake: Lake) -> Iterator[Finding]:
    """Outcomes without request, but for those whose request retention may have dropped the day before."""
    lost = lake.query(
        """
        SELECT source, count(*) AS ends, min(request_id) AS example
        FROM lake.outcomes ANTI JOIN lake.requests USING (source, request_id)
        WHERE finished_at >= coalesce(
            (SELECT min(arrived_at) + INTERVAL 1 DAY FROM lake.requests), finished_at
        )
        GROUP BY source ORDER BY source
        """
    )
    for source, ends, example in lost.rows():
        yield Finding(True, f"outcomes: {ends} of {source} have no request, such as {example}")
