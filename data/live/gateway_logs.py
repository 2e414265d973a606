"""Lines of a gateway's log to finished requests, whichever gateway wrote them."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Literal

from data.live import envoy_log, litellm_log
from data.live.intake import Intake, RecordError, Row, facts, take
from data.live.tail import MAX_LINE_BYTES, Line

Form = Literal["envoy", "litellm"]


@dataclass(frozen=True, slots=True)
class _Reader:
    """How the JSON object of a line becomes a request, and the keys of it that the quarantine may keep."""

    request: Callable[[Row], Row | None]
    kept: tuple[str, ...]


READERS: dict[Form, _Reader] = {
    "envoy": _Reader(envoy_log.envoy_request, tuple(envoy_log.JSON_FORMAT)),
    "litellm": _Reader(
        litellm_log.litellm_request,
        ("id", "call_type", "status", "startTime", "endTime", "model", "prompt_tokens", "completion_tokens"),
    ),
}


def parse(lines: Iterable[Line], form: Form, *, source: str, file: str, now: datetime) -> Intake:
    """Requests of log lines, and the lines that can't be one; `now` is this machine's clock.

    The quarantine keeps the keys of a faulty line that are no secret. Of a line that is not JSON it keeps the
    size alone: it may be a piece of a prompt. Blank lines are ignored.

    >>> from datetime import UTC
    >>> parse([Line(7, b"{")], "envoy", source="edge", file="access.log", now=datetime(2026, 3, 1, tzinfo=UTC)
    ... ).rejected["raw"].item()
    '(1 bytes, not kept)'
    """
    reader = READERS[form]
    return take(
        ((line.number, line) for line in lines),
        partial(_request, reader),
        partial(_shown, reader),
        source=source,
        file=file,
        now=now,
    )


def _request(reader: _Reader, line: Line) -> Row | None:
    if not line.cut and not line.text.strip():
        return None
    return reader.request(_object(line))


def _object(line: Line) -> Row:
    if line.cut:
        raise RecordError(f"the line is longer than {MAX_LINE_BYTES} bytes")
    try:
        row = json.loads(line.text)
    except (ValueError, RecursionError):  # its message may quote the line
        raise RecordError("the line is not JSON") from None
    if not isinstance(row, dict):
        raise RecordError(f"the line must be a JSON object; got {type(row).__name__}")
    return row


def _shown(reader: _Reader, line: Line) -> str:
    try:
        row = _object(line)
    except RecordError:
        return f"({len(line.text)} bytes{' or more' if line.cut else ''}, not kept)"
    return facts({key: row.get(key) for key in reader.kept})
