"""Every request has an id: the sender's x-request-id where it is sane, else a new one.

It goes back with the answer and stands in each log line that is written for the request.
"""

import re
import secrets
from contextvars import ContextVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-request-id"
_HEADER = HEADER.encode()
SANE = re.compile(r"[A-Za-z0-9._:-]{1,128}")
"""What may go into a log and back into a header as it is."""

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""Of the request that the running task answers."""


class RequestIds:
    """ASGI middleware that names each request."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Name a request and pass it on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        told = next((value for key, value in scope["headers"] if key == _HEADER), b"").decode("latin-1")
        name = told if SANE.fullmatch(told) else secrets.token_hex(8)
        with_it = (_HEADER, name.encode())
        # Left as it is at the end: a failure is logged further out, and each request has a task of its own.
        request_id.set(name)

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                others = (header for header in message.get("headers", ()) if header[0].lower() != _HEADER)
                message = {**message, "headers": [*others, with_it]}
            await send(message)

        await self.app(scope, receive, named)
