"""Admission for nginx's auth_request: each subrequest is an admit, and a second one settles.

`GET /gateways/nginx/check` answers 200 to let a request in and 403 to refuse it: nginx makes a 500 of any
other status. nginx reads no body of ours, so a refusal stands whole in headers, and the configuration gives
it to the client: `x-tidegate-status` (429), `x-tidegate-body` (the JSON body), `retry-after` and the others
of a refusal by POST /v1/admit. When Tidegate itself fails, the request is let in, counted and logged.

Headers that are read stand in `serving.gateways.request_facts`, all of them set by the configuration, and:

    x-original-uri, x-original-method        what is asked for; a request that calls no model is let through
    x-original-content-length, -content-type how long the body is: the subrequest has none
    x-tidegate-hold-s                        how long an answer may take: see below

Headers that are answered stand in `serving.gateways.engine_headers`; nginx hands them on by
`auth_request_set`. With `x-tidegate-max-wait-ms` a request for which there is no room yet waits for its turn,
and one whose client leaves meanwhile is forgotten; nginx's `proxy_read_timeout` must be longer.

`GET /gateways/nginx/ended` frees what was reserved: it names `x-tidegate-reservation-id`, the answer's
`x-original-status`, and `x-original-completion`, which is OK where the client has got all of it. nginx counts
no tokens: the output stays unknown, unless the application has settled before. Until that call nothing says
that an answer still runs. With `x-tidegate-hold-s` its lease is renewed here for so long: answers may take
longer than a lease, and what an nginx that was killed never ended is freed after that time. Without the
header the lease alone holds, as is right where nothing calls `ended`.

https://nginx.org/en/docs/http/ngx_http_auth_request_module.html
"""

import json
import logging
from collections.abc import Mapping
from functools import partial

from fastapi import APIRouter, Request, Response
from prometheus_client import Counter, Gauge

from data.live.envoy_log import CALLS
from serving.admission.deciding import decide
from serving.admission.refusal import refusal
from serving.controller.decision import Decision
from serving.controller.lanes import REFERENCE_PROMPT_TOKENS
from serving.gateways import openai_body
from serving.gateways.engine_headers import engine_headers
from serving.gateways.leases import Leases
from serving.gateways.request_facts import (
    PROMPT_TOKENS,
    RESERVATION,
    SOURCES,
    Size,
    admit_request,
    over_zero,
    prompt_size,
)
from serving.http.messages import Outcome, SettleRequest
from serving.metrics import counter
from serving.service import Service

PREFIX = "/gateways/nginx"
HOLD_S = "x-tidegate-hold-s"
LONGEST_TEXT_BYTES = 4 << 20
"""A longer body, about a million tokens, is no prompt of text: pictures, of a size that nothing tells."""

log = logging.getLogger("tidegate")


def router(service: Service, leases: Leases) -> APIRouter:
    """Routes that answer nginx for ``service``; its registry gets the counters, ``leases`` what is held."""
    registry = service.metrics.registry
    checks = counter(
        registry,
        "tidegate_nginx_checks",
        "Checks of nginx: admitted, refused, left (hung up while it waited), passed (calls no model), "
        "or let in when we failed.",
        result=("admitted", "refused", "left", "passed", "failed_open"),
    )
    held = Gauge(
        "tidegate_nginx_held", "Reservations that are renewed until nginx ends them.", registry=registry
    )
    held.set_function(leases.__len__)
    sizes = counter(registry, "tidegate_nginx_prompt_sizes", "Where prompt sizes came from.", source=SOURCES)
    routes = APIRouter(prefix=PREFIX, include_in_schema=False)

    @routes.get("/check")
    async def check(request: Request) -> Response:
        try:
            result, response = await _answer(service, leases, request, sizes)
        except Exception as error:
            # The gate may not fail a request: it goes in unreserved, and the log has the cause.
            log.error("nginx's check failed; the request was let in", exc_info=error)
            result, response = "failed_open", Response()
        checks.labels(result).inc()
        return response

    @routes.get("/ended")
    async def ended(request: Request) -> Response:
        reservation_id = openai_body.name(request.headers.get(RESERVATION))
        if reservation_id is not None:
            leases.ended(reservation_id)
            told = request.headers.get
            how = outcome(told("x-original-status", ""), told("x-original-completion", ""))
            service.settle(
                SettleRequest(
                    reservation_id=reservation_id, outcome=how, output_tokens=None, cached_tokens=None
                )
            )
        return Response()

    return routes


def prompt_size_of(headers: Mapping[str, str]) -> Size:
    """Tokens of a prompt of which only the body's length is known.

    >>> prompt_size_of({"x-original-content-length": "4000", "x-original-content-type": "application/json"})
    Size(prompt_tokens=1000, source='bytes')
    >>> prompt_size_of({"x-original-content-length": "4000", "x-tidegate-prompt-tokens": "750"})
    Size(prompt_tokens=750, source='header')
    >>> prompt_size_of({})  # sent in chunks, of no length told before
    Size(prompt_tokens=1024, source='unknown')
    """
    told = {PROMPT_TOKENS: headers[PROMPT_TOKENS]} if PROMPT_TOKENS in headers else {}
    if not headers.get("x-original-content-type", "").lower().startswith("multipart/"):
        told["x-tidegate-content-length"] = headers.get("x-original-content-length", "")
    size = prompt_size(told, b"", 0, whole=False, asked=None)
    if size.source == "bytes" and size.prompt_tokens > openai_body.estimated_tokens(LONGEST_TEXT_BYTES):
        return Size(REFERENCE_PROMPT_TOKENS, "unknown")
    return size


def outcome(status: str, completion: str) -> Outcome:
    """How a request ended, by nginx's $status and $request_completion; 429 and 529 are the engine's refusals.

    >>> outcome("200", "OK"), outcome("200", ""), outcome("429", "OK"), outcome("502", "OK")
    ('served', 'aborted', 'shed', 'failed')
    """
    if completion != "OK":
        return "aborted"
    if status in ("429", "529"):
        return "shed"
    return "served" if status.startswith("2") else "failed"


async def _answer(service: Service, leases: Leases, http: Request, sizes: Counter) -> tuple[str, Response]:
    headers = http.headers
    path = headers.get("x-original-uri", CALLS[0]).partition("?")[0].rstrip("/")
    if headers.get("x-original-method", "POST") != "POST" or not path.endswith(CALLS):
        return "passed", Response()
    size = prompt_size_of(headers)
    sizes.labels(size.source).inc()
    request = admit_request(headers, service.settings.tenant_header, size)
    decision = await decide(service, request, partial(_left, http))
    if decision is None:
        return "left", Response(status_code=499)  # nobody reads it
    if decision.reservation_id is None:
        return "refused", _refused(decision, size.prompt_tokens)
    if (hold_s := over_zero(headers.get(HOLD_S))) is not None:
        leases.hold(decision.reservation_id, hold_s)
    told = engine_headers(decision, request.tenant, size.prompt_tokens)
    return "admitted", Response(headers={name: value for name, value in told.items() if value is not None})


async def _left(http: Request) -> None:
    """Return when nginx has hung up, as it does when its client has."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _refused(decision: Decision, prompt_tokens: int) -> Response:
    answer = refusal(decision, prompt_tokens)
    headers = {name: answer.headers[name] for name in answer.headers if not name.startswith("content-")}
    # In one line of ASCII, as a header has to be.
    body = json.dumps(json.loads(bytes(answer.body)), separators=(",", ":"))
    return Response(
        status_code=403,
        headers=headers | {"x-tidegate-status": str(answer.status_code), "x-tidegate-body": body},
    )
