import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.schema import LANES
from models.bundle import Bundle
from serving.app import create_app
from serving.clock import SystemClock
from serving.controller.decide import Controller
from serving.controller.decision import RequestFacts
from serving.controller.rules import Rules
from serving.http.policy import Policy, policy
from serving.settings import Settings
from tests.serving.live_apps import running

RULES = Rules(capacity_tokens=100_000)


def controller(held: list[tuple[str, int]], tightening: float, spares_s: float = 0.0) -> Controller:
    """A gate that lets these in, as far as it does, and is tightened since a minute."""
    gate = Controller(replace(RULES, tightening_spares_s=spares_s), random=Random(3))
    for lane, tokens in held:
        gate.admit(RequestFacts(prompt_tokens=tokens, lane=lane, max_tokens=1), 0.0)
    for second in range(10):
        gate.set_tightening(tightening, float(second))
    return gate


@given(
    st.lists(st.tuples(st.sampled_from(LANES), st.integers(1, 20_000)), max_size=12),
    st.floats(0, 1),
    st.sampled_from(LANES),
)
def test_what_fits_the_room_gets_in_and_a_token_more_does_not(held, tightening, lane) -> None:
    room = controller(held, tightening).on_gate(policy, 10.0).lanes[lane].room_tokens
    over = controller(held, tightening)
    assert not over.admit(RequestFacts(prompt_tokens=room, lane=lane, max_tokens=1), 10.0).admitted
    if room > 1:
        fits = controller(held, tightening)
        assert fits.admit(RequestFacts(prompt_tokens=room - 1, lane=lane, max_tokens=1), 10.0).admitted


@given(
    st.lists(st.tuples(st.sampled_from(LANES), st.integers(1, 20_000)), max_size=12),
    st.floats(0, 1),
    st.sampled_from(LANES),
)
def test_brief_requests_have_the_room_that_the_rules_leave(held, tightening, lane) -> None:
    told, rules = (controller(held, level, 1e6).on_gate(policy, 10.0) for level in (tightening, 0.0))
    assert told.spares_s == 1e6
    assert told.lanes[lane].room_tokens <= told.lanes[lane].brief_room_tokens
    assert told.lanes[lane].brief_room_tokens == rules.lanes[lane].room_tokens
    room = told.lanes[lane].brief_room_tokens
    if room > 1:
        fits = controller(held, tightening, 1e6)
        assert fits.admit(RequestFacts(prompt_tokens=room - 1, lane=lane, max_tokens=1), 10.0).admitted


@given(st.lists(st.tuples(st.sampled_from(LANES), st.integers(1, 20_000)), max_size=12))
def test_a_forecast_only_takes_room_and_none_of_premiums(held) -> None:
    calm, alarmed = (controller(held, level).on_gate(policy, 10.0) for level in (0.0, 1.0))
    assert (calm.tightening, alarmed.tightening) == (0.0, 1.0)
    for lane in LANES:
        assert alarmed.lanes[lane].room_tokens <= calm.lanes[lane].room_tokens
        assert alarmed.lanes[lane].retry_after_s >= calm.lanes[lane].retry_after_s
    assert alarmed.lanes["premium"] == calm.lanes["premium"]


def test_behind_those_who_wait_there_is_no_room() -> None:
    gate = controller([("batch", 50_000), ("batch", 5_000)], 0.0)
    gate.enqueue(RequestFacts(prompt_tokens=59_000, lane="batch", max_tokens=1), 10.0, 5_000.0)
    told = gate.on_gate(policy, 10.0).lanes["batch"]
    assert told.room_tokens == 0
    assert 0 < told.retry_after_s <= 30


def test_of_an_overloaded_engine_each_lane_is_told_its_own_step_and_what_is_too_large() -> None:
    gate = Controller(Rules(), random=Random(3))
    gate.observe_engine(0.0, queue_depth=3_000, gpu_util=0.95)
    told = gate.on_gate(policy, 1.0).lanes
    assert [(lane.degradation, lane.clamp_output_tokens) for lane in told.values()] == [(1, 1_024)] * 3
    assert told["standard"].room_tokens == Rules().degradation.most_request_tokens
    assert told["premium"].room_tokens == Rules().capacity
    for size, admitted in ((32_000, True), (32_001, False)):
        asked = RequestFacts(prompt_tokens=size - 1, lane="standard", max_tokens=1)
        assert gate.admit(asked, 1.0).admitted is admitted


def test_what_only_the_forecast_degrades_leaves_premium_alone() -> None:
    gate = controller([], 1.0)
    gate.observe_engine(10.0, queue_depth=None, gpu_util=0.9)
    told = gate.on_gate(policy, 10.0).lanes
    assert (told["standard"].degradation, told["standard"].clamp_output_tokens) == (1, 1_024)
    assert (told["premium"].degradation, told["premium"].clamp_output_tokens) == (0, None)


def test_a_lane_that_misses_its_target_is_told_to_clamp_and_no_other() -> None:
    gate = controller([], 0.0)
    for second in range(20):
        asked = RequestFacts(prompt_tokens=100, lane="batch", max_tokens=1)
        held = gate.admit(asked, float(second)).reservation_id
        assert held is not None
        gate.settle(held, 1, float(second), ttft_ms=60_000.0)
    told = gate.on_gate(policy, 20.0).lanes
    assert [lane.clamp_output_tokens for lane in told.values()] == [None, None, 1_024]


@pytest.fixture
def url(bundle_folder: Callable[[float | None], Path]) -> Iterator[str]:
    app = create_app(Bundle.load(bundle_folder(None)), Settings(rules=RULES), SystemClock())
    with running(app) as port:
        yield f"http://127.0.0.1:{port}"


def told(lines: Iterator[str]) -> Policy:
    """The policy of the next event."""
    assert next(line for line in lines if line) == "event: policy"
    return Policy(**json.loads(next(lines).removeprefix("data: ")))


def test_a_stream_tells_the_policy_at_once_and_when_it_changes(url: str) -> None:
    before = Policy(**httpx.get(f"{url}/v1/policy").json())
    assert before.lanes["premium"].room_tokens == RULES.capacity
    assert before.tightening == 0.0
    assert [(lane.degradation, lane.clamp_output_tokens) for lane in before.lanes.values()] == [(0, None)] * 3
    assert httpx.get(f"{url}/v1/policy").headers["cache-control"] == "no-store"
    with httpx.stream("GET", f"{url}/v1/policy/stream", timeout=30) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-accel-buffering"] == "no"
        lines = answer.iter_lines()
        assert told(lines) == before
        asked = {"prompt_tokens": 999, "max_tokens": 1, "lane": "premium"}
        assert httpx.post(f"{url}/v1/admit", json=asked).status_code == 200
        while (after := told(lines)) == before:
            pass
        assert after.lanes["premium"].room_tokens == RULES.capacity - 1_000
