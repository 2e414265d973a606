"""The HTTP API: routes only."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from models.bundle import Bundle
from serving import problems, telemetry
from serving.clock import Clock
from serving.messages import (
    AdmitRequest,
    AdmitResponse,
    ForecastResponse,
    Problem,
    ReadyResponse,
    Refusal,
    ReportResponse,
    SettleRequest,
    SettleResponse,
    TelemetryResponse,
)
from serving.refusal import refusal
from serving.service import Service
from serving.settings import Settings

DESCRIPTION = """Predictive admission control for LLM serving. Ask before a request goes to the engine, settle
when it has ended. The forecast can only tighten the rules; when it is unsure, late or broken, they decide."""

HOME = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Tidegate</title>
<h1>Tidegate</h1><p>Predictive admission control for LLM serving: closes the gate before the tide.</p><ul>
<li><a href="docs">API, to read and to try</a> (<a href="openapi.json">OpenAPI</a>)
<li><a href="v1/forecast">What the forecaster sees now</a>
<li><a href="v1/report">How good its alarms were</a>
<li><a href="readyz">What decides: rules, or rules and forecast</a>
<li><a href="metrics">Metrics</a>, <a href="healthz">health</a></ul></html>"""

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": meaning,
        "content": {problems.MEDIA_TYPE: {"schema": Problem.model_json_schema()}},
    }
    for status, meaning in ((413, "The body is too long."), (422, "The request is not valid."))
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
                ]
            },
            "application/x-ndjson": {},
        },
    }
}


def create_app(bundle: Bundle, settings: Settings, clock: Clock) -> FastAPI:
    """The service as an ASGI app; it ticks from start-up to shutdown on ``clock``.

    Raises:
        InputError: when the guard's state on disk is damaged.

    """
    service = Service(bundle, settings, clock)

    @contextlib.asynccontextmanager
    async def ticking(_: FastAPI) -> AsyncIterator[None]:
        ticks = asyncio.create_task(service.run())
        try:
            yield
        finally:
            ticks.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ticks
            service.close()

    app = FastAPI(title="Tidegate", version="1", description=DESCRIPTION, lifespan=ticking, docs_url="/docs")
    app.state.service = service
    problems.install(app)
    app.add_middleware(problems.BodyLimit, max_bytes=settings.max_body_bytes)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def home() -> str:
        return HOME

    @app.post(
        "/v1/admit",
        response_model=AdmitResponse,
        responses=PROBLEMS | {429: {"model": Refusal, "description": "Refused, with advice when to retry."}},
    )
    async def admit(request: AdmitRequest) -> AdmitResponse | JSONResponse:
        """Ask to let a request in. A refusal is an OpenAI-style 429 that says when to come back."""
        with service.metrics.decision_s.time():
            decision = service.admit(request)
        if decision.reservation_id is None:
            return refusal(decision)
        return AdmitResponse(
            reservation_id=decision.reservation_id,
            lane=decision.lane,
            expected_output_tokens=decision.expected_output_tokens,
            tightening=decision.tightening,
            backpressure=decision.backpressure,
            lease_s=settings.rules.lease_s,
        )

    @app.post("/v1/settle", responses=PROBLEMS)
    async def settle(request: SettleRequest) -> SettleResponse:
        """Say how an admitted request ended. Idempotent; an unknown reservation is not an error."""
        return SettleResponse(settled=service.settle(request))

    @app.post("/v1/telemetry", responses=PROBLEMS, openapi_extra=TELEMETRY_BODY)
    async def push(request: Request) -> TelemetryResponse:
        """Push engine samples, and requests that were seen elsewhere; good rows count, bad ones are named."""
        body = await request.body()
        try:
            rows = telemetry.rows(body)
        except (ValueError, RecursionError) as error:
            raise HTTPException(400, f"The body is not a JSON list: {error}.") from error
        return await service.push(rows)

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

    @app.get("/readyz")
    async def readyz() -> ReadyResponse:
        """Ready as soon as the rules can decide; says whether the forecast takes part."""
        return service.ready()

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Prometheus text."""
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app
