"""What holds of the controller on any sequence of calls and any clock."""

from dataclasses import dataclass
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from data.schema import LANES
from serving.controller.decide import Controller
from serving.controller.decision import Decision, RequestFacts
from serving.controller.rules import Rules

RULES = Rules(
    capacity_tokens=20_000,
    queue_capacity=100,
    max_flows=3,
    lease_s=30.0,
    max_tightening_change_per_s=1e9,
    tightening_spares_s=2.0,
)
readings = st.none() | st.floats(0, 200) | st.sampled_from([float("nan"), -1.0])


@dataclass
class Call:
    """One call: its kind, what it is made with, and how far the clock steps before it."""

    kind: str
    step_s: float
    facts: RequestFacts
    number: int
    reading: float | None


facts = st.builds(
    RequestFacts,
    prompt_tokens=st.integers(0, 6_000),
    tenant=st.sampled_from(["a", "b", "c", "d", None]),
    lane=st.sampled_from([*LANES, *LANES, None, "gold"]),
    max_tokens=st.none() | st.integers(0, 3_000),
    max_completion_tokens=st.none() | st.integers(0, 3_000),
    n=st.none() | st.integers(1, 3),
    deadline_ms=st.none() | st.floats(10, 2_000),
)
kinds = st.sampled_from(["admit"] * 6 + ["settle", "settle", "cancel", "renew", "observe"])


def calls(steps: st.SearchStrategy[float]) -> st.SearchStrategy[list[Call]]:
    return st.lists(st.builds(Call, kinds, steps, facts, st.integers(1, 25), readings), max_size=40)


forward = calls(st.floats(0, 5))
any_clock = calls(st.floats(0, 5) | st.floats(-1e6, 1e6))


def make() -> Controller:
    return Controller(RULES, random=Random(9))


def do(controller: Controller, call: Call, now_s: float) -> Decision | bool | None:
    match call.kind:
        case "admit":
            return controller.admit(call.facts, now_s)
        case "settle":
            return controller.settle(f"r{call.number}", call.facts.prompt_tokens - 1, now_s, call.reading)
        case "cancel":
            return controller.cancel(f"r{call.number}", now_s)
        case "renew":
            return controller.renew(f"r{call.number}", now_s)
        case _:
            controller.observe_engine(
                now_s, queue_depth=call.reading, kv_miss_rate=call.reading, batch_tokens=call.number * 1_000
            )
            return None


@settings(max_examples=100, deadline=None)
@given(any_clock)
def test_nothing_leaks_and_nothing_overshoots_whatever_the_clock_does(history):
    controller, now_s = make(), 0.0
    for call in history:
        now_s += call.step_s
        do(controller, call, now_s)
        state = controller.snapshot(now_s)
        held = {name: lane.held_tokens for name, lane in state.lanes.items()}
        assert 0 <= state.held_tokens <= state.capacity_tokens
        assert state.held_tokens == sum(held.values())
        assert min(held.values()) >= 0
        assert held["standard"] + held["batch"] <= 12_000
    controller.snapshot(now_s)
    after = controller.snapshot(now_s + RULES.lease_s + 1.0)
    assert (after.held_tokens, after.reservations) == (0, 0)
    assert {lane.held_tokens for lane in after.lanes.values()} == {0}


@settings(max_examples=100, deadline=None)
@given(forward, st.data())
def test_tightening_0_is_the_rules_bit_for_bit(history, data):
    """https://github.com/llm-d/llm-d-autoscaling/issues/1453: a forecast must not do worse than the rules."""
    alone, told, now_s = make(), make(), 0.0
    for call in history:
        between_s = now_s + data.draw(st.floats(0, 1)) * call.step_s
        told.set_tightening(data.draw(st.sampled_from([0.0, -0.0, -1.0, float("nan")])), between_s)
        told.snapshot(between_s)
        now_s += call.step_s
        assert do(told, call, now_s) == do(alone, call, now_s)
    assert _plain(told, now_s) == _plain(alone, now_s)


def _plain(controller: Controller, now_s: float) -> dict[str, object]:
    state = controller.snapshot(now_s)
    return {name: getattr(state, name) for name in state.__slots__ if name != "dropped_readings"}


@settings(max_examples=100, deadline=None)
@given(forward, facts, st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_more_tightening_never_admits_what_less_refused(history, probe, past, one, other):
    answers = []
    for level in sorted((one, other)):
        controller, now_s = make(), 0.0
        for call in history:
            now_s += call.step_s
            controller.set_tightening(past, now_s)
            do(controller, call, now_s)
        controller.set_tightening(level, now_s)
        answers.append(controller.admit(probe, now_s + 0.001))
    less, more = answers

    assert less.admitted or not more.admitted
    assert (less.lane, less.backpressure) == (more.lane, more.backpressure)
    if more.lane == "premium":
        assert less.admitted == more.admitted
        assert not more.tightened


@settings(max_examples=100, deadline=None)
@given(forward, facts, st.floats(0.01, 1))
def test_a_refusal_is_the_forecasts_exactly_when_the_rules_would_admit(history, probe, level):
    answers = []
    for tau in (0.0, level):
        controller, now_s = make(), 0.0
        for call in history:
            now_s += call.step_s
            do(controller, call, now_s)
        controller.set_tightening(tau, now_s)
        answers.append(controller.admit(probe, now_s + 0.001))
    rules, tight = answers

    assert not rules.tightened
    assert tight.tightened == (rules.admitted and not tight.admitted)


@settings(max_examples=100, deadline=None)
@given(forward, st.integers(0, 6_000), st.integers(1, 2_000))
def test_premium_within_its_weight_is_always_admitted(history, prompt_tokens, max_tokens):
    controller, now_s = make(), 0.0
    for call in history:
        now_s += call.step_s
        do(controller, call, now_s)
    held = controller.snapshot(now_s).lanes["premium"].held_tokens
    decision = controller.admit(
        RequestFacts(prompt_tokens, lane="premium", tenant="new", max_tokens=max_tokens), now_s
    )

    if held + prompt_tokens + decision.expected_output_tokens <= 8_000:
        assert decision.admitted


@settings(max_examples=100, deadline=None)
@given(any_clock)
def test_every_decision_is_whole(history):
    controller, now_s = make(), 0.0
    for call in history:
        now_s += call.step_s
        decision = do(controller, call, now_s)
        if not isinstance(decision, Decision):
            continue
        assert decision.admitted == (decision.reservation_id is not None) == (decision.reason is None)
        assert decision.retry == (decision.retry_after_ms is not None)
        assert decision.expected_output_tokens >= 1
        assert 0.0 <= decision.backpressure <= 1.0 + 1e-9
        if decision.retry_after_ms is not None:
            assert 1 <= (decision.retry_after_s or 0) <= 30
