"""What holds of the controller on any sequence of readings of an engine that is overloaded now and then."""

from dataclasses import dataclass, replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from data.schema import LANES
from serving.controller.decide import Controller
from serving.controller.decision import Decision, RequestFacts
from serving.controller.degradation import DegradationRules
from serving.controller.kv_headroom import HeadroomRules
from serving.controller.rules import LaneRule, Rules

# Tightening cuts no lane here: what it changes, the ladder does.
RULES = Rules(
    capacity_tokens=20_000,
    standard=LaneRule(0.45, 800.0),
    batch=LaneRule(0.15, 5_000.0),
    hard_reject_cut=0.0,
    queue_capacity=100,
    lease_s=30.0,
    max_tightening_change_per_s=1e9,
    tightening_spares_s=2.0,
    degradation=DegradationRules(
        queue_depth_above=50,
        cut=0.5,
        climb_s=2.0,
        calm_s=5.0,
        clamp_output_tokens=200,
        most_request_tokens=4_000,
        smaller_models={"large": "small"},
        max_continuations=3,
    ),
    headroom=HeadroomRules(shrink_every_s=1.0),
)


@dataclass
class Call:
    """One call: what is done, after how long."""

    kind: str
    step_s: float
    facts: RequestFacts
    number: int
    depth: float | None
    failures: float | None


facts = st.builds(
    RequestFacts,
    prompt_tokens=st.integers(0, 6_000),
    tenant=st.sampled_from(["a", "b"]),
    model=st.sampled_from(["large", "small", None]),
    lane=st.sampled_from(LANES),
    max_tokens=st.none() | st.integers(1, 3_000),
    n=st.none() | st.integers(1, 2),
    cached_tokens=st.none() | st.integers(0, 6_000),
)
calls = st.lists(
    st.builds(
        Call,
        st.sampled_from(["admit", "admit", "rest", "settle", "observe", "observe"]),
        st.floats(0, 4),
        facts,
        st.integers(1, 20),
        st.sampled_from([None, 0.0, 30.0, 40.0, 60.0, 60.0, float("nan")]),
        st.sampled_from([None, None, 0.0, 1.0, float("inf")]),
    ),
    max_size=40,
)


def make(rules: Rules = RULES) -> Controller:
    return Controller(rules, random=Random(9))


def do(controller: Controller, call: Call, now_s: float, handles: list[str]) -> Decision | bool | None:
    match call.kind:
        case "admit" | "rest":
            asked = call.facts
            if call.kind == "rest" and handles:
                asked = replace(asked, continuation=handles[call.number % len(handles)])
            decision = controller.admit(asked, now_s)
            if decision.continuation is not None:
                handles.append(decision.continuation)
            return decision
        case "settle":
            return controller.settle(f"r{call.number}", call.facts.prompt_tokens, now_s)
        case _:
            controller.observe_engine(now_s, queue_depth=call.depth, preemptions_per_s=call.failures)
            return None


def replay(history: list[Call], tightening: float = 0.0) -> tuple[Controller, float, list[str]]:
    controller, now_s, handles = make(), 0.0, []
    for call in history:
        now_s += call.step_s
        controller.set_tightening(tightening, now_s)
        do(controller, call, now_s, handles)
    return controller, now_s, handles


@settings(max_examples=100, deadline=None)
@given(calls, facts, st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_more_tightening_never_admits_what_less_refused(history, probe, past, one, other):
    answers = []
    for level in sorted((one, other)):
        controller, now_s, _ = replay(history, past)
        controller.set_tightening(level, now_s)
        answers.append(controller.admit(probe, now_s + 0.001))
    less, more = answers

    assert less.admitted or not more.admitted
    assert less.degradation <= more.degradation
    if more.lane == "premium":
        assert less[:4] == more[:4]
        assert less.degradation == more.degradation


@settings(max_examples=100, deadline=None)
@given(calls, facts, st.floats(0.01, 1))
def test_a_refusal_is_the_forecasts_exactly_when_the_rules_would_admit(history, probe, level):
    answers = []
    for tau in (0.0, level):
        controller, now_s, _ = replay(history, level)
        controller.set_tightening(tau, now_s)
        answers.append(controller.admit(probe, now_s + 0.001))
    rules, tight = answers

    assert tight.tightened == (rules.admitted and not tight.admitted)


@settings(max_examples=100, deadline=None)
@given(calls)
def test_nothing_is_dropped_and_nothing_new_is_let_in_over_what_can_be_used(history):
    controller, now_s, handles = make(), 0.0, []
    for call in history:
        now_s += call.step_s
        before = controller.snapshot(now_s)
        decision = do(controller, call, now_s, handles)
        after = controller.snapshot(now_s)
        assert 10_000 <= after.usable_tokens <= after.capacity_tokens == 20_000
        assert after.held_tokens == sum(lane.held_tokens for lane in after.lanes.values())
        assert 0.0 <= after.backpressure <= 1.0 + 1e-9
        assert after.continuations <= 3
        if call.kind == "observe":
            assert (after.held_tokens, after.reservations) == (before.held_tokens, before.reservations)
        if isinstance(decision, Decision) and decision.admitted:
            assert after.held_tokens <= after.usable_tokens
    controller.snapshot(now_s)
    end = controller.snapshot(now_s + 31.0)
    assert (end.held_tokens, end.reservations, end.degradation) == (0, 0, 0)


@settings(max_examples=100, deadline=None)
@given(calls)
def test_every_clamp_is_whole(history):
    controller, now_s, handles = make(), 0.0, []
    for call in history:
        now_s += call.step_s
        decision = do(controller, call, now_s, handles)
        if not isinstance(decision, Decision):
            continue
        assert 0 <= decision.degradation <= 3
        if decision.continuation is not None:
            assert decision.clamp_output_tokens == 200
        if decision.clamp_output_tokens is not None:
            assert decision.admitted
            answers = call.facts.n or 1
            assert decision.expected_output_tokens <= answers * decision.clamp_output_tokens
        if decision.lane == "premium":
            assert (decision.model, decision.pool in (None, "hot")) == (None, True)


@settings(max_examples=100, deadline=None)
@given(calls, st.data())
def test_without_engine_data_the_rules_decide_bit_for_bit(history, data):
    """Whatever the ladder and the headroom are set to, an engine that says nothing changes nothing."""
    told, plain = make(), make(replace(RULES, degradation=DegradationRules(), headroom=HeadroomRules()))
    now_s, handles = 0.0, []
    for call in history:
        now_s += call.step_s
        told.observe_engine(now_s, gpu_util=data.draw(st.sampled_from([None, float("nan"), -1.0, 7.0])))
        plain.observe_engine(now_s)
        quiet = replace(call, depth=None, failures=None)
        assert do(told, quiet, now_s, handles) == do(plain, quiet, now_s, handles)
    assert handles == []
