r"""The gate as ASGI middleware: it decides in the process of the server whose requests it guards.

For any ASGI app, and for vLLM's API server:

    TIDEGATE_CONFIG=tidegate.yaml vllm serve MODEL --middleware serving.gateways.asgi.TidegateMiddleware \
        --enable-force-include-usage --enable-prompt-tokens-details

The two last have vLLM tell the usage of every stream, and which of its prompt was cached; of a stream that
tells none, the output is estimated. vLLM checks its API key behind the middleware: a client without one
is turned away only after it was admitted, and counts as offered load. Where such floods can come, let a
gateway that authenticates stand in front.

A POST to a path that calls a model is decided on; anything else is not looked at. Of the body as much is read
ahead as says what is asked for, and the app then gets every message as it came. A refusal is the 429 of POST
/v1/admit. What was reserved is settled with the usage that the answer tells, and released when the client
leaves or the app fails; as long as the app works on a request, its lease is renewed. The app finds the
decision in ``scope["tidegate"]``.

An overloaded engine asks for shorter answers and for a smaller model: both are set in a body that was read
whole, and the client gets the continuation of a clamped answer in the header `x-tidegate-continuation`. It
sends it back, with the prompt and the answer so far, to be given the rest. A body over 256 KiB, or one that
is no JSON, goes on as it came. The pool is a matter for gateways.

A fault of the gate fails no request: it goes in undecided, counted and logged. A configuration that can't be
used stops the server at its start. `GET /tidegate/metrics` shows the counters.

Without an authenticating gateway in front nobody knows who a client is: every request is then of the default
tenant and lane. With ``trust_headers`` the headers that are a gateway's to set count as well, as for Envoy
(see `serving.gateways.request_facts`). With ``max_wait_ms`` a request for which there is no room yet waits
for its turn; a client that leaves meanwhile is forgotten.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any, NamedTuple

from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from data.errors import InputError
from data.live.envoy_log import CALLS
from serving.admission.refusal import refusal
from serving.clock import Clock, SystemClock
from serving.controller.decision import Decision
from serving.gateways import openai_body
from serving.gateways.asgi_exchange import Ahead, Answer, Replay, with_length
from serving.gateways.in_process import Configuration, build, from_environment, jobs
from serving.gateways.request_facts import (
    CLIENTS,
    CONTINUATION,
    MAX_READ_BYTES,
    MAX_WAIT_MS,
    TRUSTED,
    admit_request,
    prompt_size,
)
from serving.http.messages import AdmitRequest
from serving.metrics import counter

METRICS_PATH = "/tidegate/metrics"
RENEWALS_PER_LEASE = 3

log = logging.getLogger("tidegate")
_configured: Configuration | None = None


def configure(configuration: Configuration | None) -> None:
    """Configure middleware that is added without arguments from now on; None goes by the environment."""
    global _configured
    _configured = configuration


class _Admission(NamedTuple):
    decision: Decision | None  # None: the client left while it waited
    prompt_tokens: int


class TidegateMiddleware:
    """Guards the paths of an ASGI app that call a model."""

    def __init__(
        self, app: ASGIApp, configuration: Configuration | None = None, clock: Clock | None = None
    ) -> None:
        """Guard ``app``; without a configuration by that of `configure`, else by the environment."""
        self.app = app
        self.fault: str | None = None
        self._open: set[Answer] = set()
        self._tasks: list[asyncio.Task[None]] = []
        try:
            chosen = configuration or _configured or from_environment()
            self.gate = build(chosen, clock or SystemClock())
        except InputError as error:
            # Raised here, it would fail every request of a server that asks no middleware to start.
            self.fault = str(error)
            log.error("Tidegate guards nothing: %s", self.fault)
            return
        names = ["content-type", "content-length", *CLIENTS]
        self._tenant_header = chosen.settings.tenant_header
        if chosen.trust_headers:
            names += [*TRUSTED, self._tenant_header]
        self._max_wait_ms = chosen.max_wait_ms
        self._names = {name.encode("ascii"): name for name in names}
        results = ("admitted", "refused", "left", "failed_open")
        self.requests = counter(
            self.gate.metrics.registry,
            "tidegate_asgi_requests",
            "Requests that call a model: admitted, refused, left before they were decided on, or let in "
            "undecided when we failed.",
            result=results,
        )
        self._results = {result: self.requests.labels(result) for result in results}
        self.degraded = counter(
            self.gate.metrics.registry,
            "tidegate_asgi_degraded",
            "Requests that an overloaded engine wants shorter, or on a smaller model: applied, or "
            "not_applied where the body can't be changed.",
            result=("applied", "not_applied"),
        )
        self.faults = counter(
            self.gate.metrics.registry,
            "tidegate_asgi_answer_faults",
            "Answers that we failed to read or to settle; the lease frees what they hold.",
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the connection on, guarded where it calls a model."""
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        elif self.fault is not None or scope["type"] != "http":
            await self.app(scope, receive, send)
        elif scope["method"] == "POST" and scope["path"].rstrip("/").endswith(CALLS):
            await self._guard(scope, receive, send)
        elif scope["path"] == METRICS_PATH:
            metrics = generate_latest(self.gate.metrics.registry)
            await Response(metrics, media_type=CONTENT_TYPE_LATEST)(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        replay = Replay(receive)
        ahead = await replay.read(MAX_READ_BYTES)
        admission = await self._admission(scope, ahead, replay)
        if admission is None:
            await self.app(scope, replay, send)
            return
        decision = admission.decision
        if decision is None:
            return  # nobody waits for an answer
        if decision.reservation_id is None:
            await refusal(decision, admission.prompt_tokens)(scope, replay, send)
            return
        answer = Answer(decision.reservation_id)
        self._open.add(answer)
        scope["tidegate"] = decision
        continuation = None
        if decision.clamp_output_tokens is not None or decision.model is not None:
            scope, continuation = self._degrade(scope, ahead, replay, decision)

        async def noted(message: Message) -> None:
            if continuation is not None and message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), continuation]}
            try:
                if answer.take(message):
                    self._settle(answer)
            except Exception as error:
                self._answer_fault(error)
            try:
                await send(message)
            except OSError:  # how some servers tell that the client has left
                answer.left = True
                raise

        try:
            await self.app(scope, replay, noted)
        except asyncio.CancelledError:
            answer.left = True
            raise
        finally:
            answer.left = answer.left or replay.left
            self._settle(answer)

    async def _admission(self, scope: Scope, ahead: Ahead, replay: Replay) -> _Admission | None:
        """The decision; None lets the request in undecided."""
        if ahead.left:  # nobody waits for an answer, so nothing may be reserved
            self._results["left"].inc()
            return None
        try:
            self._start()
            request = self._request(scope, ahead)
            await self.gate.make_room(request)
            decision: Decision | None
            if request.max_wait_ms is None:
                start_s = time.perf_counter()
                decision = self.gate.admit(request)
                self.gate.metrics.decision_s.observe(time.perf_counter() - start_s)
            else:
                decision = await self.gate.admit_or_wait(request, replay.gone)
        except Exception as error:
            # The gate may not fail a request: it goes in unreserved, and the log has the cause.
            log.error("Tidegate failed; the request was let in", exc_info=error)
            self._results["failed_open"].inc()
            return None
        result = "left" if decision is None else "admitted" if decision.admitted else "refused"
        self._results[result].inc()
        return _Admission(decision, request.prompt_tokens)

    def _request(self, scope: Scope, ahead: Ahead) -> AdmitRequest:
        names = self._names
        headers = {names[name]: value.decode("latin-1") for name, value in scope["headers"] if name in names}
        body, length = ahead.body, ahead.length
        if headers.get("content-type", "").lower().startswith("multipart/"):
            body, length = b"", 0  # a recording: its bytes are no text
        elif "content-length" in headers:
            headers["x-tidegate-content-length"] = headers["content-length"]
        asked = openai_body.read(body) if ahead.whole and body else None
        size = prompt_size(headers, body, length, whole=ahead.whole, asked=asked)
        if self._max_wait_ms is not None:
            headers.setdefault(MAX_WAIT_MS, str(self._max_wait_ms))
        return admit_request(headers, self._tenant_header, size, asked)

    def _degrade(
        self, scope: Scope, ahead: Ahead, replay: Replay, decision: Decision
    ) -> tuple[Scope, tuple[bytes, bytes] | None]:
        """The scope of the changed request, and the header that the answer to it gets."""
        body = None
        if ahead.whole:
            wishes = (decision.clamp_output_tokens, decision.model)
            body = openai_body.degraded(ahead.body, scope["path"], *wishes)
        self.degraded.labels("not_applied" if body is None else "applied").inc()
        if body is None:
            return scope, None
        replay.replace(body)
        handle = decision.continuation
        header = None if handle is None else (CONTINUATION.encode(), handle.encode())
        return with_length(scope, len(body)), header

    def _settle(self, answer: Answer) -> None:
        if answer not in self._open:
            return
        self._open.remove(answer)
        try:
            self.gate.settle(answer.settlement())
        except Exception as error:
            self._answer_fault(error)

    def _answer_fault(self, error: Exception) -> None:
        self.faults.inc()
        log.error("an answer was not settled; its lease frees it", exc_info=error)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.fault is not None:
            await receive()
            await send({"type": "lifespan.startup.failed", "message": self.fault})
            return
        self._start()
        await self.app(scope, receive, send)  # one that knows no lifespan raises, and is never shut down
        await self._stop()

    def _start(self) -> None:
        """Let the gate's tasks run on this loop; a server without lifespan starts them with a request."""
        if self._tasks and not self._tasks[0].done():
            return
        self._tasks = [_task(job) for job in (self._renew(), *jobs(self.gate))]

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        close = getattr(self.gate, "close", None)
        if close is not None:
            await asyncio.to_thread(close)

    async def _renew(self) -> None:
        """Start the leases of all that the app works on anew, however long it takes."""
        while True:
            await self.gate.clock.sleep(self.gate.settings.rules.lease_s / RENEWALS_PER_LEASE)
            for answer in self._open:
                self.gate.renew(answer.reservation_id)


def _task(job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(job)
    task.add_done_callback(_told)
    return task


def _told(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a task of the gate has ended; the rules go on", exc_info=error)
