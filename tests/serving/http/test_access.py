import asyncio
import logging

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from serving.clock import ManualClock
from serving.http.access import Access, needed
from serving.http.key_ring import KeyRing
from serving.http.keys import parse

EDGE, OPS, DASH = "e" * 40, "o" * 40, "d" * 40
KEYS = parse(f"edge admit,telemetry {EDGE}\nops control {OPS}\ndash read {DASH}", "keys")


async def anything(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("in")(scope, receive, send)


def call(method: str, path: str, headers: dict[str, str], keys: list = KEYS) -> httpx.Response:
    clock, registry = ManualClock(), CollectorRegistry()
    app = Access(anything, KeyRing(tuple(keys), None, clock, registry), clock, registry)

    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(send())


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    ("method", "path", "key"),
    [
        ("POST", "/v1/admit", EDGE),
        ("POST", "/v1/settle", EDGE),
        ("POST", "/v1/telemetry", EDGE),
        ("POST", "/v1/traces", EDGE),
        ("POST", "/v1/bundle", OPS),
        ("GET", "/metrics", DASH),
        ("GET", "/v1/report", DASH),
        ("GET", "/openapi.json", DASH),
    ],
)
def test_each_endpoint_takes_the_key_of_its_scope_and_no_other(method: str, path: str, key: str) -> None:
    assert call(method, path, bearer(key)).status_code == 200
    assert call(method, path, {"x-tidegate-key": key}).status_code == 200
    for other in {EDGE, OPS, DASH} - {key}:
        answer = call(method, path, bearer(other))
        assert answer.status_code == 403
        assert answer.headers["content-type"] == "application/problem+json"
    for headers in ({}, bearer("x" * 40), {"authorization": key}, {"authorization": f"Basic {key}"}):
        answer = call(method, path, headers)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")


def test_a_gateway_check_counts_only_the_key_that_the_gateway_sets() -> None:
    """Gateways pass the authorization header of their clients on."""
    path = "/gateways/envoy/v1/chat/completions"
    assert call("POST", path, {"x-tidegate-key": EDGE, **bearer("sk-of-the-client")}).status_code == 200
    assert call("POST", path, bearer(EDGE)).status_code == 503


def test_a_gateway_with_a_wrong_key_is_told_that_its_check_failed_not_that_its_client_is_refused() -> None:
    for path in ("/gateways/envoy/v1/chat/completions", "/gateways/nginx/check"):
        for headers in ({}, {"x-tidegate-key": "x" * 40}, {"x-tidegate-key": OPS}):
            answer = call("POST", path, headers)
            assert (answer.status_code, "www-authenticate" in answer.headers) == (503, False)


def test_probes_need_no_key_and_what_is_unknown_needs_one() -> None:
    assert call("GET", "/healthz", {}).status_code == call("GET", "/readyz", {}).status_code == 200
    assert call("GET", "/nothing", {}).status_code == 401
    assert call("POST", "/healthz/more", {}).status_code == 401
    assert needed("DELETE", "/later") == ("control",)


@pytest.mark.parametrize("path", ["/v1/policy", "/v1/policy/stream"])
def test_a_gateway_that_enforces_the_policy_by_itself_reads_it_with_its_own_key(path: str) -> None:
    assert call("GET", path, bearer(EDGE)).status_code == call("GET", path, bearer(DASH)).status_code == 200
    answer = call("GET", path, bearer(OPS))
    assert (answer.status_code, "read or admit" in answer.json()["detail"]) == (403, True)


def test_without_keys_everything_is_open() -> None:
    assert call("POST", "/v1/bundle", {}, []).status_code == 200


def test_no_key_known_or_not_is_logged_or_answered(caplog: pytest.LogCaptureFixture) -> None:
    unknown = "guess-" + "g" * 40
    with caplog.at_level(logging.DEBUG):
        answers = [call("POST", "/v1/bundle", bearer(key)).text for key in (EDGE, unknown)]
    told = " ".join([*answers, *(str(record.__dict__) for record in caplog.records)])
    assert "key of edge" in told
    assert not any(key in told for key in (EDGE, OPS, DASH, unknown))
