"""Admission for Envoy's HTTP ext_authz filter: each check is an admit.

Envoy sends a request's method, path, some headers and perhaps the start of its body below
`/gateways/envoy`. A request that calls a model is decided on; any other is let through undecided. The
answer is 200 with headers for the engine, or a 429 that reaches the client as it is. Never 5xx: to Envoy
that is a failed check, not a refusal. When Tidegate itself fails, the request is let in, counted and
logged.

Headers that are read stand in `serving.gateways.request_facts`; Envoy has to list them in `allowed_headers`
and to take those that start with `x-tidegate-` away from clients, all but session and continuation. One is
Envoy's own: `x-tidegate-content-length`, the client's content-length, since the check has one of its own.
Headers that are answered stand in `serving.gateways.engine_headers`: each is sent every time, empty if need
be, so that it replaces a client's own. The continuation alone is sent only where there is one, since it goes
on to the client; else Envoy is told to remove the client's.

With `x-tidegate-max-wait-ms` a request for which there is no room yet waits for its turn. The timeout of the
check must be longer: an Envoy that gives up lets the request in. One that hangs up while a request waits, or
whose client does, leaves nothing reserved.

https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_filters/ext_authz_filter
"""

import logging
from functools import partial

from fastapi.responses import JSONResponse, Response
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from data.live.envoy_log import CALLS
from serving.admission.deciding import decide
from serving.admission.refusal import refusal
from serving.gateways import openai_body
from serving.gateways.engine_headers import engine_headers
from serving.gateways.request_facts import CONTINUATION, MAX_READ_BYTES, SOURCES, admit_request, prompt_size
from serving.http.messages import OpenAIError, Refusal
from serving.metrics import counter
from serving.service import Service

PREFIX = "/gateways/envoy"
REMOVE = "x-envoy-auth-headers-to-remove"
"""Envoy takes the headers named here away from the request."""

log = logging.getLogger("tidegate")


class EnvoyAuthz:
    """ASGI middleware that answers Envoy's checks and passes everything else on."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        """Answer for ``service``; its registry gets the counters."""
        self.app = app
        self.service = service
        self.tenant_header = service.settings.tenant_header
        registry = service.metrics.registry
        self.checks = counter(
            registry,
            "tidegate_envoy_checks",
            "Checks of Envoy: admitted, refused, left (hung up while it waited), passed (calls no model), "
            "faulty, or let in when we failed.",
            result=("admitted", "refused", "left", "passed", "faulty", "failed_open"),
        )
        self.sizes = counter(
            registry, "tidegate_envoy_prompt_sizes", "Where prompt sizes came from.", source=SOURCES
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
            result, response = await self._answer(scope, receive, *body)
        except Exception as error:
            # The gate may not fail a request: it goes in unreserved, and the log has the cause.
            log.error("Envoy's check failed; the request was let in", exc_info=error)
            result, response = "failed_open", _allow(engine_headers(None, None, None))
        self.checks.labels(result).inc()
        await response(scope, receive, send)

    async def _answer(
        self, scope: Scope, receive: Receive, body: bytes, body_bytes: int
    ) -> tuple[str, Response]:
        path = scope["path"].removeprefix(PREFIX).rstrip("/")
        headers = Headers(scope=scope)
        tenant = openai_body.name(headers.get(self.tenant_header))
        if scope["method"] != "POST" or not path.endswith(CALLS):
            return "passed", _allow(engine_headers(None, tenant, None))
        if tenant is None and headers.get(self.tenant_header):
            return "faulty", _faulty(f"The header {self.tenant_header} must be 1 to 256 characters.")
        whole = body_bytes == len(body) and headers.get("x-envoy-auth-partial-body") != "true"
        asked = openai_body.read(body) if whole and body else None
        size = prompt_size(headers, body, body_bytes, whole=whole, asked=asked)
        self.sizes.labels(size.source).inc()
        request = admit_request(headers, self.tenant_header, size, asked)
        decision = await decide(self.service, request, partial(_left, receive))
        if decision is None:
            return "left", Response(status_code=499)  # nobody reads it
        if decision.admitted:
            return "admitted", _allow(engine_headers(decision, tenant, size.prompt_tokens))
        return "refused", refusal(decision, size.prompt_tokens)


def _allow(told: dict[str, str | None]) -> Response:
    """200, with every trusted header each time: one that is left out would leave a client's own in place."""
    headers = {name: value or "" for name, value in told.items()}
    if not headers[CONTINUATION]:
        del headers[CONTINUATION]
        headers[REMOVE] = CONTINUATION
    return Response(headers=headers)


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


async def _left(receive: Receive) -> None:
    """Return when Envoy has hung up; the body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
