"""Whatever is sent to any endpoint, the answer is none of 5xx, and what the OpenAPI description promises."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis.generation import GenerationMode

from models.bundle import Bundle
from serving.app import create_app
from serving.clock import SystemClock
from serving.controller.rules import Rules
from serving.settings import Settings

FEW = settings(
    max_examples=8,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
CHECKS = [
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_schema_conformance,
]
WRITES = ["/v1/admit", "/v1/settle", "/v1/cancel", "/v1/telemetry", "/v1/traces", "/v1/bundle"]
ENDLESS = "/v1/policy/stream"
"""Takes nothing and answers until its client goes."""


@pytest.fixture(scope="module")
def app(bundle_folder: Callable[[float | None], Path]):
    # Room for all: a request that may wait for its turn would hold the test up.
    roomy = Settings(rules=Rules(capacity_tokens=10**13))
    return create_app(Bundle.load(bundle_folder(None)), roomy, SystemClock())


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_what_the_description_allows_and_what_not_gets_a_described_answer(app, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    called = set()
    for found in schema.get_all_operations():
        operation = found.ok()
        called.add(operation.path)
        if operation.path == ENDLESS:
            continue

        @seed(1)
        @FEW
        @given(case=operation.as_strategy(generation_mode=mode))
        def answered(case: schemathesis.Case) -> None:
            answer = case.call_and_validate(checks=CHECKS)
            # The scaling signals say 503 by contract where nothing is known, so that no number is taken.
            assert answer.status_code < 500 or (
                case.path.startswith("/v1/signals") and answer.status_code == 503
            )

        try:
            answered()
        except Unsatisfiable:  # nothing can be wrong with a call that takes nothing
            assert mode is GenerationMode.NEGATIVE
    assert called >= {*WRITES, "/v1/forecast", "/v1/report", "/v1/policy", "/readyz", "/healthz", "/metrics"}


@pytest.mark.parametrize("path", WRITES)
@seed(2)
@FEW
@given(
    body=st.binary(max_size=300)
    | st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass"))
    | st.sampled_from(
        [b"[" * 5_000, b'{"a":' * 5_000, b"\x1f\x8b\x08\x00", b"[1e999]", b"[NaN]", b'"\\ud800"']
    ),
    kind=st.sampled_from(
        ["application/json", "application/x-ndjson", "application/x-protobuf", "text/html", ""]
    ),
    encoding=st.sampled_from(["", "gzip", "br"]),
)
def test_any_bytes_get_an_answer_that_is_no_server_error(
    app, path: str, body: bytes, kind: str, encoding: str
) -> None:
    headers = {"content-type": kind, "content-encoding": encoding}
    sent = {name: value for name, value in headers.items() if value}

    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await asyncio.wait_for(client.post(path, content=body, headers=sent), 10)

    answer = asyncio.run(send())
    assert answer.status_code < 500
    if answer.status_code >= 400 and answer.status_code != 429:
        assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "path", ["/gateways/nginx/check", "/gateways/nginx/ended", "/gateways/envoy/v1/completions"]
)
@seed(3)
@FEW
@given(
    headers=st.dictionaries(
        st.sampled_from(
            [
                "x-tidegate-tenant",
                "x-tidegate-prompt-tokens",
                "x-tidegate-lane",
                "x-slo-ttft-ms",
                "x-original-uri",
                "x-original-method",
                "x-original-content-length",
                "x-original-content-type",
                "x-request-id",
                "x-tidegate-reservation-id",
                "x-tidegate-content-length",
            ]
        ),
        st.binary(max_size=40)
        | st.sampled_from([b"-1", b"1e400", b"9" * 30, b"NaN", b"POST", b"/v1/completions"]),
    ),
    body=st.binary(max_size=100),
)
def test_gateways_get_no_server_error_for_any_header(app, path: str, headers: dict, body: bytes) -> None:
    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            method = "GET" if "nginx" in path else "POST"
            return await client.request(method, path, headers=list(headers.items()), content=body)

    assert asyncio.run(send()).status_code < 500
    failed_open = app.state.service.metrics.registry.get_sample_value
    for gateway in ("nginx", "envoy"):
        assert not failed_open(f"tidegate_{gateway}_checks_total", {"result": "failed_open"})
