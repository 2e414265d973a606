"""One request and its answer as ASGI messages: read ahead, given on as they came, and noted."""

import asyncio
from collections import deque
from typing import NamedTuple

from starlette.types import Message, Receive, Scope

from serving.gateways.usage import UsageReader
from serving.http.messages import Outcome, SettleRequest

DROPPED = b"x-llm-d-request-dropped-reason"


class Ahead(NamedTuple):
    """What was read of a request before the app saw it.

    Attributes:
        body: the body, or its start.
        length: bytes that have come so far, perhaps more than ``body`` holds.
        whole: ``body`` is all of it.
        left: the client left before its end.

    """

    body: bytes
    length: int
    whole: bool
    left: bool


class Replay:
    """The app's ``receive``: what was read ahead first, each message as it came, then what comes."""

    def __init__(self, receive: Receive) -> None:
        self.left = False  # the app knows that the client has left
        self._receive = receive
        self._kept: deque[Message | Exception] = deque()
        self._whole = False  # the body has come to its end

    async def read(self, most_bytes: int) -> Ahead:
        """Read the body ahead, to its end or over ``most_bytes``."""
        parts: list[bytes] = []
        length = 0
        while True:
            try:
                message = await self._receive()
            except Exception as error:  # the app's to handle: it gets it where it would have met it
                self._kept.append(error)
                return Ahead(b"".join(parts)[:most_bytes], length, False, False)
            self._kept.append(message)
            if message["type"] != "http.request":
                return Ahead(b"", length, False, True)
            part = message.get("body", b"")
            parts.append(part)
            length += len(part)
            ended = self._whole = not message.get("more_body", False)
            if ended or length > most_bytes:
                body = parts[0] if len(parts) == 1 else b"".join(parts)
                return Ahead(body[:most_bytes], length, ended and length <= most_bytes, False)

    def replace(self, body: bytes) -> None:
        """Give the app another body than the whole one that was read ahead."""
        self._kept.clear()
        self._kept.append({"type": "http.request", "body": body, "more_body": False})

    async def gone(self) -> None:
        """Return when the client is gone; the app gets to know it where it would have.

        While more of a body may come, it is left where it is: such a client's leaving can't be seen.
        """
        if not self._whole:
            await asyncio.Event().wait()
        while True:
            message = await self._receive()
            self._kept.append(message)
            if message["type"] == "http.disconnect":
                return

    async def __call__(self) -> Message:
        """The next message for the app."""
        if self._kept:
            message = self._kept.popleft()
            if isinstance(message, Exception):
                raise message
        else:
            message = await self._receive()
        if message["type"] == "http.disconnect":
            self.left = True
        return message


def with_length(scope: Scope, length: int) -> Scope:
    """The scope of a request whose body is another one now, of so many bytes and in one piece.

    >>> with_length({"headers": [(b"content-length", b"9"), (b"host", b"a")]}, 12)["headers"]
    [(b'host', b'a'), (b'content-length', b'12')]
    """
    headers = [one for one in scope["headers"] if one[0] not in (b"content-length", b"transfer-encoding")]
    return {**scope, "headers": [*headers, (b"content-length", str(length).encode())]}


class Answer:
    """The answer to an admitted request, as far as it has gone.

    >>> answer = Answer("r-1")
    >>> headers = [(b"content-type", b"application/json")]
    >>> answer.take({"type": "http.response.start", "status": 200, "headers": headers})
    False
    >>> answer.take({"type": "http.response.body", "body": b'{"usage": {"completion_tokens": 7}}'})
    True
    >>> answer.settlement().output_tokens, answer.settlement().outcome
    (7, 'served')
    """

    __slots__ = ("_dropped", "_reader", "_status", "ended", "left", "reservation_id")

    def __init__(self, reservation_id: str) -> None:
        self.reservation_id = reservation_id
        self.ended = False
        self.left = False
        self._status = 0
        self._dropped = False
        self._reader: UsageReader | None = None

    def take(self, message: Message) -> bool:
        """Note a message on its way to the client; True when it is the last of the answer."""
        kind = message["type"]
        if kind == "http.response.start":
            self._status = message["status"]
            told = {b"content-type": "", b"content-encoding": ""}
            for name, value in message.get("headers", ()):
                lower = name.lower()
                if lower in told:
                    told[lower] = value.decode("latin-1")
                elif lower == DROPPED:
                    self._dropped = True
            self._reader = UsageReader(told[b"content-type"], told[b"content-encoding"])
        elif kind == "http.response.body":
            if self._reader is not None:
                self._reader.feed(message.get("body", b""))
            self.ended = not message.get("more_body", False)
        elif kind == "http.response.pathsend":  # a file, which the server reads
            self.ended = True
        return self.ended

    def settlement(self) -> SettleRequest:
        """How it ended; one cut short is told with what was seen of it."""
        usage = None if self._reader is None else self._reader.usage(ended=self.ended)
        return SettleRequest(
            reservation_id=self.reservation_id,
            output_tokens=usage and usage.output_tokens,
            cached_tokens=usage and usage.cached_tokens,
            outcome=self._outcome(),
            estimated=usage is not None and usage.estimated,
        )

    def _outcome(self) -> Outcome:
        if self.left:
            return "aborted"
        if self.ended and 200 <= self._status < 300:
            return "served"
        return "shed" if self._dropped or self._status in (429, 529) else "failed"
