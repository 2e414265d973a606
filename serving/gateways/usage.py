"""What a model's answer says that it used, read while it passes by.

OpenAI's chat, completions, responses and embeddings, and Anthropic's messages, as JSON or as server-sent
events. Chunks may be cut anywhere, inside a line or a character: the result does not depend on the cuts.
Usage may come more than once; for each number the last one counts. A stream that never says it (in
OpenAI's API it has to be asked for, with `stream_options: {"include_usage": true}`) is estimated: one
token for each event that carries output. Engines that put several tokens into an event use more than that.
"""

import json
from typing import Any, NamedTuple

from serving.http.messages import MAX_TOKENS

MAX_LINE_BYTES = 1 << 20
"""A longer line of an event stream is skipped."""
MAX_JSON_BYTES = 4 << 20
"""A longer answer in one piece is not read."""


class Usage(NamedTuple):
    """Tokens of an answer; None where nobody said.

    Attributes:
        output_tokens: tokens generated, all answers together.
        cached_tokens: prompt tokens served from the prefix cache.
        estimated: output_tokens was counted from events, not told.

    """

    output_tokens: int | None
    cached_tokens: int | None
    estimated: bool


class UsageReader:
    r"""Reads one answer, chunk by chunk.

    >>> reader = UsageReader("text/event-stream; charset=utf-8")
    >>> reader.feed(b'data: {"choices": [{"delta": {"content": "Hi"}}]}\n\ndata: {"choi')
    >>> reader.feed(b'ces": [], "usage": {"completion_tokens": 7}}\n\ndata: [DONE]\n\n')
    >>> reader.usage(ended=True)
    Usage(output_tokens=7, cached_tokens=None, estimated=False)
    """

    def __init__(self, content_type: str, content_encoding: str = "") -> None:
        """Start with nothing read; a compressed answer, or another type, leaves everything unknown."""
        media = content_type.partition(";")[0].strip().lower()
        plain = content_encoding.strip().lower() in ("", "identity")
        self._events = plain and media == "text/event-stream"
        self._json = plain and (media == "application/json" or media.endswith("+json"))
        self._held = bytearray()  # the unfinished line, or the answer so far
        self._overlong = False
        self._output_events = 0
        self._output_tokens: int | None = None
        self._cached_tokens: int | None = None
        self.unreadable = 0
        """Events, or whole answers, that were too long or no JSON."""

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the body."""
        if self._events:
            *ends, rest = chunk.split(b"\n")
            for end in ends:
                self._hold(end, MAX_LINE_BYTES)
                self._take_line()
            self._hold(rest, MAX_LINE_BYTES)
        elif self._json:
            self._hold(chunk, MAX_JSON_BYTES)

    def usage(self, *, ended: bool) -> Usage:
        """What was used. Call it once, after the last chunk; ``ended`` says that the answer is whole."""
        if self._events and (self._held or self._overlong) and ended:
            self._take_line()
        elif self._json and ended:
            self._take_answer()
        told, seen = self._output_tokens, self._output_events
        # What a stream told before it was cut off may be older than its last events.
        if told is not None and (ended or told >= seen):
            return Usage(told, self._cached_tokens, False)
        return Usage(seen if self._events else None, self._cached_tokens, self._events)

    def _hold(self, part: bytes, most_bytes: int) -> None:
        if self._overlong or len(self._held) + len(part) > most_bytes:
            self._overlong = True
            self._held.clear()
        else:
            self._held += part

    def _take_line(self) -> None:
        line, overlong = bytes(self._held), self._overlong
        self._held.clear()
        self._overlong = False
        if overlong:
            self.unreadable += 1
        elif line.startswith(b"data:") and (data := line[5:].strip()) not in (b"", b"[DONE]"):
            self._take(data)

    def _take_answer(self) -> None:
        if self._overlong:
            self.unreadable += 1
        elif self._held:
            self._take(bytes(self._held))

    def _take(self, data: bytes) -> None:
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            self.unreadable += 1
            return
        if not isinstance(event, dict):
            return
        self._output_events += _outputs(event)
        for holder in (event, event.get("response"), event.get("message")):
            if isinstance(holder, dict) and isinstance(usage := holder.get("usage"), dict):
                output_tokens, cached_tokens = _output_tokens(usage), _cached_tokens(usage)
                if output_tokens is not None:
                    self._output_tokens = output_tokens
                if cached_tokens is not None:
                    self._cached_tokens = cached_tokens


def _outputs(event: dict[str, Any]) -> int:
    """Pieces of output in an event: one for each answer that it continues."""
    choices = event.get("choices")
    if isinstance(choices, list):
        return sum(isinstance(choice, dict) and _continues(choice) for choice in choices)
    kind = event.get("type")
    return int(isinstance(kind, str) and (kind == "content_block_delta" or kind.endswith(".delta")))


def _continues(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return any(value for name, value in delta.items() if name != "role")
    return bool(choice.get("text"))


def _output_tokens(usage: dict[str, Any]) -> int | None:
    for name in ("completion_tokens", "output_tokens"):
        if (tokens := _count(usage.get(name))) is not None:
            return tokens
    total, prompt = _count(usage.get("total_tokens")), _count(usage.get("prompt_tokens"))
    # Embeddings and scores name no output: all of their total is prompt.
    return total - prompt if total is not None and prompt is not None and total >= prompt else None


def _cached_tokens(usage: dict[str, Any]) -> int | None:
    for name in ("prompt_tokens_details", "input_tokens_details"):
        details = usage.get(name)
        if isinstance(details, dict) and (tokens := _count(details.get("cached_tokens"))) is not None:
            return tokens
    return _count(usage.get("cache_read_input_tokens"))


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else None
