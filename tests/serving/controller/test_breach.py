"""A lane that misses its own target for the first token degrades before it refuses, and alone."""

from random import Random

import pytest

from data.errors import InputError
from data.schema import LANES
from serving.controller.breach import Breach, BreachRules
from serving.controller.decide import Controller
from serving.controller.decision import Decision, RequestFacts
from serving.controller.rules import Rules


def make(**settings) -> Controller:
    return Controller(Rules(capacity_tokens=100_000, **settings), random=Random(1))


def served(
    controller: Controller, lane: str, ttft_ms: float, count: int = 40, output_tokens: int = 3_000
) -> None:
    for _ in range(count):
        decision = controller.admit(RequestFacts(100, lane, lane=lane), 0.0)
        assert controller.settle(decision.reservation_id or "", output_tokens, 0.0, ttft_ms=ttft_ms)


def ask(controller: Controller, lane: str, now_s: float = 1.0) -> Decision:
    return controller.admit(RequestFacts(100, lane, lane=lane, max_tokens=4_000), now_s)


@pytest.mark.parametrize("lane", LANES)
def test_a_breach_clamps_its_own_lane_and_no_other(lane):
    controller = make()
    for name in LANES:
        served(controller, name, ttft_ms=10_000.0 if name == lane else 100.0)
    clamps = {name: ask(controller, name).clamp_output_tokens for name in LANES}

    assert clamps == {name: 1_024 if name == lane else None for name in LANES}
    assert [name for name in LANES if controller.snapshot(1.0).lanes[name].breached] == [lane]


def test_a_breached_lane_has_room_for_more_before_it_refuses():
    counts = []
    for ttft_ms in (100.0, 10_000.0):
        controller, count = make(), 0
        served(controller, "batch", ttft_ms)
        while ask(controller, "batch").admitted:
            count += 1
        counts.append(count)

    assert counts[1] > 2 * counts[0]


def test_a_breach_refuses_nothing_that_is_admitted_without_it():
    for lane in LANES:
        large = RequestFacts(33_000, lane=lane, max_tokens=500)
        calm, breached = make(), make()
        served(breached, lane, 10_000.0)
        assert calm.admit(large, 1.0).admitted
        assert breached.admit(large, 1.0).admitted


def test_the_rest_of_an_answer_that_a_breach_clamped_can_be_asked_for():
    controller = make()
    served(controller, "standard", 10_000.0)
    handle = ask(controller, "standard").continuation
    rest = controller.admit(RequestFacts(1_124, "standard", max_tokens=4_000, continuation=handle), 100.0)

    assert (rest.admitted, rest.clamp_output_tokens) == (True, 2_976)


def test_few_misses_say_nothing_and_a_breach_ends_when_targets_are_met_or_nothing_is_heard():
    few, over, silent = (Breach(BreachRules()) for _ in range(3))
    for _ in range(9):
        few.note(missed=True, now_s=0.0)
    for breach in (over, silent):
        for _ in range(20):
            breach.note(missed=True, now_s=0.0)
    for second in range(120):
        over.note(missed=False, now_s=float(second))

    assert few.until_s < 0
    assert over.until_s < 0
    assert silent.until_s == BreachRules().memory_s


def test_a_share_between_the_bounds_keeps_what_stands():
    calm, breached = Breach(BreachRules()), Breach(BreachRules())
    for _ in range(20):
        breached.note(missed=True, now_s=0.0)
    for number in range(600):
        for breach in (calm, breached):
            breach.note(missed=number % 6 == 5, now_s=number * 0.2)

    assert calm.until_s < 0
    assert breached.until_s > 120.0


def test_bounds_are_rules_and_a_share_of_1_never_breaches():
    quick = make(breach=BreachRules(memory_s=5.0, least_requests=3.0))
    never = make(breach=BreachRules(begins_over=1.0))
    for controller, count in ((quick, 3), (never, 100)):
        served(controller, "standard", 10_000.0, count)

    assert [quick.snapshot(at_s).lanes["standard"].breached for at_s in (4.0, 6.0)] == [True, False]
    assert not never.snapshot(1.0).lanes["standard"].breached


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"memory_s": 0.0}, "breach.memory_s must be over 0"),
        ({"least_requests": float("inf")}, "breach.least_requests must be over 0 and finite"),
        ({"begins_over": 1.5}, r"breach.begins_over must be in \(0, 1\]; got 1.5"),
        ({"begins_over": 0.1, "ends_under": 0.2}, "ends_under must be over 0 and not over begins_over"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(told, message):
    with pytest.raises(InputError, match=message):
        BreachRules(**told)
