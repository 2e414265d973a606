from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.play.retries import RETRIES
from pipeline.simulate.calls import Call
from pipeline.simulate.fleet import Fleet
from pipeline.simulate.run import Play
from serving.controller.breach import BreachRules
from serving.controller.degradation import DegradationRules
from serving.controller.rules import Rules
from tests.pipeline.simulate.samples import call, fleet

CLAMP = 8


def rules_of(made: Fleet, **changed: object) -> Rules:
    return replace(Rules(), engine=made.profile, capacity_tokens=made.capacity_tokens, **changed)  # type: ignore[arg-type]


def played(
    calls: list[Call],
    made: Fleet,
    rules: Rules | None = None,
    tightening: dict[int, float] | None = None,
    *,
    waits: bool = False,
    seed: int = 0,
) -> tuple[Play, list[Call]]:
    """A run of copies of the calls, and those."""
    calls = deepcopy(calls)
    play = Play(calls, made, rules or rules_of(made), tightening or {}, waits=waits, seed=seed)
    play.run()
    return play, calls


def told(calls: list[Call]) -> list[tuple[object, ...]]:
    """Everything that became of calls; a handle is drawn from the seed, and so the same."""
    return [tuple(getattr(one, name) for name in Call.__slots__) for one in calls]


@st.composite
def crowds(draw: st.DrawFn) -> list[Call]:
    """Up to forty calls within half a minute, which a small fleet has its trouble with."""
    rows = draw(
        st.lists(
            st.tuples(
                st.floats(0.0, 30.0),
                st.integers(1, 4_000),
                st.integers(1, 400),
                st.sampled_from(("premium", "standard", "batch")),
                st.sampled_from((None, "a", "b")),
                st.one_of(st.none(), st.floats(0.0, 1.0)),
                st.booleans(),
            ),
            min_size=1,
            max_size=40,
        )
    )
    return [
        call(
            at_s,
            prompt,
            output,
            lane,
            tenant=tenant,
            cached_tokens=None if cached is None else round(cached * prompt),
            max_tokens=output if limited else None,
        )
        for at_s, prompt, output, lane, tenant, cached, limited in sorted(rows, key=lambda row: row[0])
    ]


SCHEDULES = st.dictionaries(st.integers(0, 12).map(lambda n: 5 * n), st.floats(0.0, 1.0))
CLAMPING = DegradationRules(queue_depth_above=0.5, climb_s=1_000.0, clamp_output_tokens=CLAMP)


@settings(max_examples=60, deadline=None)
@given(
    crowds(),
    SCHEDULES,
    st.booleans(),
    st.integers(1, 3),
    st.sampled_from((DegradationRules(), CLAMPING)),
    st.integers(0, 5),
)
def test_every_call_ends_once_and_nothing_is_left_behind(
    calls: list[Call],
    schedule: dict[int, float],
    waits: bool,
    replicas: int,
    degradation: DegradationRules,
    seed: int,
) -> None:
    made = fleet(replicas)
    rules = rules_of(made, degradation=degradation)
    play, ended = played(calls, made, rules, schedule, waits=waits, seed=seed)
    last_s = max(one.ended_s or 0.0 for one in ended)
    left = play.controller.snapshot(last_s)
    assert (left.held_tokens, sum(lane.waiting for lane in left.lanes.values())) == (0, 0)
    assert all(engine.running == engine.waiting == engine.blocks.used == 0 for engine in play.engines)
    for one in ended:
        assert one.end in ("served", "refused", "failed")
        assert one.ended_s is not None
        assert one.ended_s >= one.at_s
        assert 1 <= one.tries <= RETRIES + 1
        if one.end == "served":
            assert (one.generated_tokens, one.left_tokens) == (one.output_tokens, 0)
        if one.end == "refused":
            assert (one.first_token_s, one.generated_tokens) == (None, 0)
        if one.end == "failed":
            assert 0 < one.generated_tokens < one.output_tokens
        if one.first_token_s is not None:
            assert one.at_s < one.first_token_s <= one.ended_s
        if one.restrained_s is not None:
            assert one.refusals > 0
            assert one.lane != "premium" or degradation is CLAMPING
            assert any(schedule.values())
    assert sum(engine.totals.output_tokens for engine in play.engines) == sum(
        one.generated_tokens for one in ended
    )
    _, repeated = played(calls, made, rules, schedule, waits=waits, seed=seed)
    assert told(repeated) == told(ended)


@settings(max_examples=30, deadline=None)
@given(crowds(), st.booleans(), st.sets(st.integers(0, 12).map(lambda n: 5 * n)))
def test_a_forecast_that_asks_for_nothing_is_the_rules_alone(
    calls: list[Call], waits: bool, quiet: set[int]
) -> None:
    made = fleet()
    _, alone = played(calls, made, waits=waits)
    _, told_zero = played(calls, made, tightening=dict.fromkeys(quiet, 0.0), waits=waits)
    assert told(told_zero) == told(alone)
    assert all(one.restrained_s is None for one in alone)


def test_two_calls_on_one_replica_by_hand() -> None:
    # Prefill takes 100 ms. The second comes during it, and is prefilled while the first decodes one token.
    calls = [call(1.0, 100, 3), call(1.05, 100, 3)]
    _, (first, second) = played(calls, fleet())
    assert (first.first_token_s, first.ended_s) == (pytest.approx(1.1), pytest.approx(1.1 + 0.111 + 0.012))
    assert (second.first_token_s, second.ended_s) == (
        pytest.approx(1.1 + 0.111),
        pytest.approx(1.1 + 0.111 + 0.012 + 0.011),
    )
    assert [(one.end, one.tries, one.refusals, one.generated_tokens) for one in (first, second)] == [
        ("served", 1, 0, 3)
    ] * 2


def test_a_call_goes_to_the_replica_with_the_fewest() -> None:
    calls = [call(1.0, 100, 3), call(1.05, 100, 3)]
    _, (_, second) = played(calls, fleet(replicas=2))
    assert (second.first_token_s, second.ended_s) == (pytest.approx(1.15), pytest.approx(1.15 + 2 * 0.011))


def test_what_is_cached_of_a_prompt_is_not_prefilled() -> None:
    _, (one,) = played([call(0.0, 100, 2, cached_tokens=60)], fleet())
    assert one.first_token_s == pytest.approx(0.040)


def full_gate(**changed: object) -> tuple[Fleet, Rules]:
    """A gate that a single call of 3,000 tokens fills: capacity in tokens, not in the engine."""
    made = fleet()
    return made, replace(rules_of(made), capacity_tokens=8_000, **changed)  # type: ignore[arg-type]


LONG = call(0.0, 3_900, 60, "standard", max_tokens=60)


def test_a_refused_client_comes_back_as_the_sdk_does_and_gives_up_after_two_retries() -> None:
    made, rules = full_gate()
    # Standard and batch hold 4,800 tokens together at most; the engine is so slow that the first one stays.
    slow = replace(made, profile=replace(made.profile, decode_base_s=10.0))
    play, (first, second) = played([LONG, replace_at(LONG, 1.0)], slow, rules)
    assert (first.end, first.tries) == ("served", 1)
    assert (second.end, second.tries, second.refusals) == ("refused", RETRIES + 1, RETRIES + 1)
    assert second.ended_s is not None
    assert 1.0 + 2 * 1.0 <= second.ended_s <= 1.0 + 2 * 40.0  # Retry-After is 1 to 30 s, and jittered
    assert play.controller.snapshot(second.ended_s).held_tokens == 0


def test_a_client_that_comes_back_counts_its_wait_from_when_it_sent_first() -> None:
    made, rules = full_gate()
    _, (first, second) = played([LONG, replace_at(LONG, 1.0)], made, rules)
    assert (second.end, second.tries, second.refusals) == ("served", 2, 1)
    assert first.ended_s is not None
    assert second.first_token_s is not None
    assert second.first_token_s > first.ended_s
    assert second.first_token_s == pytest.approx(second.sent_s + 3.9, abs=0.02)
    assert second.sent_s >= second.at_s + 1.0


def test_a_call_that_can_never_go_in_is_sent_once() -> None:
    made, rules = full_gate()
    _, (one,) = played([call(2.0, 5_000, 10)], made, rules)
    assert (one.end, one.tries, one.refusals, one.ended_s) == ("refused", 1, 1, 2.0)


@pytest.mark.parametrize("waits", [False, True])
def test_a_call_waits_at_the_gate_for_its_target_and_then_is_refused(waits: bool) -> None:
    made, rules = full_gate()
    batch = replace_at(LONG, 1.0, lane="batch")
    _, (first, second) = played([LONG, batch], made, rules, waits=waits)
    assert (first.end, second.end) == ("served", "served")
    assert first.ended_s is not None
    if waits:  # 5 s are long enough for the first one to end
        assert (second.tries, second.refusals, second.sent_s) == (1, 0, 1.0)
        assert second.first_token_s == pytest.approx(first.ended_s + 3.9, abs=1e-6)
    else:
        assert (second.tries, second.refusals) == (2, 1)
        assert second.sent_s > 1.0


def test_a_wait_that_is_too_short_ends_in_a_refusal_at_its_end() -> None:
    made, rules = full_gate()
    slow = replace(made, profile=replace(made.profile, decode_base_s=10.0))
    _, (_, second) = played([LONG, replace_at(LONG, 1.0)], slow, rules, waits=True)
    assert (second.end, second.refusals) == ("refused", 3)
    # Three waits of the standard lane's 0.8 s, and Retry-After between them.
    assert second.ended_s is not None
    assert second.ended_s >= 1.0 + 3 * 0.8 + 2 * 1.0


def test_the_lease_of_an_answer_that_runs_does_not_end() -> None:
    made, rules = full_gate()
    slow = replace(made, profile=replace(made.profile, decode_base_s=10.0))  # ten minutes for sixty tokens
    play, (first, second) = played([LONG, replace_at(LONG, 200.0)], slow, replace(rules, lease_s=30.0))
    assert (first.end, second.end) == ("served", "refused")
    assert play.controller.snapshot(1_000.0).expired == 0


def test_a_clamped_answer_and_its_rests_are_one_call() -> None:
    made = fleet()
    # The lane misses its target from its first calls on, so that the gate clamps its answers.
    rules = rules_of(made, degradation=CLAMPING, breach=BreachRules(least_requests=2.0))
    early = [call(0.1 * n, 2_000, 2) for n in range(4)]
    play, calls = played([*early, call(20.0, 100, 3 * CLAMP)], made, rules)
    last = calls[-1]
    assert (last.end, last.generated_tokens, last.tries) == ("served", 3 * CLAMP, 1)
    assert last.first_token_s == pytest.approx(20.1)
    # Each rest begins with a prefill of one token, in place of a decode step.
    assert last.ended_s == pytest.approx(20.1 + 2 * 0.001 + 0.011 * 21, abs=0.011)
    assert play.controller.snapshot(21.0).held_tokens == 0
    assert sum(engine.totals.finished for engine in play.engines) == len(calls) + 2


def test_a_forecast_refuses_what_the_rules_let_in_and_that_is_noted() -> None:
    made = fleet()
    rules = rules_of(made)
    # Batch may hold 60 % of 9,600 tokens, and a fifth of that at full tightening.
    calls = [call(0.0, 10, 2), call(12.0, 3_000, 2_000, "batch", max_tokens=2_000)]
    _, (_, alone) = played(calls, made, rules)
    _, (_, held) = played(calls, made, rules, {0: 1.0, 5: 1.0, 10: 1.0})
    assert (alone.refusals, alone.restrained_s) == (0, None)
    assert (held.refusals >= 1, held.restrained_s, held.end) == (True, 12.0, "served")


def test_premium_is_never_held_up_by_a_forecast() -> None:
    made = fleet()
    calls = [call(float(n), 2_000, 20, "premium", max_tokens=20) for n in range(20)]
    _, alone = played(calls, made)
    _, held = played(calls, made, tightening=dict.fromkeys(range(0, 60, 5), 1.0))
    assert told(held) == told(alone)


def test_progress_is_told_up_to_the_last_calls() -> None:
    made, shares = fleet(replicas=4), []
    calls = [call(n / 100, 1, 1, max_tokens=1) for n in range(2_500)]
    Play(calls, made, rules_of(made), {}, waits=False, seed=0).run(shares.append)
    assert shares == [0.4, 0.8]


def test_nothing_to_play_ends_at_once() -> None:
    play, _ = played([], fleet())
    assert play.controller.snapshot(0.0).held_tokens == 0


def replace_at(one: Call, at_s: float, **changed: object) -> Call:
    """The same call at another time."""
    again = deepcopy(one)
    again.at_s = at_s
    for name, value in changed.items():
        setattr(again, name, value)
    return again
