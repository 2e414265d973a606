"""Rows into the lake from many threads: one thread commits them, whatever waits in one transaction.

writer = LakeWriter("var/lake")
writer.put("engine_samples", frame).result()  # the rows are in the lake
writer.close()
"""

import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

import polars as pl

from data.errors import Busy, InputError
from data.lake import Lake
from data.schema import TABLES, Table

_TABLES: Mapping[str, Table] = {table.name: table for table in TABLES}
ENOUGH_ROWS = 5_000
"""A commit starts at once when this many rows wait, or an eighth of what may wait."""


@dataclass(frozen=True, slots=True)
class WriterState:
    """What a writer has done so far.

    Attributes:
        written: rows committed, by table.
        failed: rows whose commit failed, by table; their senders were told.
        buffered_rows: rows that wait or are being committed.
        last_error: why the latest commit failed; None when it succeeded, and before the first.
        last_commit_age_s: time since a commit succeeded; None before the first.

    """

    written: Mapping[str, int]
    failed: Mapping[str, int]
    buffered_rows: int
    last_error: str | None
    last_commit_age_s: float | None


@dataclass(frozen=True, slots=True)
class _Put:
    frames: Mapping[str, pl.DataFrame]
    done: Future[None]

    @property
    def rows(self) -> int:
        return sum(frame.height for frame in self.frames.values())


class LakeWriter:
    """Writes frames to the lake at ``location`` from a thread and a connection of its own.

    A commit takes all that waits. It starts at once after a pause, or when much waits; else ``max_wait_s``
    after the one before, so that a trickle of small frames doesn't become as many snapshots. At most
    ``max_rows`` rows wait beside those being committed; a larger frame is taken when none waits.

    The lake is opened with the first rows, and anew after a failure: a failed commit fails the futures of its
    rows, and the next one may succeed.
    """

    def __init__(self, location: str, *, max_rows: int = 50_000, max_wait_s: float = 1.0) -> None:
        self.location = location
        self.max_rows = max_rows
        self.max_wait_s = max_wait_s
        self._changed = threading.Condition()
        self._waiting: list[_Put] = []
        self._waiting_rows = self._committing_rows = 0
        self._closed = False
        self._written: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._last_error: str | None = None
        self._committed_at_s: float | None = None
        self._started_at_s = float("-inf")
        self._lake: Lake | None = None
        self._thread = threading.Thread(target=self._run, name="lake-writer", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def put(self, table: str, frame: pl.DataFrame) -> Future[None]:
        """Hand over rows; the future is done when they are committed, or has the error that kept them out.

        Columns go by name, those that the frame lacks are null. May be called from any thread; never waits.

        Raises:
            InputError: when the rows don't fit the table; nothing is taken.
            Busy: when too many rows wait, or the writer is closed; nothing is taken.

        """
        return self.put_tables({table: frame})

    def put_tables(self, frames: Mapping[str, pl.DataFrame]) -> Future[None]:
        """`put` for rows of several tables: all of them are committed, or none."""
        put = _Put({table: fitted(table, frame) for table, frame in frames.items()}, Future())
        put.done.set_running_or_notify_cancel()  # what was taken is written, whoever stops waiting
        if put.rows == 0:
            put.done.set_result(None)
            return put.done
        with self._changed:
            if self._closed:
                raise Busy("The lake's writer is closed; send the rows again to another process.")
            if self._waiting and self._waiting_rows + put.rows > self.max_rows:
                raise Busy(
                    f"{self._waiting_rows} rows wait for the lake already, at most {self.max_rows} may; "
                    "send these again in a few seconds."
                )
            self._waiting.append(put)
            self._waiting_rows += put.rows
            self._changed.notify()
        return put.done

    def state(self) -> WriterState:
        """Counters so far."""
        with self._changed:
            at_s = self._committed_at_s
            return WriterState(
                dict(self._written),
                dict(self._failed),
                self._waiting_rows + self._committing_rows,
                self._last_error,
                None if at_s is None else time.monotonic() - at_s,
            )

    def close(self) -> None:
        """Commit what waits, then stop; a second call does nothing."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while puts := self._next():
            error = self._commit(puts)
            with self._changed:
                counter = self._written if error is None else self._failed
                for put in puts:
                    counter.update({table: frame.height for table, frame in put.frames.items()})
                self._committing_rows = 0
                self._last_error = None if error is None else _line(error)
                if error is None:
                    self._committed_at_s = time.monotonic()
            for put in puts:
                if error is None:
                    put.done.set_result(None)
                else:
                    put.done.set_exception(error)
        self._drop_lake()

    def _next(self) -> list[_Put]:
        """All that waits, once it is time; nothing when the writer was closed and emptied."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            due_s = self._started_at_s + self.max_wait_s
            self._changed.wait_for(
                lambda: self._closed or self._waiting_rows >= min(ENOUGH_ROWS, self.max_rows / 8),
                timeout=max(0.0, due_s - time.monotonic()),
            )
            self._started_at_s = time.monotonic()
            puts, self._waiting = self._waiting, []
            self._committing_rows, self._waiting_rows = self._waiting_rows, 0
            return puts

    def _commit(self, puts: list[_Put]) -> Exception | None:
        """Write the rows in one transaction; the error when that failed."""
        frames: dict[str, list[pl.DataFrame]] = {}
        for put in puts:
            for table, frame in put.frames.items():
                frames.setdefault(table, []).append(frame)
        try:
            lake = self._lake = self._lake or Lake(self.location)
            lake.transact(partial(_insert, lake, {name: pl.concat(parts) for name, parts in frames.items()}))
        except (
            Exception
        ) as error:  # handed to whoever waits for the rows; the next commit opens the lake anew
            self._drop_lake()
            return error
        return None

    def _drop_lake(self) -> None:
        lake, self._lake = self._lake, None
        if lake is not None:
            lake.close()


def _insert(lake: Lake, frames: Mapping[str, pl.DataFrame]) -> None:
    for table, frame in frames.items():
        lake.insert(table, frame)


def fitted(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """The frame in the types of a table of the lake.

    Raises:
        InputError: when the table or a column is unknown, a type doesn't fit, or a required value is missing.

    >>> fitted("ledger", pl.DataFrame({"tick": [1]}))
    Traceback (most recent call last):
        ...
    data.errors.InputError: Rows of ledger can't have the column 'tick'; take it out.

    """
    if table not in _TABLES:
        raise InputError(f"Table must be one of {', '.join(_TABLES)}; got '{table}'.")
    columns = {column.name: column for column in _TABLES[table].columns}
    for name in frame.columns:
        if name not in columns:
            raise InputError(f"Rows of {table} can't have the column '{name}'; take it out.")
    for name, column in columns.items():
        if column.required and (name not in frame.columns or frame[name].null_count()):
            raise InputError(
                f"Rows of {table} must all have a value in '{name}'; give one or leave the row out."
            )
    try:
        return frame.select(
            pl.col(name).cast(column.polars)
            if name in frame.columns
            else pl.lit(None, column.polars).alias(name)
            for name, column in columns.items()
        )
    except pl.exceptions.PolarsError as error:
        raise InputError(f"Rows of {table} don't fit its columns: {_line(error)}") from error


def _line(error: Exception) -> str:
    text = str(error).splitlines()
    return text[0] if text else type(error).__name__
