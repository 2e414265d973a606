import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message

from models.bundle import Bundle
from serving.app import create_app
from serving.clock import ManualClock
from serving.controller.rules import Rules
from serving.gateways.request_facts import MAX_READ_BYTES, deadline_ms
from serving.http.messages import MAX_TOKENS, AdmitRequest
from serving.settings import Settings

TRUSTED = {
    "x-tidegate-reservation-id",
    "x-tidegate-tenant",
    "x-tidegate-lane",
    "x-tidegate-tightening",
    "x-tidegate-prompt-tokens",
}


class Gate:
    """Sends checks to the app in process, and notes what was asked."""

    def __init__(self, bundle: Bundle, **settings: Any) -> None:
        rules = Rules(capacity_tokens=100_000)
        self.app = create_app(bundle, Settings(rules=rules, **settings), ManualClock(1_700_000_000_000_000))
        self.service = self.app.state.service
        self.asked: list[AdmitRequest] = []
        admit = self.service.admit

        def noted(request: AdmitRequest) -> Any:
            self.asked.append(request)
            return admit(request)

        self.service.admit = noted

    def check(
        self,
        *parts: bytes | None,
        path: str = "/v1/chat/completions",
        method: str = "POST",
        **headers: str,
    ) -> tuple[int, dict[str, str], bytes] | None:
        """Status, headers and body; None where nothing was answered. A part that is None is a hang-up."""
        messages: list[Message] = [
            {"type": "http.disconnect"}
            if part is None
            else {"type": "http.request", "body": part, "more_body": n < len(parts) - 1}
            for n, part in enumerate(parts or (b"",))
        ]
        sent: list[Message] = []

        async def receive() -> Message:
            return messages.pop(0)

        async def send(message: Message) -> None:
            sent.append(message)

        names = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": method, "path": "/gateways/envoy" + path, "headers": names}
        scope |= {"query_string": b"", "http_version": "1.1", "client": ("127.0.0.1", 40_000)}
        asyncio.run(self.app(scope, receive, send))
        if not sent:
            return None
        told = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], told, b"".join(message["body"] for message in sent[1:])

    def count(self, result: str) -> float:
        registry = self.service.metrics.registry
        return registry.get_sample_value("tidegate_envoy_checks_total", {"result": result}) or 0.0


@pytest.fixture(scope="session")
def bundle(bundle_folder: Callable[[float | None], Path]) -> Bundle:
    return Bundle.load(bundle_folder(None))


@pytest.fixture
def gate(bundle: Bundle) -> Gate:
    return Gate(bundle)


def body(**more: object) -> bytes:
    return json.dumps({"model": "m", "prompt": "a" * 400, **more}).encode()


def test_what_a_whole_body_asks_for_is_what_is_decided_on(gate: Gate) -> None:
    answer = gate.check(
        body(max_tokens=1, max_completion_tokens=70, n=2),
        x_tidegate_tenant="acme",
        x_tidegate_lane="premium",
        x_tidegate_session="s",
        x_request_id="q",
        x_slo_ttft_ms="900",
        x_llm_d_slo_ttft_ms="5000",
    )
    assert answer is not None
    status, headers, _ = answer
    assert status == 200
    assert set(headers) >= TRUSTED
    (asked,) = gate.asked
    assert asked.model_dump(exclude_none=True, exclude_defaults=True) == {
        "prompt_tokens": 100,
        "tenant": "acme",
        "lane": "premium",
        "model": "m",
        "session": "s",
        "max_tokens": 1,
        "max_completion_tokens": 70,
        "n": 2,
        "deadline_ms": 5_000.0,
        "request_id": "q",
    }


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", ["/", "/v1/models", "/v1/chat/completions", "//"])
def test_every_method_on_every_path_gets_200_with_every_trusted_header(
    gate: Gate, method: str, path: str
) -> None:
    answer = gate.check(method=method, path=path, x_tidegate_tenant="acme")
    assert answer is not None
    assert answer[0] == 200
    assert {name: answer[1][name] for name in TRUSTED} == dict.fromkeys(TRUSTED, "") | {
        "x-tidegate-tenant": "acme"
    }
    assert gate.asked == []
    assert gate.count("passed") == 1


def test_the_tenant_comes_from_the_header_of_the_settings_only(bundle: Bundle) -> None:
    gate = Gate(bundle, tenant_header="x-who")
    gate.check(
        body(user="mallory"), x_tidegate_tenant="mallory", authorization="Bearer mallory", x_who="acme"
    )
    gate.check(body(), x_tidegate_tenant="mallory")
    assert [asked.tenant for asked in gate.asked] == ["acme", None]


@pytest.mark.parametrize(
    ("parts", "headers", "prompt_tokens"),
    [
        ((body(),), {"x_tidegate_prompt_tokens": "77"}, 77),
        ((body(),), {"x_tidegate_prompt_tokens": "many"}, 100),
        ((body(),), {"x_tidegate_prompt_tokens": "9" * 18}, MAX_TOKENS),
        # Cut JSON is never parsed, even where it happens to be whole.
        (
            (body(max_tokens=5),),
            {"x_envoy_auth_partial_body": "true", "x_tidegate_content-length": "8000"},
            2_000,
        ),
        ((b'{"prompt": "' + b"a" * 388,), {"x_envoy_auth_partial_body": "true"}, 100),
        ((b'{"prompt": "', b"a" * 388), {}, 100),
        ((b"x" * MAX_READ_BYTES, b"x" * 4), {}, MAX_READ_BYTES // 4 + 1),
        ((), {"x_tidegate_content_length": "4001"}, 1_001),
        ((), {"x_tidegate_content_length": "-"}, 1_024),
        ((), {}, 1_024),
        ((b'{"url": "data:image/png;base64,AAAA',), {"x_envoy_auth_partial_body": "true"}, 1_024),
    ],
)
def test_the_prompts_size_comes_from_the_best_source(
    gate: Gate, parts: tuple[bytes, ...], headers: dict[str, str], prompt_tokens: int
) -> None:
    gate.check(*parts, **headers)
    assert gate.asked[0].prompt_tokens == prompt_tokens
    if headers.get("x_envoy_auth_partial_body"):
        assert gate.asked[0].max_tokens is None


@pytest.mark.parametrize(
    "headers",
    [
        {"x_tidegate_lane": "gold"},
        {"x_slo_ttft_ms": "soon"},
        {"x_slo_ttft_ms": "-1"},
        {"x_request_id": "a" * 999},
    ],
)
def test_hints_that_make_no_sense_are_left_out(gate: Gate, headers: dict[str, str]) -> None:
    answer = gate.check(body(), **headers)
    assert answer is not None
    assert answer[1]["x-tidegate-lane"] == "standard"
    assert (gate.asked[0].deadline_ms, gate.asked[0].request_id) == (None, None)


def test_a_tenant_that_cannot_be_named_is_refused_not_let_past_its_quota(gate: Gate) -> None:
    answer = gate.check(body(), x_tidegate_tenant="a" * 300)
    assert answer is not None
    assert (answer[0], json.loads(answer[2])["error"]["type"]) == (400, "invalid_request_error")
    assert answer[1]["x-should-retry"] == "false"
    assert gate.count("faulty") == 1


def test_a_refusal_says_when_to_come_back(gate: Gate) -> None:
    while (answer := gate.check(body(), x_tidegate_prompt_tokens="9000")) and answer[0] == 200:
        pass
    assert answer is not None
    status, headers, refused = answer
    assert status == 429
    assert headers["x-tidegate-prompt-tokens"] == "9000"
    assert {"retry-after", "retry-after-ms", "x-should-retry", "x-llm-d-request-dropped-reason"} <= set(
        headers
    )
    assert json.loads(refused)["error"]["code"] == "rate_limit_exceeded"
    assert gate.count("refused") == 1


def test_an_envoy_that_hangs_up_reserves_nothing(gate: Gate) -> None:
    assert gate.check(b'{"prompt": "', None) is None
    assert gate.asked == []


@pytest.mark.parametrize("parts", [(b"x" * 3_000_000,) * 4, (b"\xff\x00",), (b"[" * 100_000,)])
def test_a_body_of_any_size_and_shape_is_answered_and_never_by_5xx(
    gate: Gate, parts: tuple[bytes, ...]
) -> None:
    answer = gate.check(*parts, content_length="12000000")
    assert answer is not None
    assert answer[0] in (200, 429)
    assert gate.count("failed_open") == 0


def test_a_fault_of_ours_lets_the_request_in_unreserved(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("a fault of ours")

    gate.service.admit = broken
    answer = gate.check(body(), x_tidegate_tenant="acme")
    assert answer is not None
    assert (answer[0], answer[1]["x-tidegate-reservation-id"]) == (200, "")
    assert gate.count("failed_open") == 1
    assert "a fault of ours" in caplog.text


def test_the_new_name_of_a_target_counts_first() -> None:
    assert deadline_ms({"x-slo-ttft-ms": "900", "x-llm-d-slo-ttft-ms": "nan"}) is None
    assert deadline_ms({"x-slo-ttft-ms": "900"}) == 900.0
