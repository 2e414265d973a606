"""The HTTP API: routes only."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import HTMLResponse
from prometheus_client import CONTENT_TYPE_LATEST, ProcessCollector, generate_latest
from starlette.routing import Route

from data.live import otlp
from data.live.otlp_body import BodyError
from models.bundle import Bundle
from serving.admission.deciding import decide
from serving.admission.refusal import refusal
from serving.clock import Clock
from serving.forecast.bundles import Bundles
from serving.forecast.offered import US
from serving.gateways import nginx
from serving.gateways.envoy_authz import EnvoyAuthz
from serving.gateways.leases import Leases
from serving.http import api_page, control, policy, problems, signals, views
from serving.http.access import Access
from serving.http.key_ring import KeyRing
from serving.http.limits import Limits
from serving.http.messages import (
    AdmitRequest,
    AdmitResponse,
    CancelRequest,
    ForecastResponse,
    Instant,
    Name,
    Problem,
    ReadyResponse,
    Refusal,
    ReportResponse,
    SettleRequest,
    SettleResponse,
    TelemetryResponse,
)
from serving.http.request_ids import RequestIds
from serving.service import Service
from serving.settings import Settings
from serving.telemetry.pushes import SOURCE, NotStored, Skewed

DESCRIPTION = """Predictive admission control for LLM serving. Ask before a request goes to the engine, settle
when it has ended. The forecast can only tighten the rules; when it is unsure, late or broken, they decide."""

HOME = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Tidegate</title>
<h1>Tidegate</h1><p>Predictive admission control for LLM serving: closes the gate before the tide.</p><ul>
<li><a href="docs">The API</a> (<a href="openapi.json">OpenAPI</a>)
<li><a href="v1/forecast">What the forecaster sees now</a>
<li><a href="v1/report">How good its alarms were</a>
<li><a href="readyz">What decides: rules, or rules and forecast</a>
<li><a href="metrics">Metrics</a>, <a href="healthz">health</a></ul></html>"""

PROBLEMS = problems.documented(400, 401, 403, 408, 413, 422)
UNSTORED: dict[int | str, dict[str, Any]] = {
    status: {
        "description": f"{meaning} Send the same body again after Retry-After; nothing is counted twice.",
        "content": {problems.MEDIA_TYPE: {"schema": Problem.model_json_schema()}},
    }
    for status, meaning in ((503, "The lake can't be written now."), (507, "The lake has no room."))
}
SPANS_PROBLEMS = PROBLEMS | UNSTORED | problems.documented(415)
SPANS_BODY = {
    "requestBody": {
        "required": True,
        "description": "ExportTraceServiceRequest of OTLP/HTTP, plain or gzip.",
        "content": {"application/x-protobuf": {}, "application/json": {}},
    }
}
ADMIT_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": AdmitRequest.model_json_schema(),
                "example": {"prompt_tokens": 900, "tenant": "acme", "lane": "batch", "max_tokens": 300},
            }
        },
    }
}
TELEMETRY_BODY = {
    "requestBody": {
        "required": True,
        "description": "A JSON list of rows, or one row a line (NDJSON).",
        "content": {
            "application/json": {
                "example": [
                    {"queue_depth": 12, "queue_capacity": 256, "kv_cache_hit_rate": 0.4},
                    {"event": "arrived", "request_id": "a1", "prompt_tokens": 900, "tenant": "acme"},
                    {"event": "finished", "request_id": "a1", "output_tokens": 210, "outcome": "served"},
                    {
                        "event": "request",
                        "request_id": "a2",
                        "prompt_tokens": 350,
                        "at": "2026-01-31T12:00:00Z",
                        "finished_at": "2026-01-31T12:00:04Z",
                        "output_tokens": 120,
                        "outcome": "served",
                    },
                ]
            },
            "application/x-ndjson": {},
        },
    }
}


def unstored(error: NotStored) -> HTTPException:
    """The answer that makes a sender come back with the same rows."""
    return HTTPException(error.status, str(error), {"retry-after": str(error.retry_after_s)})


async def _left(http: Request) -> None:
    """Return when the client is gone; its body has been read."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


def create_app(bundle: Bundle, settings: Settings, clock: Clock) -> FastAPI:
    """The service as an ASGI app; it ticks from start-up to shutdown on ``clock``.

    Raises:
        InputError: when the guard's state on disk is damaged, or two scrape targets share a name.

    """
    service = Service(bundle, settings, clock)
    bundles = Bundles(service)
    leases = Leases(service)
    registry = service.metrics.registry
    ProcessCollector(registry=registry)  # memory, CPU and open files of the service
    ring = KeyRing(settings.keys, settings.key_file, clock, registry)

    @contextlib.asynccontextmanager
    async def ticking(_: FastAPI) -> AsyncIterator[None]:
        await service.remember()
        tasks = [asyncio.create_task(service.run()), asyncio.create_task(ring.watch())]
        tasks += [asyncio.create_task(leases.run()), asyncio.create_task(service.stalls.run())]
        if service.recording:
            tasks.append(asyncio.create_task(service.recording.run()))
        if settings.watch_bundle is not None:
            tasks.append(asyncio.create_task(bundles.watch(settings.watch_bundle)))
        if service.scraping:
            tasks.append(asyncio.create_task(service.scraping.run()))
        if service.sharing:
            tasks.append(asyncio.create_task(service.sharing.run()))
        try:
            async with contextlib.AsyncExitStack() as stack:
                if settings.ext_proc is not None:
                    from serving.gateways import envoy_proc  # gRPC is an extra

                    app.state.ext_proc_port = await stack.enter_async_context(
                        envoy_proc.running(service, *settings.ext_proc, ring)
                    )
                yield
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            await asyncio.to_thread(service.close)

    app = FastAPI(
        title="Tidegate",
        version="1",
        description=DESCRIPTION,
        lifespan=ticking,
        docs_url=None,  # FastAPI's pages load scripts from elsewhere
        redoc_url=None,
    )
    app.state.service = service
    problems.install(app)
    app.add_middleware(problems.BodyLimit, max_bytes=settings.max_body_bytes)
    app.add_middleware(EnvoyAuthz, service=service)  # outside the bound: a long body is no refusal there
    app.add_middleware(Access, ring=ring, clock=clock, registry=registry)
    app.add_middleware(
        Limits,
        max_url_bytes=settings.max_url_bytes,
        max_header_bytes=settings.max_header_bytes,
        max_requests=settings.max_requests,
        body_timeout_s=settings.body_timeout_s,
        registry=registry,
    )
    app.add_middleware(RequestIds)

    # Routes are tried in order: what is asked for with every request comes first.
    @app.post(
        "/v1/admit",
        response_model=AdmitResponse,
        responses=PROBLEMS | {429: {"model": Refusal, "description": "Refused, with advice when to retry."}},
        openapi_extra=ADMIT_BODY,
    )
    async def admit(http: Request) -> Response:
        """Ask to let a request in. A refusal is an OpenAI-style 429 that says when to come back.

        With max_wait_ms the answer may take so long: where there is no room yet, the request waits for its
        turn. A client that goes away meanwhile leaves nothing behind.
        """
        request = problems.read(AdmitRequest, await http.body(), http.headers.get("content-type", ""))
        decision = await decide(service, request, partial(_left, http))
        if decision is None:
            return Response(status_code=499)  # nobody reads it
        if decision.reservation_id is None:
            return refusal(decision, request.prompt_tokens)
        admitted = views.admitted(decision, settings.rules.lease_s)
        return Response(admitted.model_dump_json(), media_type="application/json")

    # FastAPI describes the route; its machinery has nothing to do there, and takes as long as the rest.
    app.router.routes.insert(0, Route("/v1/admit", admit, methods=["POST"], include_in_schema=False))

    @app.post("/v1/settle", responses=PROBLEMS)
    async def settle(request: SettleRequest) -> SettleResponse:
        """Say how an admitted request ended. Idempotent; an unknown reservation is not an error."""
        return SettleResponse(settled=service.settle(request))

    @app.post("/v1/cancel", responses=PROBLEMS)
    async def cancel(request: CancelRequest) -> SettleResponse:
        """Give back the tokens of an admitted request that never reached the engine; it costs nothing."""
        ended = SettleRequest(
            reservation_id=request.reservation_id, output_tokens=None, cached_tokens=None, outcome="shed"
        )
        return SettleResponse(settled=service.settle(ended))

    app.include_router(nginx.router(service, leases))
    app.include_router(control.router(bundles))
    app.include_router(signals.router(service))
    app.include_router(policy.router(service))

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def home() -> str:
        return HOME

    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(api_page.page(app.openapi()), headers=api_page.POLICY)

    @app.post("/v1/telemetry", responses=PROBLEMS | UNSTORED, openapi_extra=TELEMETRY_BODY)
    async def push(
        request: Request,
        source: Annotated[Name, Header(alias="x-tidegate-source", description="Who sends.")] = SOURCE,
        sent_at: Annotated[
            Instant | None,
            Header(
                alias="x-tidegate-sent-at",
                description="When it was sent, by the sender's clock: what that is off is corrected for.",
            ),
        ] = None,
    ) -> TelemetryResponse:
        """Push engine samples, and requests that were seen elsewhere; good rows count, bad ones are named.

        A request that is told twice counts once. With a lake, the answer comes when the rows are stored.
        What is told up to 60 s behind the last tick counts as if it had come in time; later it is refused.
        Only the end of a request that is known to have arrived still corrects the outcomes then.
        """
        try:
            return await service.pushes.push(await request.body(), source, sent_at)
        except NotStored as error:
            raise unstored(error) from error
        except Skewed as error:
            raise HTTPException(422, str(error)) from error
        except (ValueError, RecursionError) as error:
            raise HTTPException(400, f"The body is not a JSON list: {error}.") from error

    @app.post("/v1/traces", responses=SPANS_PROBLEMS, openapi_extra=SPANS_BODY, response_class=Response)
    async def spans(
        request: Request,
        content_type: Annotated[str, Header()] = "application/x-protobuf",
        content_encoding: Annotated[str | None, Header()] = None,
        source: Annotated[Name, Header(alias="x-tidegate-source", description="Who sends.")] = "otlp",
    ) -> Response:
        """Take GenAI spans from an OpenTelemetry exporter: each finished model call is a whole request."""
        now = datetime.fromtimestamp(clock.wall_us() / US, UTC)
        read = partial(otlp.parse, source=source, max_bytes=settings.max_body_bytes, now=now)
        try:
            intake = await asyncio.to_thread(read, await request.body(), content_type, content_encoding)
            taken = await service.pushes.take(intake, "POST /v1/traces")
        except BodyError as error:
            raise HTTPException(error.status, str(error)) from error
        except NotStored as error:
            raise unstored(error) from error
        return Response(otlp.answer(taken, content_type), media_type=content_type)

    @app.get("/v1/forecast")
    async def forecast() -> ForecastResponse:
        """What the last tick saw; unknown is null."""
        return service.forecast()

    @app.get("/v1/report")
    async def report() -> ReportResponse:
        """Live precision, recall, false alarms and lead time of the last day; null where nothing matured."""
        return service.report()

    @app.get("/healthz")
    async def healthz() -> dict[str, bool]:
        """The process lives."""
        return {"alive": True}

    @app.get("/readyz", responses=problems.documented(503))
    async def readyz() -> ReadyResponse:
        """Ready as soon as the rules can decide; says whether the forecast takes part. 503 before a stop."""
        if service.draining:
            away = {"x-should-retry": "true", "connection": "close"}
            raise HTTPException(503, "Tidegate is stopping; what was admitted can still be settled.", away)
        return service.ready()

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Prometheus text."""
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app
