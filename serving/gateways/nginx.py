"""Admission for nginx's auth_request: each subrequest is an admit, and a second one settles.

`GET /gateways/nginx/check` answers 200 to let a request in and 403 to refuse it: nginx makes a 500 of any
other status. nginx reads no body of ours, so a refusal stands whole in headers, and the configuration gives
it to the client: `x-tidegate-status` (429), `x-tidegate-body` (the JSON body), `retry-after` and the others
of a refusal by POST /v1/admit. When Tidegate itself fails, the request is let in, counted and logged.

Headers that are read, all of them set by the configuration and none by a client:

    x-original-uri, x-original-method        what is asked for; a request that calls no model is let through
    x-original-content-length, -content-type how long the body is: the subrequest has none
    x-tidegate-prompt-tokens                 from whoever tokenised; else a body of text is measured
    the tenant header of the settings        who pays
    x-tidegate-lane, -session, -model        as in POST /v1/admit
    x-llm-d-slo-ttft-ms, x-slo-ttft-ms       deadline_ms; the new name counts first
    x-request-id                             request_id

`GET /gateways/nginx/ended` frees what was reserved: it names `x-tidegate-reservation-id`, the answer's
`x-original-status`, and `x-original-completion`, which is OK where the client has got all of it. nginx counts
no tokens: the output stays unknown, unless the application has settled before.

https://nginx.org/en/docs/http/ngx_http_auth_request_module.html
"""

import json
import logging
from collections.abc import Mapping

from fastapi import APIRouter, Request, Response
from prometheus_client import Counter

from data.live.envoy_log import CALLS
from serving.controller.decision import Decision
from serving.controller.lanes import REFERENCE_PROMPT_TOKENS
from serving.gateways import openai_body
from serving.gateways.request_facts import LANES, PROMPT_TOKENS, RESERVATION, Size, deadline_ms, prompt_size
from serving.messages import AdmitRequest, Outcome, SettleRequest
from serving.refusal import refusal
from serving.service import Service

PREFIX = "/gateways/nginx"
LONGEST_TEXT_BYTES = 4 << 20
"""A longer body, about a million tokens, is no prompt of text: pictures, of a size that nothing tells."""

log = logging.getLogger("tidegate")


def router(service: Service) -> APIRouter:
    """Routes that answer nginx for ``service``; its registry gets the counters."""
    registry = service.metrics.registry
    checks = Counter(
        "tidegate_nginx_checks",
        "Checks of nginx: admitted, refused, passed (calls no model), or let in when we failed.",
        ["result"],
        registry=registry,
    )
    sizes = Counter(
        "tidegate_nginx_prompt_sizes", "Where prompt sizes came from.", ["source"], registry=registry
    )
    routes = APIRouter(prefix=PREFIX, include_in_schema=False)

    @routes.get("/check")
    async def check(request: Request) -> Response:
        try:
            result, response = await _answer(service, request.headers, sizes)
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


async def _answer(service: Service, headers: Mapping[str, str], sizes: Counter) -> tuple[str, Response]:
    path = headers.get("x-original-uri", CALLS[0]).partition("?")[0].rstrip("/")
    if headers.get("x-original-method", "POST") != "POST" or not path.endswith(CALLS):
        return "passed", Response()
    size = prompt_size_of(headers)
    sizes.labels(size.source).inc()
    request = AdmitRequest(
        prompt_tokens=size.prompt_tokens,
        tenant=openai_body.name(headers.get(service.settings.tenant_header)),
        lane=LANES.get(headers.get("x-tidegate-lane", "")),
        model=openai_body.name(headers.get("x-tidegate-model")),
        session=openai_body.name(headers.get("x-tidegate-session")),
        max_tokens=None,
        max_completion_tokens=None,
        n=1,
        deadline_ms=deadline_ms(headers),
        request_id=openai_body.name(headers.get("x-request-id")),
        log_type=None,
    )
    await service.make_room(request)
    with service.metrics.decision_s.time():
        decision = service.admit(request)
    if decision.reservation_id is None:
        return "refused", _refused(decision, size.prompt_tokens)
    told = {
        RESERVATION: decision.reservation_id,
        "x-tidegate-lane": decision.lane,
        "x-tidegate-tightening": f"{decision.tightening:.3f}",
        PROMPT_TOKENS: str(size.prompt_tokens),
    }
    return "admitted", Response(headers=told)


def _refused(decision: Decision, prompt_tokens: int) -> Response:
    answer = refusal(decision, prompt_tokens)
    headers = {name: answer.headers[name] for name in answer.headers if not name.startswith("content-")}
    # In one line of ASCII, as a header has to be.
    body = json.dumps(json.loads(bytes(answer.body)), separators=(",", ":"))
    return Response(
        status_code=403,
        headers=headers | {"x-tidegate-status": str(answer.status_code), "x-tidegate-body": body},
    )
