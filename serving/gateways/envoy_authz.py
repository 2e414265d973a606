"""Admission for Envoy's HTTP ext_authz filter: each check is an admit.

Envoy sends a request's method, path, some headers and perhaps the start of its body below
`/gateways/envoy`. A request that calls a model is decided on; any other is let through undecided. The
answer is 200 with headers for the engine, or a 429 that reaches the client as it is. Never 5xx: to Envoy
that is a failed check, not a refusal. When Tidegate itself fails, the request is let in, counted and
logged.

Headers that are read, all of them optional; Envoy has to list them in `allowed_headers` and to take those
that start with `x-tidegate-` away from clients:

    the tenant header of the settings        who pays; set by whoever authenticated the client
    x-tidegate-lane, -session, -model        as in POST /v1/admit; the model of a whole body counts first
    x-llm-d-slo-ttft-ms, x-slo-ttft-ms       deadline_ms; the new name counts first
    x-tidegate-prompt-tokens                 from whoever tokenised; else the body is measured
    x-tidegate-content-length                the client's content-length: the check has one of its own
    x-request-id                             request_id

https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_filters/ext_authz_filter
"""

import logging

from fastapi.responses import JSONResponse, Response
from prometheus_client import Counter
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from data.live.envoy_log import CALLS
from serving.controller.decision import Decision
from serving.gateways import openai_body
from serving.gateways.request_facts import (
    LANES,
    MAX_READ_BYTES,
    PROMPT_TOKENS,
    RESERVATION,
    deadline_ms,
    prompt_size,
)
from serving.messages import AdmitRequest, OpenAIError, Refusal
from serving.refusal import refusal
from serving.service import Service

PREFIX = "/gateways/envoy"

log = logging.getLogger("tidegate")


class EnvoyAuthz:
    """ASGI middleware that answers Envoy's checks and passes everything else on."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        """Answer for ``service``; its registry gets the counters."""
        self.app = app
        self.service = service
        self.tenant_header = service.settings.tenant_header
        registry = service.metrics.registry
        self.checks = Counter(
            "tidegate_envoy_checks",
            "Checks of Envoy: admitted, refused, passed (calls no model), faulty, or let in when we failed.",
            ["result"],
            registry=registry,
        )
        self.sizes = Counter(
            "tidegate_envoy_prompt_sizes", "Where prompt sizes came from.", ["source"], registry=registry
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a check; a request for another path goes on."""
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX + "/"):
            await self.app(scope, receive, send)
            return
        body = await _body(receive)
        if body is None:
            return  # Envoy hung up: nobody waits for an answer, so nothing may be reserved
        try:
            result, response = await self._answer(scope, *body)
        except Exception as error:
            # The gate may not fail a request: it goes in unreserved, and the log has the cause.
            log.error("Envoy's check failed; the request was let in", exc_info=error)
            result, response = "failed_open", _allow(None, None, None)
        self.checks.labels(result).inc()
        await response(scope, receive, send)

    async def _answer(self, scope: Scope, body: bytes, body_bytes: int) -> tuple[str, Response]:
        path = scope["path"].removeprefix(PREFIX).rstrip("/")
        headers = Headers(scope=scope)
        tenant = openai_body.name(headers.get(self.tenant_header))
        if scope["method"] != "POST" or not path.endswith(CALLS):
            return "passed", _allow(None, tenant, None)
        if tenant is None and headers.get(self.tenant_header):
            return "faulty", _faulty(f"The header {self.tenant_header} must be 1 to 256 characters.")
        whole = body_bytes == len(body) and headers.get("x-envoy-auth-partial-body") != "true"
        asked = openai_body.read(body) if whole and body else None
        size = prompt_size(headers, body, body_bytes, whole=whole, asked=asked)
        self.sizes.labels(size.source).inc()
        request = AdmitRequest(
            prompt_tokens=size.prompt_tokens,
            tenant=tenant,
            lane=LANES.get(headers.get("x-tidegate-lane", "")),
            model=(asked and asked.model) or openai_body.name(headers.get("x-tidegate-model")),
            session=openai_body.name(headers.get("x-tidegate-session")),
            max_tokens=asked and asked.max_tokens,
            max_completion_tokens=asked and asked.max_completion_tokens,
            n=asked.n if asked else 1,
            deadline_ms=deadline_ms(headers),
            request_id=openai_body.name(headers.get("x-request-id")),
            log_type=None,
        )
        await self.service.make_room(request)
        with self.service.metrics.decision_s.time():
            decision = self.service.admit(request)
        if decision.admitted:
            return "admitted", _allow(decision, tenant, size.prompt_tokens)
        return "refused", refusal(decision, size.prompt_tokens)


def _allow(decision: Decision | None, tenant: str | None, prompt_tokens: int | None) -> Response:
    """200, with every trusted header each time: one that is left out would leave a client's own in place."""
    known = {
        RESERVATION: decision and decision.reservation_id,
        "x-tidegate-tenant": tenant,
        "x-tidegate-lane": decision and decision.lane,
        "x-tidegate-tightening": f"{decision.tightening:.3f}" if decision else None,
        PROMPT_TOKENS: prompt_tokens,
    }
    return Response(headers={name: "" if value is None else str(value) for name, value in known.items()})


def _faulty(sentence: str) -> Response:
    error = OpenAIError(message=f"Tidegate: {sentence}", type="invalid_request_error", code="invalid_header")
    return JSONResponse(Refusal(error=error).model_dump(), 400, {"x-should-retry": "false"})


async def _body(receive: Receive) -> tuple[bytes, int] | None:
    """The start of the body and its length; None when the sender left before its end."""
    kept, length = bytearray(), 0
    while True:
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part = message.get("body", b"")
        length += len(part)
        kept += part[: MAX_READ_BYTES - len(kept)]
        if not message.get("more_body", False):
            return bytes(kept), length
