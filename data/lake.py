"""The telemetry lake: DuckLake tables that several processes write and read at once.

The catalog is a SQLite file, the rows are Parquet (small appends wait inside the catalog). A lake is a
folder: `catalog.sqlite` and `data/`.

    with Lake("var/lake") as lake:
        lake.append_requests(frame)
        lake.sources()
"""

import fcntl
import importlib.util
import random
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import duckdb
import polars as pl

from data.errors import InputError
from data.schema import POLARS_REQUESTS, TABLES

T = TypeVar("T")

ATTEMPTS = 12
"""How often a conflicting transaction is tried; the waits between them grow from 20 ms to 2 s."""


class Lake:
    """An open lake; use it in a `with` block, in one thread.

    Appends are committed at once; `transact` makes several of them one. Request ids must be unique within
    their source: `ingest` sees to that for files, other writers must themselves.
    """

    def __init__(self, folder: str | Path = "var/lake") -> None:
        self.folder = Path(folder).resolve()
        self.data = self.folder / "data"
        self.db = _connect()
        try:
            self.data.mkdir(parents=True, exist_ok=True)
            with self.locked("open"):  # two processes that make a catalog at once would damage each other's
                self._retried(self._open)
        except (OSError, duckdb.Error) as error:
            self.db.close()
            raise InputError(
                f"{self.folder} can't be opened as a lake: {str(error).splitlines()[-1]}; "
                "give a writable folder that is new or holds a lake"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.db.close()

    def append(self, table: str, frame: pl.DataFrame) -> None:
        """Append rows; columns match by name, and those that the frame lacks are null."""
        self.transact(lambda: self.insert(table, frame))

    def append_requests(self, requests: pl.DataFrame) -> None:
        """Append requests."""
        self.append("requests", requests)

    def append_quarantine(self, quarantine: pl.DataFrame) -> None:
        """Append quarantined rows."""
        self.append("quarantine", quarantine)

    def requests(self, source: str | None = None) -> pl.DataFrame:
        """Requests of one source, or of all, by arrival.

        Ties come in the order of the trace: numbered ids sort by length first.
        """
        where = "" if source is None else "WHERE source = $source"
        frame = self.query(
            f"FROM lake.requests {where} ORDER BY arrived_at, source, length(request_id), request_id",
            {} if source is None else {"source": source},
        )
        return frame.select(pl.col(name).cast(dtype) for name, dtype in POLARS_REQUESTS.items())

    def sources(self) -> pl.DataFrame:
        """One row a source: source, rows, first and last arrival."""
        return self.query(
            """
            SELECT source, count(*) AS rows, min(arrived_at) AS first, max(arrived_at) AS last
            FROM lake.requests GROUP BY source ORDER BY source
            """
        )

    def query(self, sql: str, parameters: dict[str, object] | None = None) -> pl.DataFrame:
        """The answer to a query over the tables `lake.<name>`."""

        def ask() -> pl.DataFrame:
            if not parameters:
                return pl.DataFrame(self.db.sql(sql))
            return pl.DataFrame(self.db.sql(sql, params=parameters))

        return self._retried(ask)

    def transact(self, write: Callable[[], T]) -> T:
        """Run `write` as one transaction: all of it or nothing.

        `write` is run again when another process committed in between, so it must do nothing but write to
        the lake.
        """

        def attempt() -> T:
            with self._transaction():
                return write()

        return self._retried(attempt)

    def new_file(self, table: str) -> Path:
        """A free path for a Parquet file of this table, to be handed to `add_files`."""
        folder = self.data / "main" / table
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"tidegate-{uuid.uuid4().hex}.parquet"

    def add_files(self, table: str, paths: Sequence[Path]) -> None:
        """Make Parquet files part of a table, which owns them from then on; inside `transact`."""
        for path in paths:
            self.db.execute("CALL ducklake_add_data_files('lake', ?, ?)", [table, str(path)])

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Keep other processes on this machine out of a section; the lock dies with its process."""
        with (self.folder / f"{name}.lock").open("w") as file:
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

    def _open(self) -> None:
        catalog = str(self.folder / "catalog.sqlite").replace("'", "''")
        data = str(self.data).replace("'", "''")
        self.db.execute(
            f"ATTACH IF NOT EXISTS 'ducklake:sqlite:{catalog}' AS lake "
            f"(DATA_PATH '{data}', OVERRIDE_DATA_PATH TRUE, "
            # Without WAL a reader can make SQLite's COMMIT fail, which leaves the catalog locked for all.
            "META_JOURNAL_MODE 'WAL', META_BUSY_TIMEOUT 2000)"
        )
        present = {row[0] for row in self.db.execute("SHOW TABLES FROM lake").fetchall()}
        for table in TABLES:
            if table.name not in present:
                columns = ", ".join(
                    f'"{c.name}" {c.duckdb}{" NOT NULL" if c.required else ""}' for c in table.columns
                )
                self.db.execute(f"CREATE TABLE IF NOT EXISTS lake.{table.name} ({columns})")

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
        for wait_s in [min(0.02 * 2**n, 2.0) for n in range(ATTEMPTS - 1)]:
            try:
                return attempt()
            except duckdb.Error as error:
                if not _is_conflict(error):
                    raise
            time.sleep(wait_s * random.uniform(0.5, 1.5))
        return attempt()


class _Stream:
    """A frame as DuckDB reads it without pyarrow: by the Arrow stream alone."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self.frame = frame

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.frame.__arrow_c_stream__(requested_schema)


def _is_conflict(error: duckdb.Error) -> bool:
    """True for failures that pass when the other process is done."""
    text = str(error).lower()
    return any(word in text for word in ("conflict", "database is locked", "failed to commit", "busy"))


def _connect() -> duckdb.DuckDBPyConnection:
    """A DuckDB in memory with the lake's extensions, loaded from their Python packages: no network."""
    db = duckdb.connect(
        config={
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        }
    )
    db.execute("SET TimeZone = 'UTC'")  # times never depend on the machine's zone
    db.execute("SET enable_progress_bar = false")
    # DuckDB calls an entry point named after the file; the package of sqlite_scanner names its file "sqlite".
    for package, file, name in (
        ("duckdb_extension_sqlite", "sqlite", "sqlite_scanner"),
        ("duckdb_extension_ducklake", "ducklake", "ducklake"),
    ):
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise InputError(f"the Python package {package} is missing; install it beside duckdb")
        built = f"extensions/v{duckdb.__version__}/{file}.duckdb_extension"
        with tempfile.TemporaryDirectory() as folder:
            link = Path(folder) / f"{name}.duckdb_extension"
            link.symlink_to(Path(spec.origin).parent / built)
            db.execute(f"LOAD '{link}'")
    return db
