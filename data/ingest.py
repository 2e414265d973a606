"""Traces into the lake: one transaction a file, nothing twice, every row accounted for.

Rows are first written to Parquet files that no table knows yet; then one short transaction makes them part
of the lake. So a slow file holds up no other writer, and a failure leaves nothing behind.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from data.config import Mapping
from data.errors import InputError
from data.lake import Lake
from data.readers import Batch, inspect, read_batches, sha256_of, trace_name
from data.readers.head import arrivals_by_minute, quiet_head
from data.schema import UTC_US

FILE_ROWS = 1_000_000
"""Rows in a Parquet file of the lake, about."""

Files = dict[str, list[Path]]
"""Parquet files by the table that they will belong to."""


@dataclass(frozen=True, slots=True)
class IngestSummary:
    """Where the rows of a file went: rows == stored + quarantined + duplicates.

    `warnings` are sentences about the trace; a file that was ingested before is not read again and has none.
    `semi_synthetic` says that its arrivals were drawn from a fitted model.
    """

    rows: int
    stored: int
    quarantined: int
    duplicates: int
    semi_synthetic: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(slots=True)
class _Staged:
    """What was written so far for the rows of a file, and what it came to."""

    files: Files
    rows: int = 0
    quarantined: int = 0
    minutes: list[pl.DataFrame] = field(default_factory=list)


def ingest(
    path: str | Path,
    lake: Lake,
    *,
    source: str | None = None,
    mapping: Mapping | None = None,
    progress: Callable[[int], None] | None = None,
) -> IngestSummary:
    """Add a trace file to the lake under the name `source`, by default the file's without its ending.

    A request_id that the source has already is a duplicate and is left out: the first one stays. A file that
    was ingested before under the same source adds nothing, and all its rows count as duplicates. Rows without
    an id of their own are known by the file's name and their number, so a file that grew adds its new rows.
    `mapping` is for files whose columns are not those of a known format. `progress` is called with the bytes
    of the file that were read since its last call.

    Raises InputError as `data.readers.read_batches` does, and for another file that has the name of one that
    the source has rows of; the lake is then as it was.
    """
    path = Path(path)
    source = source or trace_name(path)
    sniffed = inspect(path, mapping)
    sha256 = sha256_of(path)
    if earlier := _earlier_rows(lake, sha256, source):
        return IngestSummary(earlier, 0, 0, earlier, sniffed.semi_synthetic)
    staged = _Staged({"requests": [], "quarantine": []})
    try:
        _stage(read_batches(path, source=source, mapping=mapping), lake, staged, progress)
        # From the look for duplicates to the commit no other ingest may add rows.
        with lake.locked("ingest"):
            if earlier := _earlier_rows(lake, sha256, source):
                _remove(staged.files)
                return IngestSummary(earlier, 0, 0, earlier, sniffed.semi_synthetic)
            own_ids = sniffed.form.own_ids
            duplicates = _drop_duplicates(lake, staged.files["requests"], path, source, own_ids)
            head = quiet_head(staged.minutes)
            summary = IngestSummary(
                staged.rows,
                staged.rows - staged.quarantined - duplicates,
                staged.quarantined,
                duplicates,
                sniffed.semi_synthetic,
                (str(head),) if head else (),
            )
            lake.transact(lambda: _commit(lake, staged.files, summary, sha256, source))
    except BaseException:
        # An interrupt may strike just after the commit: the files are the lake's own then.
        if not _earlier_rows(lake, sha256, source):
            _remove(staged.files)
        raise
    return summary


def _earlier_rows(lake: Lake, sha256: str, source: str) -> int:
    """Rows of this very file under this source when it was ingested before, else 0."""
    earlier = lake.query(
        "SELECT rows FROM lake.ingests WHERE sha256 = $sha256 AND source = $source LIMIT 1",
        {"sha256": sha256, "source": source},
    )
    return int(earlier.item()) if earlier.height else 0


def _stage(
    batches: Iterable[Batch], lake: Lake, staged: _Staged, progress: Callable[[int], None] | None
) -> None:
    """Write the rows to files, and count them."""
    waiting: dict[str, list[pl.DataFrame]] = {table: [] for table in staged.files}
    for batch in batches:
        staged.rows += batch.rows
        staged.quarantined += batch.quarantine.height
        staged.minutes.append(arrivals_by_minute(batch.requests))
        waiting["requests"].append(batch.requests)
        waiting["quarantine"].append(batch.quarantine.with_columns(at=pl.lit(datetime.now(UTC), UTC_US)))
        for table, frames in waiting.items():
            if sum(frame.height for frame in frames) >= FILE_ROWS:
                _write(lake, table, frames, staged.files)
        if progress:
            progress(batch.size_bytes)
    for table, frames in waiting.items():
        _write(lake, table, frames, staged.files)


def _write(lake: Lake, table: str, frames: list[pl.DataFrame], staged: Files) -> None:
    """Write the waiting frames to files, one a day, and forget them; no rows make no file."""
    if any(frame.height for frame in frames):
        staged[table] += lake.stage(table, pl.concat(frames))
    frames.clear()


def _drop_duplicates(lake: Lake, files: list[Path], path: Path, source: str, own_ids: bool) -> int:
    """Rewrite the staged files without rows whose request_id stands earlier in them or in the lake.

    Numbered ids can't repeat within a file, so a source that is new needs no look at all.
    """
    stored = "SELECT request_id, arrived_at, prompt_tokens FROM lake.requests WHERE source = $source"
    parameters: dict[str, object] = {"source": source}
    known = lake.query(f"SELECT count(*) FROM ({stored})", parameters).item()
    if not files or not (own_ids or known):
        return 0
    names = ", ".join(_quoted(file) for file in files)
    rows = f"read_parquet([{names}], filename = true, file_row_number = true)"
    if not own_ids:
        _refuse_namesake(lake, f"{rows} AS given JOIN ({stored}) AS stored", path, parameters)
    repeated = lake.query(
        f"""
        SELECT request_id FROM {rows} GROUP BY request_id HAVING count(*) > 1
        UNION
        SELECT request_id FROM {rows} SEMI JOIN ({stored}) USING (request_id)
        """,
        parameters,
    )
    if repeated.is_empty():
        return 0
    # File names are random, so the order of the files is told by their place in the list.
    order = f"list_position([{names}], filename), file_row_number"
    lake.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE repeats AS
        SELECT filename, file_row_number FROM (
            SELECT filename, file_row_number, request_id,
                row_number() OVER (PARTITION BY request_id ORDER BY {order}) AS place
            FROM {rows}
        ) WHERE place > 1 OR request_id IN (SELECT request_id FROM ({stored}))
        """,
        parameters,
    )
    repeats = lake.query("SELECT filename, count(*) AS repeats FROM repeats GROUP BY filename")
    for name in repeats["filename"]:
        _rewrite(lake, files, Path(name))
    return int(repeats["repeats"].sum())


def _rewrite(lake: Lake, files: list[Path], file: Path) -> None:
    """Replace a staged file by one without its repeats, or by none when nothing else is in it."""
    kept = lake.new_file("requests")
    files.append(kept)  # so that it is removed with the others if this fails
    left = lake.execute(
        f"""
        COPY (
            SELECT * EXCLUDE (filename, file_row_number)
            FROM read_parquet({_quoted(file)}, filename = true, file_row_number = true)
            ANTI JOIN repeats USING (filename, file_row_number)
        ) TO {_quoted(kept)} (FORMAT parquet)
        """
    )
    gone = [file] if left else [file, kept]
    _unlink(gone)
    files[:] = [path for path in files if path not in gone]


def _refuse_namesake(lake: Lake, both: str, path: Path, parameters: dict[str, object]) -> None:
    """Raise InputError where a number stands for another request than the stored one of that number."""
    sql = f"""
        SELECT request_id FROM {both} USING (request_id)
        WHERE given.arrived_at != stored.arrived_at OR given.prompt_tokens != stored.prompt_tokens LIMIT 1
    """
    other = lake.query(sql, parameters)
    if other.height:
        raise InputError(
            f"{path} must have a name of its own: its rows are only numbered, and in the lake "
            f"{other.item()} is another request. Rename the file or give another --source"
        )


def _commit(lake: Lake, staged: Files, summary: IngestSummary, sha256: str, source: str) -> None:
    for table, files in staged.items():
        lake.add_files(table, files)
    note = asdict(summary) | {"sha256": sha256, "source": source, "at": datetime.now(UTC)}
    del note["warnings"]
    lake.insert("ingests", pl.DataFrame([note]))


def _remove(staged: Files) -> None:
    """Delete the staged files and forget them."""
    for files in staged.values():
        _unlink(files)
        files.clear()


def _unlink(files: Iterable[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
