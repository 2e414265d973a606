"""Pushed telemetry: rows in, each taken in or refused with a reason."""

import json
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from serving.messages import ENGINE_SAMPLE, REQUEST_EVENT, Arrived, EngineSample, Finished
from serving.offered import AHEAD_S, US, Offer, OfferedLoad
from serving.problems import faults

MAX_HISTORY_S = 15 * 86_400
"""History that may be replayed: two weeks show every period that is learned."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a row was refused: a short name for counting, a sentence for people."""

    kind: str
    reason: str


Row = EngineSample | Arrived | Finished


def rows(body: bytes) -> Iterable[Any]:
    """Rows of a JSON list, of one JSON object, or of lines of JSON; a line that is not JSON is a Fault.

    Raises:
        ValueError: when a list can't be read at all; RecursionError: when it is nested too deep.

    >>> list(rows(b'[{"queue_depth": 3}]')), list(rows(b'{"queue_depth": 3}'))
    ([{'queue_depth': 3}], [{'queue_depth': 3}])

    """
    if body.lstrip()[:1] == b"[":
        listed: list[Any] = json.loads(body)
        return listed
    return (_line(line) for line in body.splitlines() if line.strip())


def _line(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        return Fault("invalid", f"the line is not JSON: {error}")


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


class Elsewhere:
    """Requests that were offered elsewhere and reported here: open ones by name, at most ``most`` of them."""

    def __init__(self, offered: OfferedLoad, most: int) -> None:
        self.offered = offered
        self.most = most
        self.forgotten = 0
        self._open: OrderedDict[str, Offer] = OrderedDict()

    def take(self, event: Arrived | Finished, now_us: int, now_s: float) -> Fault | None:
        """Take in an event; says why when it can't be."""
        at_us = now_us if event.at is None else round(event.at.timestamp() * US)
        if fault := self._untimely(event, at_us, now_us):
            return fault
        if isinstance(event, Finished):
            return self._finished(event, at_us)
        if event.request_id in self._open:
            return Fault("duplicate", f"request_id {event.request_id!r} has arrived already and is open")
        self._open[event.request_id] = self.offered.arrive(
            at_us,
            now_s,
            event.prompt_tokens,
            tenant=event.tenant,
            lane=event.lane,
            model=event.model,
            log_type=event.log_type,
        )
        if len(self._open) > self.most:
            self._open.popitem(last=False)
            self.forgotten += 1
        return None

    def _finished(self, event: Finished, at_us: int) -> Fault | None:
        offer = self._open.get(event.request_id)
        if offer is None:
            return Fault(
                "unknown_request", f"request_id {event.request_id!r} is not open: report its arrival first"
            )
        if event.cached_tokens is not None and event.cached_tokens > offer.prompt_tokens:
            return Fault(
                "invalid",
                f"cached_tokens: {event.cached_tokens} is over the prompt's {offer.prompt_tokens} tokens",
            )
        del self._open[event.request_id]
        refused = event.outcome in ("shed", "failed")
        self.offered.finish(offer, at_us, event.output_tokens, event.cached_tokens, refused=refused)
        return None

    def _untimely(self, event: Arrived | Finished, at_us: int, now_us: int) -> Fault | None:
        # An end is news whenever it comes; only an arrival belongs to its second.
        refusal = self.offered.refusal(at_us, now_us)
        if refusal == "ahead":
            ahead_s = (at_us - now_us) / US
            return Fault(
                "ahead",
                f"at: lies {ahead_s:.1f} s ahead of this service's clock, {AHEAD_S} s are let pass; "
                "set the source's clock right",
            )
        if isinstance(event, Arrived) and now_us - at_us > MAX_HISTORY_S * US:
            return Fault("late", f"at: is over {MAX_HISTORY_S // 86_400} days old; replay less history")
        if refusal == "late" and isinstance(event, Arrived):
            behind_s = (now_us - at_us) / US
            return Fault(
                "late", f"at: is {behind_s:.1f} s old and its second is closed; report arrivals sooner"
            )
        return None
