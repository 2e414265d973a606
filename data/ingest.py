"""Traces into the lake: one transaction a file, nothing twice, every row accounted for.

Rows are first written to Parquet files that no table knows yet; then one short transaction makes them part
of the lake. So a slow file holds up no other writer, and a failure leaves nothing behind.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from data.lake import Lake
from data.readers import Batch, read_batches, sha256_of, sniff

FILE_ROWS = 1_000_000
"""Rows in a Parquet file of the lake, about."""


@dataclass(frozen=True, slots=True)
class IngestSummary:
    """Where the rows of a file went: rows == stored + quarantined + duplicates."""

    rows: int
    stored: int
    quarantined: int
    duplicates: int


def ingest(
    path: str | Path,
    lake: Lake,
    *,
    source: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> IngestSummary:
    """Add a trace file to the lake under the name `source`, by default the file's without its ending.

    A request_id that the source has already is a duplicate and is left out: the first one stays. A file that
    was ingested before under the same source adds nothing, and all its rows count as duplicates.
    `progress` is called with the bytes of the file that were read since its last call.

    Raises InputError as `data.readers.read_batches` does; the lake is then as it was.
    """
    path = Path(path)
    source = source or path.stem
    own_ids = sniff(path).own_ids
    sha256 = sha256_of(path)
    if earlier := _earlier_rows(lake, sha256, source):
        return IngestSummary(earlier, 0, 0, earlier)
    staged: list[Path] = []
    try:
        rows, quarantine = _stage(read_batches(path, source=source), lake, staged, progress)
        # From the look for duplicates to the commit no other ingest may add rows.
        with lake.locked("ingest"):
            if earlier := _earlier_rows(lake, sha256, source):
                _remove(staged)
                return IngestSummary(earlier, 0, 0, earlier)
            duplicates = _drop_duplicates(lake, staged, source, own_ids)
            stored = rows - quarantine.height - duplicates
            summary = IngestSummary(rows, stored, quarantine.height, duplicates)
            lake.transact(lambda: _commit(lake, staged, quarantine, summary, sha256, source))
    except BaseException:
        _remove(staged)
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
    batches: Iterable[Batch], lake: Lake, staged: list[Path], progress: Callable[[int], None] | None
) -> tuple[int, pl.DataFrame]:
    """Write the good rows to files, noted in `staged`; rows read, and those for the quarantine."""
    rows = 0
    quarantines: list[pl.DataFrame] = []

    def requests() -> Iterator[pl.DataFrame]:
        nonlocal rows
        for batch in batches:
            rows += batch.rows
            if batch.quarantine.height:
                quarantines.append(batch.quarantine)
            if progress:
                progress(batch.size_bytes)
            yield batch.requests

    for frame in _grouped(requests()):
        staged.append(lake.new_file("requests"))
        frame.write_parquet(staged[-1], compression="snappy")
    return rows, pl.concat(quarantines) if quarantines else pl.DataFrame()


def _grouped(frames: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """The frames put together to about FILE_ROWS each; empty ones leave no trace."""
    group: list[pl.DataFrame] = []
    for frame in frames:
        group.append(frame)
        if sum(part.height for part in group) >= FILE_ROWS:
            yield pl.concat(group)
            group = []
    if sum(part.height for part in group):
        yield pl.concat(group)


def _drop_duplicates(lake: Lake, staged: list[Path], source: str, own_ids: bool) -> int:
    """Rewrite the staged files without rows whose request_id stands earlier in them or in the lake.

    Numbered ids can't repeat within a file, so a source that is new needs no look at all.
    """
    stored = "SELECT request_id FROM lake.requests WHERE source = $source"
    parameters: dict[str, object] = {"source": source}
    known = lake.query(f"SELECT count(*) FROM ({stored})", parameters).item()
    if not staged or not (own_ids or known):
        return 0
    files = ", ".join(_quoted(path) for path in staged)
    rows = f"read_parquet([{files}], filename = true, file_row_number = true)"
    repeated = lake.query(
        f"""
        SELECT request_id FROM {rows} GROUP BY request_id HAVING count(*) > 1
        UNION
        SELECT request_id FROM {rows} SEMI JOIN ({stored}) USING (request_id)
        """,
        parameters,
    )
    if not repeated.height:
        return 0
    before = lake.query(f"SELECT count(*) FROM {rows}").item()
    kept = lake.new_file("requests")
    # A list position, since file names are random and would not tell which file came first.
    order = f"list_position([{files}], filename), file_row_number"
    try:
        lake.db.execute(
            f"""
            COPY (
                SELECT * EXCLUDE (filename, file_row_number)
                FROM {rows} ANTI JOIN ({stored}) USING (request_id)
                QUALIFY row_number() OVER (PARTITION BY request_id ORDER BY {order}) = 1
            ) TO {_quoted(kept)} (FORMAT parquet)
            """,
            parameters,
        )
        after = lake.query(f"SELECT count(*) FROM {_quoted(kept)}").item()
    except BaseException:
        _remove([kept])
        raise
    _remove(staged)
    staged.append(kept)
    if not after:
        _remove(staged)
    return int(before - after)


def _commit(
    lake: Lake, staged: list[Path], quarantine: pl.DataFrame, summary: IngestSummary, sha256: str, source: str
) -> None:
    lake.add_files("requests", staged)
    lake.insert("quarantine", quarantine)
    note = {
        "sha256": sha256,
        "source": source,
        "rows": summary.rows,
        "stored": summary.stored,
        "quarantined": summary.quarantined,
        "duplicates": summary.duplicates,
        "at": datetime.now(UTC),
    }
    lake.insert("ingests", pl.DataFrame([note]))


def _remove(files: list[Path]) -> None:
    """Delete these files and forget them."""
    for file in files:
        file.unlink(missing_ok=True)
    files.clear()


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
