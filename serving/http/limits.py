"""Bounds on a request besides its length: address, headers, the time its body takes, how many at once."""

import asyncio

from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.http import problems
from serving.metrics import counter

ALWAYS = ("/healthz", "/readyz")
"""Answered however busy the service is: they wait for nothing."""
STREAMS = ("/v1/policy/stream",)
MOST_STREAMS = 200
"""Answers that last as long as their reader: bounded by themselves, they take no room from admissions. Each
reckons the policy once a second, 0.1 ms; one is enough for a gateway and all its workers."""


class Limits:
    """ASGI middleware: 414, 431, 408 and 503 for what is over a bound, each counted.

    Args:
        app: what answers within the bounds.
        max_url_bytes: of path and query.
        max_header_bytes: of all headers together.
        max_requests: that are being answered at one time.
        body_timeout_s: for a body to come whole.
        registry: gets the counter.

    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_url_bytes: int,
        max_header_bytes: int,
        max_requests: int,
        body_timeout_s: float,
        registry: CollectorRegistry,
    ) -> None:
        self.app = app
        self.max_url_bytes = max_url_bytes
        self.max_header_bytes = max_header_bytes
        self.max_requests = max_requests
        self.body_timeout_s = body_timeout_s
        self.open = self.streams = 0
        self._over = counter(
            registry,
            "tidegate_over_limit",
            "Requests over a bound.",
            limit=("url", "headers", "body_time", "requests", "streams"),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if fault := self._fault(scope):
            limit, status, detail = fault
            self._over.labels(limit).inc()
            answer = problems.problem(status, detail)
            answer.headers["connection"] = "close"  # what follows on it is not worth reading
            if status == 503:
                answer.headers.update({"retry-after": "1", "x-should-retry": "true"})
            await answer(scope, receive, send)
            return
        streams = scope["path"] in STREAMS
        self.streams += streams
        self.open += not streams
        try:
            await self.app(scope, self._in_time(receive), send)
        except HTTPException as late:  # from one that reads the body outside the routes
            answer = problems.problem(late.status_code, late.detail)
            answer.headers.update(late.headers or {})
            await answer(scope, receive, send)
        finally:
            self.streams -= streams
            self.open -= not streams

    def _fault(self, scope: Scope) -> tuple[str, int, str] | None:
        url_bytes = len(scope.get("raw_path") or scope["path"].encode()) + len(scope["query_string"])
        if url_bytes > self.max_url_bytes:
            return "url", 414, f"Path and query are over {self.max_url_bytes} bytes."
        if sum(len(name) + len(value) for name, value in scope["headers"]) > self.max_header_bytes:
            return "headers", 431, f"The headers are over {self.max_header_bytes} bytes."
        if scope["path"] in STREAMS:
            if self.streams >= MOST_STREAMS:
                return "streams", 503, f"{MOST_STREAMS} streams of the policy are open; ask for it by GET."
        elif self.open >= self.max_requests and scope["path"] not in ALWAYS:
            return "requests", 503, f"{self.max_requests} requests are being answered; come back soon."
        return None

    def _in_time(self, receive: Receive) -> Receive:
        """Receive whose messages up to the body's last must all have come before the deadline."""
        ends_s = asyncio.get_running_loop().time() + self.body_timeout_s
        whole = False

        async def timed() -> Message:
            nonlocal whole
            if whole:  # what comes now is the client going away, whenever that is
                return await receive()
            try:
                async with asyncio.timeout_at(ends_s):
                    message = await receive()
            except TimeoutError as error:
                self._over.labels("body_time").inc()
                raise HTTPException(
                    408,
                    f"The body took over {self.body_timeout_s:g} s to come.",
                    {"connection": "close"},
                ) from error
            whole = not message.get("more_body", False)
            return message

        return timed
