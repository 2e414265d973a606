"""An open lake: append, transact, query."""

import fcntl
import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import duckdb
import polars as pl

from data.errors import InputError, StorageError
from data.lake import migrations
from data.lake.connection import attach, connect, is_conflict, is_full, with_values
from data.lake.location import locate
from data.lake.offered import between, once, requests_sql
from data.schema import TABLES

T = TypeVar("T")

ATTEMPTS = 12
"""How often a conflicting transaction is tried; the waits between them grow from 20 ms to 2 s."""

_TIMES = {table.name: table.time for table in TABLES}


class Lake:
    """An open lake; use it in a `with` block, in one thread.

    `location` is a folder or `postgresql://user@host:port/database?data=/folder`. Appends are committed at
    once; `transact` makes several of them one. Request ids must be unique within their source: `ingest` sees
    to that for files, other writers must themselves.

    Attributes:
        name: the location without credentials.
        data: folder of the Parquet files.
        db: the connection, for what the methods don't do; the tables are `lake.<name>`.

    Raises:
        InputError: when the location can't be opened, or holds a lake that is newer than this code.

    """

    def __init__(self, location: str | Path = "var/lake") -> None:
        self.location = locate(location)
        self.name = self.location.name
        self.data = self.location.data
        self._staging: TextIOWrapper | None = None
        self.db = connect(self.location)
        try:
            self.data.mkdir(parents=True, exist_ok=True)
            with self.locked("open"):  # two processes that make a catalog at once would damage each other's
                self._retried(lambda: attach(self.db, self.location))
                if self._retried(lambda: migrations.outdated(self.db)):
                    self.transact(lambda: migrations.migrate(self.db))
        except (OSError, duckdb.Error, InputError) as error:
            self.db.close()
            sentence = self.location.scrubbed(" ".join(str(error).split()))
            if not isinstance(error, InputError):
                sentence += "; " + _REMEDY["postgres" if self.location.secrets or "://" in self.name else ""]
            kind = StorageError if isinstance(error, StorageError) else InputError
            # The cause may hold a password, so it is left out.
            raise kind(f"{self.name} can't be opened as a lake: {sentence}") from None

    def __repr__(self) -> str:
        return f"Lake({self.name!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.db.close()
        self.end_staging()

    def append(self, table: str, frame: pl.DataFrame) -> None:
        """Append rows; columns match by name, and those that the frame lacks are null."""
        self.transact(lambda: self.insert(table, frame))

    def append_requests(self, requests: pl.DataFrame) -> None:
        """Append requests."""
        self.append("requests", requests)

    def append_quarantine(self, quarantine: pl.DataFrame) -> None:
        """Append quarantined rows."""
        self.append("quarantine", quarantine)

    def requests(
        self, source: str | None = None, since: datetime | None = None, until: datetime | None = None
    ) -> pl.DataFrame:
        """Requests of one source, or of all, by arrival, from `since` and before `until`.

        Ties come in the order of the trace: numbered ids sort by length first. A request whose end came later
        has it from `outcomes`. One that was stored twice within the span comes once: as it arrived first, and
        at the same arrival as it was stored first.

        Raises:
            InputError: when a time has no zone.

        """
        where, parameters = between("arrived_at", source, since, until)
        outcomes = self.query("SELECT 1 FROM lake.outcomes LIMIT 1").height > 0
        return once(self.query(requests_sql(where, outcomes=outcomes, since=since is not None), parameters))

    def sources(self) -> pl.DataFrame:
        """One row a source: source, rows, first and last arrival."""
        return self.query(
            """
            SELECT source, count(*) AS rows, min(arrived_at) AS first, max(arrived_at) AS last
            FROM lake.requests GROUP BY source ORDER BY source
            """
        )

    def query(self, sql: str, parameters: dict[str, object] | None = None) -> pl.DataFrame:
        """The answer to a query over the tables `lake.<name>`; `$name` stands for a parameter."""
        bound = with_values(sql, parameters or {})
        return self._retried(lambda: pl.DataFrame(self.db.sql(bound)))

    def execute(self, sql: str, parameters: dict[str, object] | None = None) -> int:
        """Run a statement that copies, inserts or deletes, as a transaction of its own; the rows it counted.

        Raises:
            StorageError: when a disk is full.

        """

        def run() -> int:
            row = self.db.execute(sql, parameters or {}).fetchone()
            return int(row[0]) if row else 0

        return self._retried(run)

    def transact(self, write: Callable[[], T]) -> T:
        """Run `write` as one transaction: all of it or nothing.

        `write` is run again when another process committed in between, so it must do nothing but write to
        the lake. Keep it short: where the catalog is a SQLite file, any commit of others makes it run again.

        Raises:
            StorageError: when a disk is full; the lake is as it was.

        """

        def attempt() -> T:
            with self._transaction():
                return write()

        return self._retried(attempt)

    def new_file(self, table: str) -> Path:
        """A free path for a Parquet file of this table, to be handed to `add_files`.

        Until `end_staging` or `close`, maintenance leaves files alone that no table knows.
        """
        if self._staging is None:
            self._staging = (self.location.locks / "staging.lock").open("w")
            fcntl.flock(self._staging, fcntl.LOCK_SH)
        folder = self.data / "main" / table
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"tidegate-{uuid.uuid4().hex}.parquet"

    def end_staging(self) -> None:
        """Say that every file that was asked for is part of a table or removed."""
        if self._staging:
            self._staging.close()
            self._staging = None

    def stage(self, table: str, frame: pl.DataFrame) -> list[Path]:
        """Write rows to new files, one a UTC day, to be handed to `add_files`; on failure none is left.

        Raises:
            StorageError: when the disk is full.

        """
        time_column, paths = _TIMES[table], list[Path]()
        try:
            for part in [frame] if time_column is None else _by_day(frame, time_column):
                paths.append(self.new_file(table))
                part.write_parquet(paths[-1], compression="snappy")
        except BaseException as error:
            for path in paths:
                path.unlink(missing_ok=True)
            if isinstance(error, Exception) and is_full(error, self.data):
                raise self._full() from error
            raise
        return paths

    def add_files(self, table: str, paths: Sequence[Path]) -> None:
        """Make Parquet files part of a table, which owns them from then on; inside `transact`.

        Columns that a file lacks are null.
        """
        if paths:
            self.db.execute(
                "CALL ducklake_add_data_files('lake', ?, ?, allow_missing => true)",
                [table, [str(path) for path in paths]],
            )

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Keep other processes on this machine out of a section; the lock dies with its process.

        The lock is a file beside the Parquet files, whichever the catalog: who shares those shares the locks.
        """
        with (self.location.locks / f"{name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def insert(self, table: str, frame: pl.DataFrame) -> None:
        """`append` as a part of a larger write; inside `transact`."""
        if frame.is_empty():
            return
        self.db.register("appended", _Stream(frame))
        try:
            self.db.execute(f"INSERT INTO lake.{table} BY NAME SELECT * FROM appended")
        finally:
            self.db.unregister("appended")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self.db.execute("BEGIN")
        try:
            yield
            self.db.execute("COMMIT")
        except BaseException:
            with suppress(duckdb.TransactionException):  # a failed commit has ended it already
                self.db.execute("ROLLBACK")
            raise

    def _retried(self, attempt: Callable[[], T]) -> T:
        """The result of `attempt`, tried again with growing, jittered waits while others hold the catalog."""
        waits_s = [min(0.02 * 2**n, 2.0) for n in range(ATTEMPTS - 1)]
        while True:
            try:
                return attempt()
            except duckdb.Error as error:
                if is_full(error, self.location.locks):
                    raise self._full() from None
                if not waits_s or not is_conflict(error):
                    if (text := self.location.scrubbed(str(error))) != str(error):
                        raise type(error)(text) from None
                    raise
            time.sleep(waits_s.pop(0) * random.uniform(0.5, 1.5))

    def _full(self) -> StorageError:
        return StorageError(
            f"the disk of {self.data} or of the catalog is full: nothing of this was written; "
            "free some space, then do it again"
        )


class _Stream:
    """A frame as DuckDB reads it without pyarrow: by the Arrow stream alone."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self.frame = frame

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.frame.__arrow_c_stream__(requested_schema)


_REMEDY = {
    "": "give a writable folder that is new or holds a lake",
    "postgres": "give a PostgreSQL database that can be reached and written, and a writable folder as data=",
}


def _by_day(frame: pl.DataFrame, time_column: str) -> Iterator[pl.DataFrame]:
    """The rows of each UTC day; those without a time are together."""
    days = frame[time_column].dt.date()
    if not days.is_sorted():
        frame = frame.with_columns(days.alias("day")).sort("day", maintain_order=True).drop("day")
        days = days.sort()
    start = 0
    for length in days.rle().struct.field("len"):
        yield frame.slice(start, length)
        start += length
