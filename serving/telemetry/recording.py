"""What the service did, into the lake: noted as it happens, written beside it each second."""

import logging
import secrets
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import polars as pl

from data.errors import Busy
from data.lake import Lake
from data.schema import TABLES
from data.writer import LakeWriter
from serving.admission.retries import Refused
from serving.clock import Clock
from serving.controller.decision import Decision
from serving.forecast.metering import Matured
from serving.forecast.offered import US
from serving.forecast.predictor import Seen, State
from serving.http.messages import AdmitRequest
from serving.metrics import Metrics
from serving.telemetry.recent import Recent

FLUSH_S = 1.0
MOST_ROWS = 50_000
"""Rows of a table that wait at most; with more the newest are lost, and counted."""
RARELY_S = 60.0
SEED_S = 3_600
"""Requests of this long before a start are known as stored."""
MOST_TOKENS = 2**63 - 1
"""What the lake can hold; a client's limit may be any number."""

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "requests": (
        "request_id",
        "arrived_at",
        "tenant",
        "lane",
        "model",
        "session",
        "log_type",
        "prompt_tokens",
        "max_tokens",
        "finished_at",
        "outcome",
        "retry_of",
    ),
    "outcomes": ("request_id", "finished_at", "output_tokens", "cached_tokens", "outcome"),
    "decisions": (
        "request_id",
        "at",
        "tenant",
        "lane",
        "admitted",
        "reason",
        "retry_after_ms",
        "tightening",
        "tightened",
        "backpressure",
        "expected_output_tokens",
    ),
    "forecasts": (
        "tick_at",
        "bundle",
        "state",
        "p_onset",
        "score",
        "threshold",
        "alarm",
        "denied",
        "tightening_target",
        "baseline_tokens_per_s",
        "peak_p50_tokens_per_s",
        "peak_p90_tokens_per_s",
    ),
    "ledger": ("tick_at", "eligible", "alarm", "tightened", "onset_at"),
}
"""What a note of each table holds, in this order; times are microseconds since the Unix epoch."""

_TYPES = {table.name: table.polars for table in TABLES}

log = logging.getLogger("tidegate")


class Rarely:
    """Logs the first error at once, then one a minute with the number of those between."""

    def __init__(self, event: str, clock: Clock) -> None:
        self.event = event
        self.clock = clock
        self._silent_until_s = float("-inf")
        self._unsaid = 0

    def log(self, error: BaseException) -> None:
        """Log an error, or count it."""
        now_s = self.clock.monotonic_s()
        if now_s < self._silent_until_s:
            self._unsaid += 1
            return
        fields = {"reason": str(error).splitlines()[0] if str(error) else type(error).__name__}
        log.error(self.event, extra={"fields": fields | {"since_last": self._unsaid}})
        self._silent_until_s, self._unsaid = now_s + RARELY_S, 0


class Recording:
    """Notes rows and hands them to the lake's writer; what can't be written is counted, and nothing waits."""

    def __init__(self, writer: LakeWriter, source: str, clock: Clock, metrics: Metrics) -> None:
        self.writer = writer
        self.source = source
        self.clock = clock
        self.metrics = metrics
        self._own_ids = (f"{secrets.token_hex(4)}-{number}" for number in count())
        self._given_ids = Recent(MOST_ROWS)
        self._refused = Refused(MOST_ROWS)
        self._notes: dict[str, deque[tuple[Any, ...]]] = {table: deque() for table in COLUMNS}
        self._samples: list[pl.DataFrame] = []
        self._complaints = Rarely("rows lost: the lake can't be written", clock)

    def note(self, table: str, *row: Any) -> None:
        """Note a row, its values in the order of `COLUMNS`."""
        notes = self._notes[table]
        if len(notes) < MOST_ROWS:
            notes.append(row)
        else:
            self.metrics.lake_rows_lost.labels(table).inc()

    def samples(self, frame: pl.DataFrame) -> None:
        """Note rows of engine_samples, of any source."""
        if sum(map(len, self._samples)) + len(frame) <= MOST_ROWS:
            self._samples.append(frame)
        else:
            self.metrics.lake_rows_lost.labels("engine_samples").inc(len(frame))

    def decided(
        self, request: AdmitRequest, decision: Decision, now_us: int, arrived_us: int | None = None
    ) -> str:
        """Note a request and what was decided at ``now_us``; returns its name in the lake.

        That name is the gateway's own, unless it has none or gave it before: a retry then names what it
        repeats, as it does where it says so, or where its client counts and the attempt before was refused
        here. A refusal without a reason is a client that left while it waited.
        """
        request_id, now_s = request.request_id, self.clock.monotonic_s()
        retry_of = request.retry_of or self._refused.repeated_by(request, now_s)
        if request_id is None or request_id in self._given_ids:
            retry_of = retry_of or request_id
            request_id = decision.reservation_id or next(self._own_ids)
        else:
            self._given_ids.add(request_id)
        if decision.reason is not None:
            self._refused.add(request, request_id, now_s)
        limits = [n for n in (request.max_tokens, request.max_completion_tokens) if n is not None]
        self.note(
            "requests",
            request_id,
            now_us if arrived_us is None else arrived_us,
            request.tenant,
            decision.lane,
            request.model,
            request.session,
            request.log_type,
            request.prompt_tokens,
            min(max(limits), MOST_TOKENS) if limits else None,
            None if decision.admitted else now_us,
            None if decision.admitted else "shed" if decision.reason else "aborted",
            retry_of,
        )
        self.note(
            "decisions",
            request_id,
            now_us,
            request.tenant,
            decision.lane,
            decision.admitted,
            decision.reason,
            decision.retry_after_ms,
            decision.tightening,
            decision.tightened,
            decision.backpressure,
            decision.expected_output_tokens,
        )
        return request_id

    def ended(
        self, request_id: str, at_us: int, output_tokens: int | None, cached_tokens: int | None, outcome: str
    ) -> None:
        """Note how an admitted request ended; null is what nobody counted."""
        self.note("outcomes", request_id, at_us, output_tokens, cached_tokens, outcome)

    def ticked(self, seen: Seen, state: State, target: float, bundle: str) -> None:
        """Note what a tick saw."""
        peak = seen.peak_load or {}
        self.note(
            "forecasts",
            seen.at_us,
            bundle,
            state,
            seen.p_onset,
            seen.score,
            seen.threshold,
            seen.alarm,
            seen.denied,
            target,
            seen.baseline,
            peak.get("p50"),
            peak.get("p90"),
        )

    def judged(self, ticks: Iterable[Matured], origin_us: int) -> None:
        """Note ticks whose outcome is known; they count seconds from ``origin_us``."""
        for tick in ticks:
            onset_s = tick.next_onset_s
            self.note(
                "ledger",
                origin_us + tick.t_s * US,
                tick.eligible,
                tick.alarm,
                tick.tightened,
                None if onset_s is None else origin_us + onset_s * US,
            )

    async def run(self) -> None:
        """Write what was noted, each second, for as long as the service lives."""
        while True:
            await self.clock.sleep(FLUSH_S)
            try:
                self.flush()
            except Exception as error:  # a fault of ours: it is told and counted, and recording goes on
                rows = {table: len(notes) for table, notes in self._notes.items()}
                self._lose(error, rows | {"engine_samples": sum(map(len, self._samples))})
                self._forget()

    def flush(self) -> Future[None] | None:
        """Hand over what was noted; nothing when there is nothing, or the writer is too busy for it now."""
        frames = {table: self._frame(table, notes) for table, notes in self._notes.items() if notes}
        if self._samples:
            frames["engine_samples"] = pl.concat(self._samples)
        if not frames:
            return None
        try:
            written = self.writer.put_tables(frames)
        except Busy:
            return None  # the notes wait for the next time
        self._forget()
        rows = {table: frame.height for table, frame in frames.items()}
        written.add_done_callback(lambda done: self._done(done, rows))
        return written

    def _done(self, written: Future[None], rows: Mapping[str, int]) -> None:
        if error := written.exception():
            self._lose(error, rows)

    def _forget(self) -> None:
        for notes in self._notes.values():
            notes.clear()
        self._samples.clear()

    def _lose(self, error: BaseException, rows: Mapping[str, int]) -> None:
        self._complaints.log(error)
        for table, lost in rows.items():
            self.metrics.lake_rows_lost.labels(table).inc(lost)

    def _frame(self, table: str, notes: Iterable[Sequence[Any]]) -> pl.DataFrame:
        types = {name: _TYPES[table][name] for name in COLUMNS[table]}
        columns = dict(zip(COLUMNS[table], map(list, zip(*notes, strict=True)), strict=True))
        return pl.DataFrame(columns, schema=types).with_columns(source=pl.lit(self.source))


def recent_requests(location: str, now_us: int, most: int) -> list[tuple[str, str, bool]]:
    """Source, id and whether the end is known of the requests that a lake has of the last hour.

    The latest ``most`` of them, in order of arrival.

    Raises:
        InputError, duckdb.Error: when the lake can't be read.

    """
    since = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=now_us, seconds=-SEED_S)
    with Lake(location) as lake:
        return (
            lake.query(
                """
            SELECT source, request_id, r.outcome IS NOT NULL OR o.outcome IS NOT NULL AS ended
            FROM lake.requests r LEFT JOIN lake.outcomes o USING (source, request_id)
            WHERE arrived_at >= $since ORDER BY arrived_at DESC LIMIT $most
            """,
                {"since": since, "most": most},
            )
            .reverse()
            .rows()
        )
