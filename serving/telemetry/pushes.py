"""Telemetry that is pushed: taken in by slices, so that decisions get their turn; answered once stored."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import polars as pl

from data.errors import Busy, StorageError
from data.live.intake import Intake
from data.schema import QUARANTINE
from data.writer import LakeWriter
from serving.clock import Clock
from serving.forecast.offered import US
from serving.http import messages
from serving.metrics import Metrics
from serving.telemetry import rows as telemetry
from serving.telemetry.elsewhere import Batch, Elsewhere
from serving.telemetry.engine import Engine
from serving.telemetry.recent import Recent
from serving.telemetry.recording import Rarely
from serving.telemetry.rows import Fault

SOURCE = "telemetry"
"""Source of rows whose sender gives no name."""
TOLERATED_S = 2.0
"""An offset up to this is the way of the message, not the sender's clock."""
MOST_OFF_S = 120.0
"""A clock that is off by more is not corrected for."""
MOST_TOLD = 1_000
"""Refused rows that an answer names: a body of empty rows would otherwise have one sixty times its size."""
SOURCES = 1_000
"""Sources whose offset is remembered."""
BREATH = 4
"""Turns of the event loop between two slices: a decision takes a few from its first byte to its answer."""
BUSY_RETRY_S, FAILED_RETRY_S = 5, 10

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

T = TypeVar("T")


class NotStored(Exception):  # noqa: N818
    """The lake didn't take the rows; whoever sends them again loses nothing and counts nothing twice."""

    def __init__(self, status: int, error: Exception, retry_after_s: int) -> None:
        super().__init__(
            "The rows were counted for the forecast and are not in the lake: "
            f"{str(error).splitlines()[0].rstrip('.')}. Send the same body again in {retry_after_s} s; "
            "nothing is counted twice."
        )
        self.status = status
        self.retry_after_s = retry_after_s


class Skewed(Exception):  # noqa: N818
    """The sender's clock is too far off to correct for."""


class Pushes:
    """Takes in what others tell, one slice of one body at a time."""

    def __init__(
        self, elsewhere: Elsewhere, engine: Engine, clock: Clock, metrics: Metrics, writer: LakeWriter | None
    ) -> None:
        self.elsewhere = elsewhere
        self.engine = engine
        self.clock = clock
        self.metrics = metrics
        self.writer = writer
        self.ahead_s: dict[str, float] = {}  # by source, how far its clock is ahead of ours
        self._turn = asyncio.Lock()
        self._untold: set[asyncio.Future[NotStored | None]] = set()
        self._samples = Recent(10_000)  # taken by the engine
        self._kept = Recent(100_000)  # samples and refused rows that the lake has
        self._complaints = Rarely("pushed rows not stored", clock)

    async def push(
        self, body: bytes, source: str = SOURCE, sent_at: datetime | None = None
    ) -> messages.TelemetryResponse:
        """Take in the rows of a body; with a lake, the answer comes once they are committed.

        Args:
            body: a JSON list, or lines of JSON.
            source: name of the sender, for rows that name none.
            sent_at: when it was sent, by the sender's clock; what that is off is taken off the rows' times.

        Raises:
            ValueError, RecursionError: when a JSON list can't be read; nothing is taken in.
            Skewed: when the sender's clock is off by more than `MOST_OFF_S`; nothing is taken in.
            NotStored: when the lake didn't take the rows.

        """
        ahead_us = self._ahead_us(source, sent_at)
        parts: Iterable[list[Any]] = telemetry.slices(body)
        if body.lstrip()[:1] == b"[":
            parts = [part async for part in self._in_turn(parts)]
        batch = Batch()
        async with self._telling(batch):
            first = 0
            async for rows in self._in_turn(parts):
                self._take(rows, first, batch, source, ahead_us)
                first += len(rows)
        batch.faults.sort(key=lambda fault: fault[0])
        return messages.TelemetryResponse(
            accepted=batch.accepted,
            duplicates=batch.duplicates,
            refused=len(batch.faults),
            refused_rows=[
                messages.RefusedRow(row=row, reason=fault.reason) for row, fault in batch.faults[:MOST_TOLD]
            ],
            stored=self.writer is not None,
            clock_ahead_s=None if sent_at is None else self.ahead_s[source],
        )

    async def take(self, intake: Intake, file: str) -> Intake:
        """Take in requests that came another way, as `push` does; the answer also rejects what was untimely.

        Raises:
            NotStored: when the lake didn't take the rows.

        """
        batch, rejected = Batch(), intake.rejected
        async with self._telling(batch):
            numbered = intake.requests.with_row_index("row")
            async for part in self._in_turn(numbered.iter_slices(telemetry.ROWS_AT_ONCE)):
                self.elsewhere.completed(part, batch, self.clock.wall_us(), self.clock.monotonic_s())
            if batch.faults:
                refused = intake.requests[[place for place, _ in batch.faults]]
                raws, sources = refused.write_ndjson().splitlines(), refused["source"].to_list()
                rejected = pl.concat([rejected, self._refused(batch.faults, raws, sources, file)])
            self._quarantine(rejected, batch)
            self.metrics.rows_refused.labels("invalid").inc(intake.rejected.height)
        return Intake(intake.requests, rejected, intake.ignored)

    def _take(self, rows: list[Any], first: int, batch: Batch, source: str, ahead_us: int) -> None:
        """Take in a slice of a body that starts with its row ``first``."""
        now_us, now_s = self.clock.wall_us(), self.clock.monotonic_s()
        known_faults = len(batch.faults)
        frame, others = telemetry.completed(rows, first)
        whole: list[tuple[int, messages.Completed]] = []
        for place in others:
            event, number = telemetry.parse(rows[place]), first + place
            match event:
                case Fault():
                    batch.faults.append((number, event))
                case messages.Completed():
                    whole.append((number, event))
                case messages.EngineSample():
                    self._sample(event, number, batch, source, ahead_us)
                case messages.Arrived() | messages.Finished():
                    at_us = now_us if event.at is None else telemetry.micros(event.at) - ahead_us
                    told = event.source or source
                    if isinstance(event, messages.Arrived):
                        self.elsewhere.arrived(event, at_us, number, batch, told, now_us, now_s)
                    else:
                        self.elsewhere.finished(event, at_us, number, batch, told, now_us)
        if whole:
            frame = pl.concat([frame, telemetry.as_frame(whole)]).sort("row")
        if frame.height:
            frame = frame.with_columns(
                pl.col("arrived_at", "finished_at") - pl.duration(microseconds=ahead_us),
                pl.col("source").fill_null(source),
            )
            self.elsewhere.completed(frame, batch, now_us, now_s)
        faults = batch.faults[known_faults:]
        if faults:
            raws = [telemetry.raw(rows[place - first]) for place, _ in faults]
            refused = self._refused(faults, raws, [source] * len(faults), "POST /v1/telemetry")
            self._quarantine(refused, batch)

    def _sample(
        self, sample: messages.EngineSample, place: int, batch: Batch, source: str, ahead_us: int
    ) -> None:
        now_us = self.clock.wall_us()
        at_us = now_us if sample.at is None else telemetry.micros(sample.at) - ahead_us
        name = f"{at_us}:{source}"
        known = sample.at is not None and name in self._samples
        if not known:
            told = sample.model_copy(update={"at": EPOCH + timedelta(microseconds=at_us)})
            if fault := self.engine.take(told, now_us, self.clock.monotonic_s(), source):
                batch.faults.append((place, fault))
                return
            self._samples.add(name)
        if known and (self.writer is None or name in self._kept):
            batch.duplicates += 1
            return
        batch.accepted += 1
        if self.writer is None:
            return
        self._kept.add(name)
        batch.others.append(name)
        batch.keep_row(
            "engine_samples",
            source=source,
            at=at_us,
            engine="",
            state="ok",
            waiting=None if sample.queue_depth is None else round(sample.queue_depth),
            kv_cache_usage=sample.kv_cache_usage,
            prefix_hit_rate=sample.kv_cache_hit_rate,
        )

    def _refused(
        self, faults: Sequence[tuple[int, Fault]], raws: list[str], sources: list[str], file: str
    ) -> pl.DataFrame:
        """Rows of the quarantine."""
        for _, fault in faults:
            self.metrics.rows_refused.labels(fault.kind).inc()
        rows = {
            "source": sources,
            "file": [file] * len(faults),
            "line": [place + 1 for place, _ in faults],
            "reason": [fault.reason for _, fault in faults],
            "raw": [raw[: telemetry.MAX_RAW] for raw in raws],
            "at": [self.clock.wall_us()] * len(faults),
        }
        return pl.DataFrame(rows, schema={column.name: column.polars for column in QUARANTINE})

    def _quarantine(self, refused: pl.DataFrame, batch: Batch) -> None:
        """Put refused rows aside for the lake, unless it has them from an earlier try."""
        if self.writer is None:
            return
        fresh = []
        for number, (source, raw) in enumerate(refused.select("source", "raw").iter_rows()):
            name = hashlib.sha256(f"{source}\n{raw}".encode()).hexdigest()
            if name not in self._kept:
                self._kept.add(name)
                batch.others.append(name)
                fresh.append(number)
        if fresh:
            batch.keep("quarantine", refused[fresh])

    async def _in_turn(self, parts: Iterable[T]) -> AsyncIterator[T]:
        """Slices, with a breath before each: of all bodies that come in at a time, one slice a breath."""
        waiting = iter(parts)
        while True:
            async with self._turn:
                for _ in range(BREATH):
                    await asyncio.sleep(0)
            try:
                part = next(waiting)
            except StopIteration:
                return
            yield part

    @asynccontextmanager
    async def _telling(self, batch: Batch) -> AsyncIterator[None]:
        """Around the taking in of a batch: stores it at the end, and waits for what others have of it.

        Raises:
            NotStored: when the lake didn't take the rows, or those of another body that has them too.

        """
        told: asyncio.Future[NotStored | None] = asyncio.get_running_loop().create_future()
        self._untold.add(told)
        try:
            yield
            # Whoever stops waiting, what was marked as stored is stored, or marked as not.
            failure = await asyncio.shield(asyncio.ensure_future(self._store(batch)))
        except Exception:
            self._unstored(batch)
            raise
        finally:
            self._untold.discard(told)
        told.set_result(failure)
        if batch.duplicates and not failure:
            failures = await asyncio.gather(*self._untold)
            failure = next(filter(None, failures), None)
        if failure:
            raise failure
        self.metrics.rows.inc(batch.accepted)
        self.metrics.rows_known.inc(batch.duplicates)

    async def _store(self, batch: Batch) -> NotStored | None:
        """Commit what was put aside; why that failed."""
        if self.writer is None:
            return None
        try:
            await asyncio.wrap_future(self.writer.put_tables(batch.tables()))
        except Exception as error:  # the sender is told, and the log
            self._unstored(batch)
            self._complaints.log(error)
            if isinstance(error, Busy):
                return NotStored(503, error, BUSY_RETRY_S)
            return NotStored(507 if isinstance(error, StorageError) else 503, error, FAILED_RETRY_S)
        return None

    def _unstored(self, batch: Batch) -> None:
        self.elsewhere.unstored(batch)
        self._kept.forget(batch.others)

    def _ahead_us(self, source: str, sent_at: datetime | None) -> int:
        """What the sender's clock is ahead of ours, and to be corrected for."""
        if sent_at is None:
            return 0
        ahead_us = telemetry.micros(sent_at) - self.clock.wall_us()
        self.ahead_s.pop(source, None)
        self.ahead_s[source] = ahead_us / US
        if len(self.ahead_s) > SOURCES:
            del self.ahead_s[next(iter(self.ahead_s))]
        if abs(ahead_us) > MOST_OFF_S * US:
            side = "ahead of" if ahead_us > 0 else "behind"
            raise Skewed(
                f"The clock of source '{source}' is {abs(ahead_us) / US:.1f} s {side} this service's; "
                f"{MOST_OFF_S:g} s are corrected for. Set it right."
            )
        return ahead_us if abs(ahead_us) > TOLERATED_S * US else 0
