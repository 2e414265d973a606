"""Finished requests out of foreign records: each becomes a row, is refused with a reason, or is ignored.

A log line or a span holds far more than telemetry: prompts, answers, keys. A reader hands on the few facts
that it names and nothing else, to the lake as well as to the quarantine.
"""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import polars as pl

from data.readers.fields import EPOCH, MAX_TOKENS, YEAR_2200
from data.schema import LANES, POLARS_REQUESTS, QUARANTINE

T = TypeVar("T")

Row = dict[str, Any]
"""A request by schema column; columns that it lacks are unknown."""

MAX_AHEAD_S = 5.0
"""A time further ahead of our clock comes from a clock that is wrong."""

MAX_TEXT = 256
"""Characters in the longest name or id that is taken in."""

MAX_RAW = 4096
"""Characters of a refused record that the quarantine keeps."""

MAX_DIGITS = 20
"""A longer run of digits is no count and no time; reading it as a number could take minutes."""

POLARS_REJECTED = {column.name: column.polars for column in QUARANTINE}
"""Schema of refused records: the table `quarantine`."""

_NEWEST_S = YEAR_2200.timestamp()


class RecordError(Exception):
    """A record that can't be a request; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Intake:
    """Where records went: `requests` (POLARS_REQUESTS), `rejected` (POLARS_REJECTED), the rest `ignored`."""

    requests: pl.DataFrame
    rejected: pl.DataFrame
    ignored: int

    @property
    def records(self) -> int:
        """Records read."""
        return self.requests.height + self.rejected.height + self.ignored


def take(
    records: Iterable[tuple[int, T]],
    read: Callable[[T], Row | None],
    shown: Callable[[T], str],
    *,
    source: str,
    file: str,
    now: datetime,
) -> Intake:
    """Read numbered records; `read` gives a row, None for what is no request, or raises RecordError.

    `shown` is what the quarantine keeps of a refused record, at most MAX_RAW characters of it.
    """
    rows: list[Row] = []
    rejected: list[Row] = []
    ignored = 0
    for number, record in records:
        try:
            row = read(record)
            if row is None:
                ignored += 1
            else:
                rows.append(_checked(row | {"source": source}, now))
        except RecordError as unfit:
            rejected.append({"line": number, "reason": _clean(str(unfit)), "raw": _clean(shown(record))})
    quarantine = pl.DataFrame(rejected, schema=POLARS_REJECTED).with_columns(
        source=pl.lit(source), file=pl.lit(file), at=pl.lit(now, POLARS_REJECTED["at"])
    )
    return Intake(pl.DataFrame(rows, schema=POLARS_REQUESTS), quarantine, ignored)


def facts(record: Row) -> str:
    """The facts of a record as JSON, for the quarantine; of what is no single value only the type.

    >>> facts({"model": "llama", "lane": None, "tenant": ["a", "b"]})
    '{"model": "llama", "tenant": "(list)"}'
    """
    plain = {
        name: fact if isinstance(fact, (str, int, float)) else f"({type(fact).__name__})"
        for name, fact in record.items()
        if fact is not None
    }
    return json.dumps(plain)


def text(name: str, value: object) -> str | None:
    """A name or an id; None where there is none. Raises RecordError for anything else.

    >>> text("tenant", "acme"), text("tenant", ""), text("tenant", None)
    ('acme', None, None)
    """
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > MAX_TEXT or not value.isprintable():
        raise RecordError(
            f"{name} must be printable text of at most {MAX_TEXT} characters; got {_got(value)}"
        )
    return value


def count(name: str, value: object) -> int | None:
    """A count of tokens, a number or its text; None where there is none. Raises RecordError otherwise.

    >>> count("prompt_tokens", 812), count("prompt_tokens", "812"), count("prompt_tokens", None)
    (812, 812, None)
    """
    if value is None or value == "":
        return None
    number = whole(value)
    if number is None or not 0 <= number <= MAX_TOKENS:
        raise RecordError(f"{name} must be a whole number from 0 to {MAX_TOKENS}; got {_got(value)}")
    return number


def whole(value: object) -> int | None:
    """A whole number as JSON and protobuf write it, else None.

    >>> whole(3), whole("3"), whole(3.0), whole(3.5), whole(True), whole("three")
    (3, 3, 3, None, None, None)
    """
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= MAX_DIGITS:
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def moment(name: str, value: object) -> datetime | None:
    """A UTC time from seconds since the epoch or ISO 8601 text; None where there is none.

    Text without a zone is UTC. Raises RecordError for anything else.

    >>> moment("startTime", 1764430000.25).isoformat()
    '2025-11-29T15:26:40.250000+00:00'
    >>> moment("startTime", "2026-01-02T03:04:05Z").isoformat()
    '2026-01-02T03:04:05+00:00'
    """
    if value is None or value == "":
        return None
    try:
        if isinstance(value, str):
            at = datetime.fromisoformat(value)
            at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            if not (math.isfinite(value) and 0 <= value <= _NEWEST_S):
                raise OverflowError
            at = datetime.fromtimestamp(value, UTC)
        else:
            raise TypeError
    except (ValueError, OverflowError, TypeError):
        raise RecordError(
            f"{name} must be seconds since 1970 or an ISO 8601 time; got {_got(value)}"
        ) from None
    return at


def micros(name: str, value: int) -> datetime:
    """The UTC time that many microseconds after the epoch. Raises RecordError outside 1970 to 2200.

    >>> micros("endTimeUnixNano", 1_764_430_000_250_000).isoformat()
    '2025-11-29T15:26:40.250000+00:00'
    """
    if not 0 <= value <= _NEWEST_S * 1e6:
        raise RecordError(f"{name} must be a time from 1970 to 2200; got {_got(value)} us since 1970")
    return EPOCH + timedelta(microseconds=value)


def _checked(row: Row, now: datetime) -> Row:
    """The row, if it keeps the rules that hold between its columns and against the clock."""
    for name in ("request_id", "arrived_at", "prompt_tokens", "finished_at", "outcome"):
        if row.get(name) is None:
            raise RecordError(f"{name} is unknown: the record has none")
    if (lane := row.get("lane")) not in (None, *LANES):
        raise RecordError(f"lane must be one of {', '.join(LANES)}; got '{lane}'")
    for name in ("arrived_at", "finished_at"):
        if not EPOCH <= row[name] <= YEAR_2200:
            raise RecordError(f"{name} must be a time from 1970 to 2200; got {row[name].isoformat()}")
        ahead_s = (row[name] - now).total_seconds()
        if ahead_s > MAX_AHEAD_S:
            raise RecordError(
                f"{name} is {ahead_s:.1f} s ahead of this machine's clock, {MAX_AHEAD_S:g} s are let pass; "
                "set the source's clock right"
            )
    if row["finished_at"] < row["arrived_at"]:
        raise RecordError(f"finished_at must not be before arrived_at; got {row['finished_at'].isoformat()}")
    if (row.get("cached_tokens") or 0) > row["prompt_tokens"]:
        raise RecordError(
            f"cached_tokens must be at most prompt_tokens, {row['prompt_tokens']}; got {row['cached_tokens']}"
        )
    return row


def _got(value: object) -> str:
    if isinstance(value, (dict, list)):
        return type(value).__name__
    if isinstance(value, int) and abs(value) >= 10**MAX_DIGITS:
        return f"a number of over {MAX_DIGITS} digits"
    return f"'{str(value)[:40]}'"


def _clean(raw: str) -> str:
    """Text that every catalog can store: no lone surrogates, no NUL."""
    return raw[:MAX_RAW].encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
