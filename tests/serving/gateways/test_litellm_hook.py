"""The hook alone against a real Tidegate; test_litellm_proxy.py has the real proxy."""

import ast
import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from models.bundle import Bundle
from serving.app import create_app
from serving.clock import ManualClock
from serving.controller.rules import Rules
from serving.gateways import litellm_hook
from serving.gateways.litellm_hook import Tidegate, admit_request, clamped, usage
from serving.service import Service
from serving.settings import Settings

KEY = SimpleNamespace(team_alias="acme", team_id="t-1", metadata={"tidegate_lane": "batch"})
NOBODY = SimpleNamespace(user_id=None)


@pytest.fixture(scope="session")
def bundle(bundle_folder: Callable[[float | None], Path]) -> Bundle:
    return Bundle.load(bundle_folder(None))


class Late:
    """An app whose decisions are made at once and answered late."""

    def __init__(self, app: ASGIApp) -> None:
        self.app, self.late_s = app, 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def late(message: Message) -> None:
            if scope["path"] == "/v1/admit":
                await asyncio.sleep(self.late_s)
            await send(message)

        await self.app(scope, receive, late if scope["type"] == "http" else send)


class Gate:
    def __init__(self, service: Service, late: Late, url: str) -> None:
        self.service, self.late, self.url = service, late, url

    def count(self, name: str, **labels: str) -> float:
        return self.service.metrics.registry.get_sample_value(name, labels) or 0.0

    @property
    def held_tokens(self) -> int:
        return self.service.controller.snapshot(self.service.clock.monotonic_s()).held_tokens

    def refuse_all(self) -> None:
        """Overload the engine far beyond where all but premium are refused."""
        self.service.controller.observe_engine(
            self.service.clock.monotonic_s(), queue_depth=10**6, batch_tokens=10**9, kv_miss_rate=1.0
        )

    def hook(self, **environment: str) -> Tidegate:
        return Tidegate({"TIDEGATE_URL": self.url, "TIDEGATE_TIMEOUT_S": "20"} | environment)


@pytest.fixture
def gate(bundle: Bundle) -> Iterator[Gate]:
    app = create_app(
        bundle, Settings(rules=Rules(capacity_tokens=100_000)), ManualClock(1_700_000_000_000_000)
    )
    late = Late(app)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(late, log_config=None, ws="none", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.005)
            yield Gate(app.state.service, late, f"http://127.0.0.1:{listening.getsockname()[1]}")
        finally:
            server.should_exit = True
            thread.join(30)


def call(**more: object) -> dict[str, Any]:
    return {
        "model": "m",
        "messages": [{"role": "user", "content": "x" * 400}],
        "litellm_call_id": "c-1",
    } | more


async def ask(hook: Tidegate, data: dict[str, Any], call_type: str = "acompletion") -> dict[str, Any]:
    return await hook.async_pre_call_hook(KEY, None, data, call_type)


def run(hook: Tidegate, story: Coroutine[Any, Any, Any]) -> Any:
    """Run the story to its end, with what it has left to settle."""

    async def whole() -> Any:
        try:
            return await story
        finally:
            await hook.aclose()

    return asyncio.run(whole())


def test_a_call_holds_tokens_until_its_success_is_logged(gate: Gate) -> None:
    hook = gate.hook()

    async def story() -> None:
        data = call(max_tokens=50)
        assert await ask(hook, data) == data
        assert gate.held_tokens == 150
        answer = SimpleNamespace(usage=SimpleNamespace(completion_tokens=7, prompt_tokens_details=None))
        kwargs = {"litellm_call_id": "c-1"}
        await hook.async_log_success_event(kwargs, answer, None, None)
        assert gate.held_tokens == 0
        await hook.async_log_success_event(kwargs, answer, None, None)  # told twice: nothing to do

    run(hook, story())
    assert gate.count("tidegate_settled_total") == 1
    assert gate.count("tidegate_settle_unknown_total") == 0


def test_a_refusal_is_a_429_with_every_header_of_ours_and_holds_nothing(gate: Gate) -> None:
    hook = gate.hook()
    gate.refuse_all()

    async def story() -> HTTPException:
        with pytest.raises(HTTPException) as raised:
            await ask(hook, call())
        # The proxy brings our own refusal back as a failure: nothing was reserved, so nothing is settled.
        await hook.async_post_call_failure_hook(call(), raised.value, KEY)
        return raised.value

    refused = run(hook, story())
    assert refused.status_code == 429
    assert refused.detail["error"]["message"].startswith("Tidegate refused this: ")
    assert refused.headers is not None
    assert refused.headers["x-tidegate-reason"] == "backpressure"
    assert refused.headers["x-should-retry"] == "true"
    assert 1 <= int(refused.headers["retry-after"]) <= 30
    assert not {"content-length", "content-type"} & refused.headers.keys()
    assert refused.type == "requests"
    assert hook.failed_open == 0
    assert gate.count("tidegate_settle_unknown_total") == 0


@pytest.mark.parametrize(
    ("status", "outcome"), [(500, "failed"), (429, "shed"), ("503", "shed"), (None, "failed")]
)
def test_a_call_that_failed_for_good_frees_its_tokens(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, status: object, outcome: str
) -> None:
    hook, outcomes = gate.hook(), []
    settle = gate.service.settle
    monkeypatch.setattr(gate.service, "settle", lambda told: outcomes.append(told.outcome) or settle(told))

    async def story() -> None:
        await ask(hook, call())
        # An attempt failed; the proxy may retry, so the tokens stay held.
        await hook.async_log_failure_event({"litellm_call_id": "c-1"}, None, None, None)
        assert gate.held_tokens > 0
        error = RuntimeError("upstream")
        error.status_code = status  # type: ignore[attr-defined]
        await hook.async_post_call_failure_hook(call(), error, KEY, traceback_str="...")

    run(hook, story())
    assert outcomes == [outcome]
    assert gate.held_tokens == 0


def test_a_stream_that_its_client_left_is_freed_by_the_lease(gate: Gate) -> None:
    hook = gate.hook()
    run(hook, ask(hook, call(stream=True)))  # the proxy tells nothing of its end
    assert gate.held_tokens > 0
    gate.service.clock.advance(gate.service.controller.rules.lease_s + 1)  # type: ignore[attr-defined]
    assert gate.held_tokens == 0


def test_calls_of_no_model_are_not_looked_at(gate: Gate) -> None:
    gate.refuse_all()
    data = {"file": "x"}
    hook = gate.hook()
    assert run(hook, ask(hook, data, "acreate_file")) is data


@contextlib.contextmanager
def silent_server() -> Iterator[str]:
    """Takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_calls_go_on_where_tidegate_is_away_silent_or_something_else(
    gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        away = f"http://127.0.0.1:{gone.getsockname()[1]}"
    with silent_server() as silent, caplog.at_level(logging.WARNING, "tidegate"):
        for url in (away, silent, gate.url + "/nowhere"):
            hook = Tidegate({"TIDEGATE_URL": url, "TIDEGATE_TIMEOUT_S": "0.3"})
            data = call()
            assert [run(hook, ask(hook, data)) for _ in range(2)] == [data, data]
            assert hook.failed_open == 2
            assert not hook.open
    assert len(caplog.messages) == 3  # one for each hook: an outage does not flood the log


def test_what_a_late_decision_reserves_is_settled_when_its_call_ends(gate: Gate) -> None:
    hook = gate.hook(TIDEGATE_TIMEOUT_S="0.05")
    gate.late.late_s = 0.3

    async def story() -> None:
        for call_id, ended in (("before", True), ("after", False)):
            data = call(max_tokens=50, litellm_call_id=call_id)
            assert await ask(hook, data) == data  # undecided
            if not ended:  # the answer comes while the call still runs
                while call_id not in hook.open:
                    await asyncio.sleep(0.01)
            assert gate.held_tokens == 150
            answer = {"usage": {"completion_tokens": 7}}
            await hook.async_log_success_event({"litellm_call_id": call_id}, answer, None, None)
            assert gate.held_tokens == 0

    run(hook, story())
    assert hook.failed_open == 2
    assert gate.count("tidegate_settled_total") == 2
    assert not hook._late


def test_an_answer_that_comes_far_too_late_is_not_waited_for(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(litellm_hook, "LATE_S", 0.05)
    hook = gate.hook(TIDEGATE_TIMEOUT_S="0.05")
    gate.late.late_s = 5.0

    async def story() -> None:
        await ask(hook, call())
        while hook._late:
            await asyncio.sleep(0.01)

    run(hook, story())
    assert not hook.open


def test_a_call_waits_for_room_as_long_as_the_proxy_allows(gate: Gate) -> None:
    hook = gate.hook(TIDEGATE_MAX_WAIT_MS="60000", TIDEGATE_TIMEOUT_S="0.05")
    large = {"messages": [{"role": "user", "content": "x" * 160_000}], "max_tokens": 1}

    async def story() -> None:
        held = 0
        while not gate.service.waiting:  # admitted until there is no room
            waiting = asyncio.create_task(ask(hook, call(**large, litellm_call_id=f"c-{held}")))
            while not waiting.done() and not gate.service.waiting:
                await asyncio.sleep(0.01)
            held += 1
        await asyncio.sleep(0.1)  # longer than a decision may take
        assert not waiting.done()
        await hook.async_log_success_event({"litellm_call_id": "c-0"}, None, None, None)
        await waiting

    run(hook, story())
    assert hook.failed_open == 0
    assert gate.count("tidegate_refused_total") == 0


def test_a_call_given_up_while_it_waits_leaves_nothing_behind(gate: Gate) -> None:
    hook = gate.hook(TIDEGATE_MAX_WAIT_MS="60000")
    large = {"messages": [{"role": "user", "content": "x" * 160_000}], "max_tokens": 1}

    async def story() -> None:
        held = 0
        while not gate.service.waiting:
            waiting = asyncio.create_task(ask(hook, call(**large, litellm_call_id=f"c-{held}")))
            while not waiting.done() and not gate.service.waiting:
                await asyncio.sleep(0.01)
            held += 1
        waiting.cancel()
        while gate.service.waiting:
            await asyncio.sleep(0.01)

    run(hook, story())


def test_calls_of_one_name_are_settled_each(gate: Gate) -> None:
    hook = gate.hook()

    async def story() -> None:
        for _ in range(3):
            await ask(hook, call(max_tokens=50))
        assert gate.held_tokens == 450
        gate.refuse_all()
        with pytest.raises(HTTPException) as refused:
            await ask(hook, call())
        await hook.async_post_call_failure_hook(call(), refused.value, KEY)  # not the end of its namesakes
        await hook.aclose()
        assert gate.held_tokens == 450
        for left in (300, 150, 0):
            await hook.async_log_success_event({"litellm_call_id": "c-1"}, None, None, None)
            assert gate.held_tokens == left

    run(hook, story())
    assert not hook.open


def test_a_settlement_that_does_not_arrive_is_counted_and_fails_nothing(gate: Gate) -> None:
    hook = gate.hook()

    async def story() -> None:
        await ask(hook, call())
        await hook.aclose()
        hook.url = "http://127.0.0.1:9"
        await hook.async_log_success_event({"litellm_call_id": "c-1"}, None, None, None)

    run(hook, story())
    assert hook.unsettled == 1


def test_an_overloaded_engine_clamps_the_answer(gate: Gate) -> None:
    gate.service.controller.observe_engine(gate.service.clock.monotonic_s(), queue_depth=0, gpu_util=0.95)
    data = call(max_tokens=4_096)
    hook = gate.hook()
    assert run(hook, ask(hook, data))["max_tokens"] == 1_024
    assert data["max_tokens"] == 4_096


@pytest.mark.parametrize(
    ("call_type", "added"),
    [
        ("acompletion", {"max_tokens": 1_024}),
        ("aresponses", {"max_output_tokens": 1_024}),
        ("aembedding", {}),  # it would fail of a limit that it does not know
        ("rerank", {}),
    ],
)
def test_a_call_without_a_limit_gets_the_one_of_its_kind(
    gate: Gate, call_type: str, added: dict[str, int]
) -> None:
    gate.service.controller.observe_engine(gate.service.clock.monotonic_s(), queue_depth=0, gpu_util=0.95)
    hook = gate.hook()
    assert run(hook, ask(hook, call(), call_type)) == call() | added


def test_the_rest_of_a_clamped_answer_is_asked_for_with_its_handle(gate: Gate) -> None:
    gate.service.controller.observe_engine(gate.service.clock.monotonic_s(), queue_depth=0, gpu_util=0.95)
    hook = gate.hook()

    async def story() -> None:
        data = await ask(hook, call(max_tokens=4_096))
        answer = {"usage": {"completion_tokens": 1_024}}
        await hook.async_log_success_event({"litellm_call_id": "c-1"}, answer, None, None)  # may come first
        told = await hook.async_post_call_response_headers_hook(
            data=data, user_api_key_dict=KEY, response=None, request_headers={}
        )
        assert told is not None
        headers = {"x-tidegate-continuation": told["x-tidegate-continuation"]}
        rest = call(max_tokens=3_072, litellm_call_id="c-2", proxy_server_request={"headers": headers})
        assert (await ask(hook, rest))["max_tokens"] == 1_024
        # What a call handed over, or never had, is not handed over again.
        assert await hook.async_post_call_response_headers_hook(data, KEY, None) is None

    run(hook, story())
    seen = gate.service.controller.snapshot(gate.service.clock.monotonic_s())
    assert (seen.continuations, seen.unknown_continuations) == (1, 0)  # the second's; the first is redeemed


def test_what_a_call_says_becomes_an_admit_request() -> None:
    body = call(max_tokens=1, max_completion_tokens=5_000, n=2, litellm_session_id="s")
    assert admit_request(KEY, body) == {
        "prompt_tokens": 100,
        "tenant": "acme",
        "lane": "batch",
        "model": "m",
        "session": "s",
        "max_tokens": 5_000,  # the largest explicit limit counts
        "n": 2,
        "request_id": "c-1",
    }
    odd = {"model": 5, "prompt": [1, 2, 3], "max_tokens": True, "n": "2", "litellm_call_id": ""}
    assert admit_request(NOBODY, odd) == {"prompt_tokens": 3}


def test_what_the_client_s_headers_tell() -> None:
    def told(**headers: str) -> dict[str, Any]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return admit_request(None, {"proxy_server_request": {"headers": named}}) | {"prompt_tokens": 0}

    assert told(x_stainless_retry_count="2", x_tidegate_continuation="abc") == {
        "prompt_tokens": 0,
        "retry_count": 2,
        "continuation": "abc",
    }
    assert told(x_stainless_retry_count="5000")["retry_count"] == 1_000
    for odd in ("-1", "two", "", "٣", "1" * 5_000):
        assert told(x_stainless_retry_count=odd, x_tidegate_continuation="") == {"prompt_tokens": 0}
    assert admit_request(None, {}, max_wait_ms=250.0) == {"prompt_tokens": 0, "max_wait_ms": 250.0}


@pytest.mark.parametrize(
    ("asked", "n"),
    [
        ({"prompt": ["a", "b", "c"]}, 3),
        ({"prompt": [[1, 2], [3]], "n": 2}, 4),
        ({"prompt": [1, 2, 3], "n": 2}, 2),  # one prompt that came tokenised
        ({"prompt": ["a"] * 500, "n": 2}, 128),
        ({"prompt": "a", "extra_body": {"n": 5}}, 5),
        ({"prompt": "a", "extra_body": {"prompt": ["a", "b"]}}, 2),
    ],
)
def test_each_prompt_of_a_list_is_an_answer(asked: dict[str, Any], n: int) -> None:
    assert admit_request(None, asked)["n"] == n


def test_parameters_that_go_to_the_engine_as_they_are_count_as_well() -> None:
    asked = {"prompt": "x" * 40, "max_tokens": 1, "extra_body": {"max_tokens": 5_000, "prompt": "x" * 400}}
    assert admit_request(None, asked) == {"prompt_tokens": 110, "max_tokens": 5_000}
    assert clamped(asked, 1_024)["extra_body"]["max_tokens"] == 1_024
    assert asked["extra_body"]["max_tokens"] == 5_000
    only = {"extra_body": {"max_completion_tokens": 9, "min_tokens": 2_048}}
    assert clamped(only, 1_024) == {"extra_body": {"max_completion_tokens": 9, "min_tokens": 1_024}}


def test_a_picture_is_not_taken_for_its_bytes() -> None:
    content = [
        {"type": "text", "text": "what is it"},
        {"type": "image_url", "image_url": {"url": "x" * 10**6}},
    ]
    assert admit_request(None, {"messages": [{"role": "user", "content": content}]})["prompt_tokens"] == 3


def test_only_an_administrator_chooses_the_lane() -> None:
    team = SimpleNamespace(metadata={}, team_metadata={"tidegate_lane": "premium"}, key_alias="ci")
    assert admit_request(team, {"metadata": {"tidegate_lane": "batch"}}) == {
        "prompt_tokens": 0,
        "tenant": "ci",
        "lane": "premium",
    }
    assert "lane" not in admit_request(SimpleNamespace(metadata={"tidegate_lane": "vip"}), {})


def test_a_clamp_never_raises_a_limit() -> None:
    assert clamped({"max_tokens": 10, "max_completion_tokens": 9_000}, 1_024) == {
        "max_tokens": 10,
        "max_completion_tokens": 1_024,
    }


@pytest.mark.parametrize("response", [None, "text", {"usage": None}, {"usage": {"completion_tokens": -1}}])
def test_usage_that_is_not_told_is_unknown_not_zero(response: object) -> None:
    assert usage(response) == (None, None)


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"TIDEGATE_URL": "localhost:8311"}, "TIDEGATE_URL must start with http"),
        ({"TIDEGATE_TIMEOUT_S": "fast"}, "TIDEGATE_TIMEOUT_S must be a number of seconds"),
        ({"TIDEGATE_TIMEOUT_S": "nan"}, "TIDEGATE_TIMEOUT_S must be a number of seconds"),
        ({"TIDEGATE_MAX_WAIT_MS": "0"}, "TIDEGATE_MAX_WAIT_MS must be a number of milliseconds"),
        ({"TIDEGATE_KEY": "a", "TIDEGATE_KEY_FILE": "b"}, "both set"),
        ({"TIDEGATE_KEY_FILE": "/no/such/file"}, "TIDEGATE_KEY_FILE can't be read"),
    ],
)
def test_settings_that_can_not_be_used_stop_the_proxy_at_its_start(
    environment: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        Tidegate(environment)


def test_the_key_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("s3cret\n")
    from_file = Tidegate({"TIDEGATE_KEY_FILE": str(tmp_path / "key")})
    assert (
        from_file.headers
        == Tidegate({"TIDEGATE_KEY": "s3cret"}).headers
        == {"authorization": "Bearer s3cret"}
    )
    (tmp_path / "key").write_text("\n")
    with pytest.raises(ValueError, match="is empty"):
        Tidegate({"TIDEGATE_KEY_FILE": str(tmp_path / "key")})


def test_the_file_stands_alone_and_its_methods_on_the_class_itself() -> None:
    tree = ast.parse(Path(litellm_hook.__file__).read_text(encoding="utf-8"))
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert {name.split(".")[0] for name in imported}.isdisjoint(
        {"data", "features", "models", "serving", "pipeline"}
    )
    # The proxy looks in the class's own dictionary and skips what is inherited.
    hooks = {name for name in vars(Tidegate) if name.startswith("async_")}
    assert hooks == {
        "async_pre_call_hook",
        "async_post_call_response_headers_hook",
        "async_post_call_failure_hook",
        "async_log_success_event",
        "async_log_failure_event",
    }
    assert isinstance(litellm_hook.tidegate, Tidegate)
