"""The rows of pushed telemetry: a body into rows, each row checked, whole requests by the thousand."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import polars as pl
from pydantic import ValidationError

from data.schema import LANES, OUTCOMES, UTC_US
from serving.http.messages import (
    ENGINE_SAMPLE,
    MAX_TOKENS,
    NAME_LENGTH,
    REQUEST_EVENT,
    Arrived,
    Completed,
    EngineSample,
    Finished,
)
from serving.http.problems import faults

ROWS_AT_ONCE = 1_000
"""Rows of a body that are dealt with in one go: some milliseconds, then decisions get their turn."""
MAX_RAW = 2_000
"""Characters that the quarantine keeps of a refused row."""

TOKENS = ("prompt_tokens", "cached_tokens", "output_tokens", "max_tokens")
TIMES: Mapping[str, str] = {"at": "arrived_at", "finished_at": "finished_at"}
NAMES = ("request_id", "source", "tenant", "model", "session", "log_type", "retry_of")
CHOICES: Mapping[str, Sequence[str]] = {"lane": LANES, "outcome": OUTCOMES}
REQUIRED = ("request_id", "prompt_tokens", "at", "finished_at", "outcome")
ISO_8601 = r"^20\d\d-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-][01]\d:[0-5]\d)$"
"""The usual way of writing a time; pydantic knows others, and what it takes the row-wise check takes."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_READ: Mapping[str, Any] = {
    **dict.fromkeys(TOKENS, pl.Int64()),
    **dict.fromkeys((*NAMES, *CHOICES, *TIMES), pl.String()),
}
_FIELDS = _READ.keys() | {"event"}
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")


FaultKind = Literal["invalid", "late", "ahead", "unknown_request"]


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a row was refused: a short name for counting, a sentence for people, a broken line as it came."""

    kind: FaultKind
    reason: str
    raw: str | None = None


Row = EngineSample | Arrived | Finished | Completed

COMPLETED: Mapping[str, Any] = {
    "row": pl.Int64(),
    **{TIMES.get(name, name): UTC_US if name in TIMES else dtype for name, dtype in _READ.items()},
}
"""Columns of a frame of whole requests: place in the body and columns of the lake's requests."""


def slices(body: bytes) -> Iterator[list[Any]]:
    """Rows of a JSON list, of one JSON object, or of lines of JSON, some at a time.

    A line that is not JSON is a Fault.

    Raises:
        ValueError: when a list can't be read to its end; RecursionError: when it is nested too deep.

    >>> list(slices(b'[{"queue_depth": 3}]')), list(slices(b'{"queue_depth": 3}'))
    ([[{'queue_depth': 3}]], [[{'queue_depth': 3}]])

    """
    body = body.removeprefix(b"\xef\xbb\xbf")
    rows: list[Any] = []
    for row in _listed(body.decode()) if body.lstrip()[:1] == b"[" else _lines(body):
        rows.append(row)
        if len(rows) == ROWS_AT_ONCE:
            yield rows
            rows = []
    if rows:
        yield rows


def parse(row: Any) -> Row | Fault:
    """Check one row; a value out of range is refused, never clamped."""
    if isinstance(row, Fault):
        return row
    if not isinstance(row, dict):
        return Fault("invalid", f"a row must be a JSON object; got {type(row).__name__}")
    try:
        return (REQUEST_EVENT if "event" in row else ENGINE_SAMPLE).validate_python(row)
    except ValidationError as error:
        return Fault("invalid", "; ".join(faults(error)))


def completed(rows: Sequence[Any], first: int = 0) -> tuple[pl.DataFrame, list[int]]:
    """Whole requests among rows that are surely sound, and the places of all other rows.

    What this takes, `parse` takes with the same values; it takes no row that is written in an unusual way.

    Args:
        rows: values of a JSON body.
        first: place of the first of them in the body.

    Returns:
        A frame with the columns `COMPLETED`, and places in ``rows`` to be checked one by one.

    """
    found = [n for n, row in enumerate(rows) if type(row) is dict and row.get("event") == "request"]
    present: set[str] = set().union(*(rows[place] for place in found))
    if not present <= _FIELDS:
        found = [place for place in found if rows[place].keys() <= _FIELDS]
    names = [name for name in _READ if name in present]
    columns = {name: [rows[place].get(name) for place in found] for name in names}
    misfits = _misfits(columns)
    if misfits:
        columns = {name: [v for n, v in enumerate(vs) if n not in misfits] for name, vs in columns.items()}
        found = [place for n, place in enumerate(found) if n not in misfits]
    if not found or not present.issuperset(REQUIRED):
        return pl.DataFrame(schema=dict(COMPLETED)), list(range(len(rows)))
    frame = (
        pl.DataFrame({"row": found, **columns}, schema={"row": pl.Int64()} | {n: _READ[n] for n in names})
        .with_columns(
            pl.when(pl.col(name).str.contains(ISO_8601))
            .then(pl.col(name))
            .str.to_datetime("%+", time_unit="us", time_zone="UTC", strict=False)
            .alias(column)
            for name, column in TIMES.items()
        )
        .filter(_sound(present))
    )
    taken = set(frame["row"].to_list())
    others = [place for place in range(len(rows)) if place not in taken]
    absent = [pl.lit(None, dtype).alias(name) for name, dtype in _READ.items() if name not in present]
    frame = frame.with_columns(pl.col("row") + first, *absent)
    return frame.select(list(COMPLETED)), others


def as_frame(events: Sequence[tuple[int, Completed]]) -> pl.DataFrame:
    """Whole requests that were checked one by one, with their places, as a frame like that of `completed`."""
    return pl.DataFrame(
        [
            {
                "row": place,
                **{TIMES.get(name, name): getattr(event, name) for name in _READ if name not in TIMES},
                **{column: micros(getattr(event, name)) for name, column in TIMES.items()},
            }
            for place, event in events
        ],
        schema=dict(COMPLETED),
    )


def micros(at: datetime) -> int:
    """Microseconds since the Unix epoch, exactly."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def raw(row: Any) -> str:
    """A row as the quarantine keeps it."""
    if isinstance(row, Fault):
        return (row.raw or "")[:MAX_RAW]
    return json.dumps(row)[:MAX_RAW]


def _lines(body: bytes) -> Iterator[Any]:
    for line in body.splitlines():
        if line.strip():
            yield _line(line)


def _line(line: bytes) -> Any:
    try:
        text = line.decode().strip()
        row, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError) as error:
        return Fault("invalid", f"the line is not JSON: {error}", line[:MAX_RAW].decode(errors="replace"))
    if end < len(text):
        return Fault("invalid", f"the line is not JSON: more follows after character {end}", text[:MAX_RAW])
    return row


def _listed(text: str) -> Iterator[Any]:
    """Elements of a JSON list one by one: in one piece a long one would hold decisions up."""
    at = _skip(text, text.index("[") + 1)
    if text[at : at + 1] != "]":
        while True:
            row, at = _DECODER.raw_decode(text, at)
            yield row
            at = _skip(text, at)
            if text[at : at + 1] != ",":
                break
            at = _skip(text, at + 1)
    if text[at : at + 1] != "]":
        raise json.JSONDecodeError("Expecting ',' or ']'", text, at)
    if _skip(text, at + 1) < len(text):
        raise json.JSONDecodeError("Extra data", text, at + 1)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _misfits(columns: Mapping[str, list[Any]]) -> set[int]:
    """Places with a value that a column of that type can't hold."""
    misfits: set[int] = set()
    for name, values in columns.items():
        kind = int if name in TOKENS else str
        if set(map(type, values)) - {kind, type(None)}:
            misfits.update(n for n, value in enumerate(values) if type(value) not in (kind, type(None)))
            values = [value for value in values if type(value) is kind]
        known = list(filter(None, values))
        if kind is int and known and not 0 < min(known) <= max(known) <= MAX_TOKENS:
            misfits.update(
                n for n, v in enumerate(columns[name]) if type(v) is int and not 0 <= v <= MAX_TOKENS
            )
        if kind is str and not "".join(known).isascii():
            misfits.update(n for n, v in enumerate(columns[name]) if type(v) is str and _lone(v))
    return misfits


def _lone(text: str) -> bool:
    """True for half a surrogate pair: JSON can write it, UTF-8 can't."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def _sound(present: set[str]) -> pl.Expr:
    """True for whole requests whose every value is in its range, of a frame with these columns."""
    within = [pl.col(name).is_not_null() for name in (*REQUIRED, *TIMES.values())]
    for name in present & set(NAMES):
        within.append(pl.col(name).str.len_chars().is_between(1, NAME_LENGTH))
        within.append(~pl.col(name).str.contains("\0", literal=True))
    within += [pl.col(name).is_in(list(CHOICES[name])) for name in CHOICES if name in present]
    within.append(pl.col("finished_at") >= pl.col("arrived_at"))
    if "max_tokens" in present:
        within.append(pl.col("max_tokens") >= 1)
    if "cached_tokens" in present:
        within.append(pl.col("cached_tokens") <= pl.col("prompt_tokens"))
    return pl.all_horizontal(condition.fill_null(True) for condition in within)
