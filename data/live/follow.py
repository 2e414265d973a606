"""A gateway's log into the lake as it grows: every request once, whatever stops the process in between.

The rows of some lines are committed first, then the place after them is written to a small file beside the
lake. Whoever is killed between the two reads those lines again: what the lake has already is left out then.
"""

import asyncio
import fcntl
import hashlib
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import polars as pl

from data.config import LogFile
from data.errors import Busy, InputError
from data.lake import Lake
from data.live.gateway_logs import parse
from data.live.intake import Intake
from data.live.tail import Line, Position, Tail

POLL_S = 1.0
"""How often a file is looked at that has no more lines."""

RETRY_S = 5.0
"""How long to wait when a file or the lake could not be used."""

PASSING = (OSError, duckdb.Error, InputError, Busy)
"""Failures that may be over a while later: a disk, a database or a permission may come back."""

COUNTED = ("stored", "quarantined", "duplicates", "ignored")
"""Where the lines of a log go."""

Put = Callable[[str, pl.DataFrame], Future[None]]
"""`LakeWriter.put`: the future is done when the rows are committed."""

Tell = Callable[[str], None]


def state_folder(location: str) -> Path:
    """Where the places in logs are kept: beside the lake, or under var/ where that is a database."""
    return (Path("var") if "://" in location else Path(location)) / "collect"


def state_file(log: LogFile, folder: Path) -> Path:
    """Where the place in a log is kept: in `folder`, under a name of its own for every source and path."""
    path = hashlib.sha256(str(log.path.absolute()).encode()).hexdigest()[:8]
    return folder / f"{log.source}-{path}.json"


async def follow_log(log: LogFile, location: str, put: Put, tell: Tell) -> None:
    """`Follower.run` in a thread until the task is cancelled; it then ends within a poll and a commit."""
    stop = threading.Event()
    state = state_file(log, state_folder(location))
    try:
        await asyncio.to_thread(Follower(log, location, put, state, tell).run, stop)
    finally:
        stop.set()


@dataclass(slots=True)
class Follower:
    """One log on its way into the lake.

    Attributes:
        location: the lake that `put` writes to.
        state: where the place in the log is kept, see `state_file`.
        tell: is called with what an operator should know.
        counts: lines so far, by COUNTED.
        told: the failure that was told last, until rows are committed again.

    """

    log: LogFile
    location: str
    put: Put
    state: Path
    tell: Tell
    poll_s: float = POLL_S
    retry_s: float = RETRY_S
    counts: Counter[str] = field(default_factory=Counter)
    told: str = field(default="", init=False)

    def run(self, stop: threading.Event) -> None:
        """Follow until `stop` is set; what may pass is told and tried again.

        Raises:
            InputError: when another process follows the log already, or the state file can't be read.

        """
        with _alone(self.log, self.state):
            load(self.state)
            while not stop.is_set():
                try:
                    with Lake(self.location) as lake, closing(Tail(self.log.path, load(self.state))) as tail:
                        self._follow(tail, lake, stop)
                except PASSING as error:
                    if str(error) != self.told:
                        self.told = str(error)
                        self.tell(f"{self.log.path} waits, a new try every {self.retry_s:g} s: {error}")
                    stop.wait(self.retry_s)
        counts = ", ".join(f"{self.counts[name]} {name}" for name in COUNTED)
        self.tell(f"Stopped following {self.log.path}: {counts}.")

    def _follow(self, tail: Tail, lake: Lake, stop: threading.Event) -> None:
        saved, waited = tail.position, False
        while not stop.is_set():
            batch = tail.read()
            for note in batch.notes:
                self.tell(f"{self.log.source}: {note}")
            if batch.position is None and not waited:
                waited = True
                self.tell(f"{self.log.path} is not there yet: waiting for it")
            if batch.lines:
                self._store(lake, batch.lines)
            if batch.position and batch.position != saved:
                save(self.state, batch.position)
                saved = batch.position
            if not batch.behind:
                stop.wait(self.poll_s)

    def _store(self, lake: Lake, lines: Sequence[Line]) -> None:
        """Commit what the lines hold and the lake has not."""
        source, file = self.log.source, self.log.path.name
        intake = parse(lines, self.log.form, source=source, file=file, now=datetime.now(UTC))
        requests, rejected = unstored(lake, intake, source)
        for committed in [self.put("requests", requests), self.put("quarantine", rejected)]:
            committed.result()
        self.told = ""
        self.counts["stored"] += requests.height
        self.counts["quarantined"] += rejected.height
        self.counts["duplicates"] += intake.records - intake.ignored - requests.height - rejected.height
        self.counts["ignored"] += intake.ignored


def load(state: Path) -> Position | None:
    """The place that was saved; None where none was. Raises InputError for a file that holds no place."""
    try:
        return Position(**json.loads(state.read_bytes()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{state} does not hold a place in a log; delete it, and the log is read from its start "
            "(what the lake has already is left out)"
        ) from error


def save(state: Path, position: Position) -> None:
    """Write the place: the whole of it or nothing, also when the power fails."""
    draft = state.with_suffix(".draft")
    with draft.open("w") as file:
        json.dump(asdict(position), file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(state)


def unstored(lake: Lake, intake: Intake, source: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Requests and rejected records of an intake without those that the lake has, and without repeats."""
    requests, rejected = (
        intake.requests.unique("request_id", keep="first", maintain_order=True),
        intake.rejected,
    )
    if requests.height:
        known = lake.query(
            "SELECT DISTINCT request_id FROM lake.requests WHERE source = $source "
            "AND arrived_at BETWEEN $first AND $last AND request_id IN (SELECT unnest($ids))",
            {
                "source": source,
                "first": requests["arrived_at"].min(),
                "last": requests["arrived_at"].max(),
                "ids": requests["request_id"].to_list(),
            },
        )
        requests = requests.join(known, on="request_id", how="anti", maintain_order="left")
    if rejected.height:
        known = lake.query(
            "SELECT DISTINCT file, line, reason, raw FROM lake.quarantine "
            "WHERE source = $source AND line BETWEEN $first AND $last",
            {"source": source, "first": rejected["line"].min(), "last": rejected["line"].max()},
        )
        rejected = rejected.join(known, on=known.columns, how="anti", maintain_order="left")
    return requests, rejected


@contextmanager
def _alone(log: LogFile, state: Path) -> Iterator[None]:
    """Keep other processes of this machine from following the log; the lock dies with its process."""
    state.parent.mkdir(parents=True, exist_ok=True)
    with state.with_suffix(".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"{log.path} is followed by another process already; stop that one, or leave the log to it"
            ) from None
        yield
