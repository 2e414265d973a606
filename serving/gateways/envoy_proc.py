"""Settlement for Envoy's ext_proc filter: what an answer used frees the reservation that its check made.

Envoy opens one gRPC stream for each request and shows it the headers and the answer's chunks. The
reservation is named by the request header that the admission check set. When the answer has ended it is
settled with the usage that it told; when the stream ends before it, the client or the engine has gone: it
is settled as aborted, with what was seen. As long as Envoy holds the stream, the reservation is renewed,
however long the answer takes.

Nothing here changes a request: in `observability_mode` nobody waits for answers, otherwise each step gets
an empty one. Of the engine's answer only the counts are kept.

Where the service has keys, a stream must bring one of the scope `admit` in its metadata, as `authorization:
Bearer KEY` or `x-tidegate-key: KEY`; Envoy sets it by `initial_metadata` of its `grpc_service`. Without, it
ends with UNAUTHENTICATED and settles nothing.

https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_filters/ext_proc_filter
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, NamedTuple

import grpc
from grpc.aio import ServicerContext
from prometheus_client import Gauge

from data.errors import InputError
from serving.gateways.ext_proc_messages import SERVICE, ProcessingRequest, ProcessingResponse
from serving.gateways.request_facts import RESERVATION
from serving.gateways.usage import UsageReader
from serving.http import keys
from serving.http.access import DENIALS, KEY_HEADER
from serving.http.key_ring import KeyRing
from serving.http.messages import NAME_LENGTH, Outcome, SettleRequest
from serving.metrics import counter
from serving.service import Service
from serving.telemetry.recording import Rarely

DROPPED = "x-llm-d-request-dropped-reason"
FAILED_OPEN = "x-envoy-auth-failure-mode-allowed"
RENEWALS_PER_LEASE = 3
SCOPE: keys.Scope = "admit"
"""Whoever may admit may settle, as in POST /v1/settle."""
OPTIONS = (
    ("grpc.so_reuseport", 0),  # a port in use must be an error, not a share of its connections
    # An Envoy that vanished without a word must not keep its reservations for ever.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)

log = logging.getLogger("tidegate")


class Settlement(NamedTuple):
    """What to settle, and whether its output was counted from events, not told."""

    request: SettleRequest
    estimated: bool


class Exchange:
    """One request and its answer, as Envoy tells them step by step."""

    def __init__(self) -> None:
        self.reservation_id: str | None = None
        self.unchecked = False  # Envoy let it in since the check had failed
        self.ended = False
        self._status = ""
        self._dropped = False
        self._reader: UsageReader | None = None

    def take(self, step: Any) -> None:
        """Learn from one ProcessingRequest."""
        kind = step.WhichOneof("step")
        if kind == "request_headers":
            headers = _headers(step.request_headers.headers.headers, (RESERVATION, FAILED_OPEN))
            self.reservation_id = headers.get(RESERVATION) or None
            self.unchecked = headers.get(FAILED_OPEN) == "true"
        elif kind == "response_headers":
            wanted = (":status", "content-type", "content-encoding", DROPPED)
            headers = _headers(step.response_headers.headers.headers, wanted)
            self._status, self._dropped = headers.get(":status", ""), bool(headers.get(DROPPED))
            self._reader = UsageReader(headers.get("content-type", ""), headers.get("content-encoding", ""))
            self.ended = step.response_headers.end_of_stream
        elif kind == "response_body":
            if self._reader is not None:
                self._reader.feed(step.response_body.body)
            self.ended = self.ended or step.response_body.end_of_stream
        elif kind == "response_trailers":
            self.ended = True

    def settlement(self) -> Settlement | None:
        """How it ended; None without a reservation."""
        if self.reservation_id is None or len(self.reservation_id) > NAME_LENGTH:
            return None
        usage = None if self._reader is None else self._reader.usage(ended=self.ended)
        request = SettleRequest(
            reservation_id=self.reservation_id,
            output_tokens=usage and usage.output_tokens,
            cached_tokens=usage and usage.cached_tokens,
            outcome=self._outcome(),
            estimated=usage is not None and usage.estimated,
        )
        return Settlement(request, usage is not None and usage.estimated)

    def _outcome(self) -> Outcome:
        if not self.ended:
            return "aborted"
        if self._status.startswith("2"):
            return "served"
        return "shed" if self._dropped or self._status in ("429", "529") else "failed"


class ExternalProcessor:
    """The gRPC service; `serving` runs it."""

    def __init__(self, service: Service, ring: KeyRing | None = None) -> None:
        """Settle with ``service``, whose registry gets the counters, for those who have a key of the ring."""
        self._service = service
        self._ring = ring
        self._complaints = Rarely("ext_proc stream denied", service.clock)
        self.denied = counter(
            service.metrics.registry,
            "tidegate_envoy_denied",
            "Streams of Envoy without a key, with an unknown one, or with one that is not for this.",
            reason=DENIALS,
        )
        self._open: set[Exchange] = set()
        self.settlements = counter(
            service.metrics.registry,
            "tidegate_envoy_settlements",
            "Answers that Envoy showed: told (their usage, or that it is unknown), estimated, unreserved, "
            "unchecked (let in by Envoy since the check had failed), or late (the lease was over).",
            result=("told", "estimated", "unreserved", "unchecked", "late"),
        )
        watched = Gauge(
            "tidegate_envoy_watched",
            "Reservations of streams that Envoy holds.",
            registry=service.metrics.registry,
        )
        watched.set_function(lambda: sum(exchange.reservation_id is not None for exchange in self._open))

    async def process(self, steps: AsyncIterator[Any], context: ServicerContext) -> AsyncIterator[Any]:
        """Serve one stream: a request and its answer."""
        if self._ring is not None and self._ring.keys:
            await self._authorise(self._ring.keys, context)
        exchange = Exchange()
        self._open.add(exchange)
        try:
            async for step in steps:
                exchange.take(step)
                if exchange.ended:  # Envoy may hold the stream for seconds more
                    self._settle(exchange)
                if not step.observability_mode:
                    yield ProcessingResponse(**{step.WhichOneof("step"): {}})
        finally:  # also when Envoy resets the stream: client or engine has gone
            self._settle(exchange)

    async def _authorise(self, accepted: Sequence[keys.Key], context: ServicerContext) -> None:
        """End a stream that brings no key, an unknown one, or one that is not for this."""
        told = {name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)}
        scheme, _, bearer = told.get("authorization", "").partition(" ")
        presented = told.get(KEY_HEADER, bearer.strip() if scheme.lower() == "bearer" else "")
        key = keys.owner_of(accepted, presented)
        if key is not None and SCOPE in key.scopes:
            return
        if key is not None:
            status, reason = grpc.StatusCode.PERMISSION_DENIED, "scope"
        else:
            status, reason = grpc.StatusCode.UNAUTHENTICATED, "unknown" if presented else "missing"
        self.denied.labels(reason).inc()
        whose = f", key of {key.name}" if key else ""
        self._complaints.log(PermissionError(f"{reason}: {SCOPE} was needed{whose}"))
        await context.abort(status, f"The metadata must have a key of the scope {SCOPE}.")

    def renew(self) -> None:
        """Start the leases of all requests that Envoy still holds anew."""
        for exchange in self._open:
            if exchange.reservation_id is not None:
                self._service.renew(exchange.reservation_id)

    def forget(self) -> None:
        """Leave all open requests unsettled: the service stops, they go on."""
        self._open.clear()

    def _settle(self, exchange: Exchange) -> None:
        if exchange not in self._open:
            return
        self._open.remove(exchange)
        settlement = exchange.settlement()
        if settlement is None:
            result = "unchecked" if exchange.unchecked else "unreserved"
        elif not self._service.settle(settlement.request):
            result = "late"
        else:
            result = "estimated" if settlement.estimated else "told"
        self.settlements.labels(result).inc()


@contextlib.asynccontextmanager
async def running(service: Service, host: str, port: int, ring: KeyRing | None = None) -> AsyncIterator[int]:
    """Serve ext_proc on the running event loop; yields the port, a free one for port 0.

    Args:
        service: settles.
        host: address to listen on.
        port: to listen on.
        ring: keys that streams must bring one of; without any, everyone may stream.

    Raises:
        InputError: when the address can't be listened on.

    """
    processor = ExternalProcessor(service, ring)
    handler = grpc.stream_stream_rpc_method_handler(
        processor.process,
        request_deserializer=ProcessingRequest.FromString,
        response_serializer=ProcessingResponse.SerializeToString,
    )
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Process": handler}),))
    try:
        bound = server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except RuntimeError as error:
        raise InputError(
            f"Address {host}:{port} can't be listened on; choose another with --host and --ext-proc-port."
        ) from error
    await server.start()
    renewing = asyncio.create_task(_renew(processor, service))
    log.info("ext_proc listening", extra={"fields": {"host": host, "port": bound}})
    try:
        yield bound
    finally:
        processor.forget()
        renewing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await renewing
        await server.stop(None)


async def _renew(processor: ExternalProcessor, service: Service) -> None:
    while True:
        await service.clock.sleep(service.settings.rules.lease_s / RENEWALS_PER_LEASE)
        processor.renew()


def _headers(values: Iterable[Any], wanted: Sequence[str]) -> dict[str, str]:
    """The wanted headers of a HeaderMap; Envoy writes values as bytes, older releases as text."""
    return {
        header.key: header.raw_value.decode("latin-1") or header.value
        for header in values
        if header.key in wanted
    }
