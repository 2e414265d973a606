"""An overloaded engine as clients of the controller meet it: clamped, swapped, routed, short of KV blocks."""

from random import Random

import pytest

from serving.controller.decide import Controller
from serving.controller.decision import Decision, RequestFacts
from serving.controller.degradation import DegradationRules
from serving.controller.engine_model import A100, H100
from serving.controller.overload import capped
from serving.controller.quota import Quota
from serving.controller.rules import LaneRule, Rules
from serving.controller.tenants import TenantLimits
from serving.controller.waiting import Ticket

DEEP = 6_000
SMALLER = DegradationRules(smaller_models={"llama-70b": "llama-8b"})


def make(capacity_tokens: int = 100_000, **settings) -> Controller:
    return Controller(Rules(capacity_tokens=capacity_tokens, **settings), random=Random(1))


def overloaded(step: int = 1, capacity_tokens: int = 100_000, **settings) -> Controller:
    """A controller whose engine has had a deep queue until the ladder stands at ``step`` at 30 s."""
    # The queue's own term of backpressure stays at 0: this is about the ladder.
    controller = make(capacity_tokens, alpha=1.0, beta=0.0, gamma=0.0, **settings)
    for now_s in range(30 - 10 * (step - 1), 31, 5):
        controller.observe_engine(float(now_s), queue_depth=DEEP)
    assert controller.snapshot(30.0).degradation == step
    return controller


def ask(prompt_tokens: int = 500, max_tokens: int | None = 4_000, **facts) -> RequestFacts:
    return RequestFacts(prompt_tokens, max_tokens=max_tokens, **{"tenant": "acme", **facts})


def long_answers(controller: Controller, tokens: int = 3_000) -> None:
    for _ in range(100):
        decision = controller.admit(ask(1, None), 30.0)
        controller.settle(decision.reservation_id, tokens, 30.0)


def said(decision: Decision) -> tuple[int, int | None, str | None, str | None]:
    return decision.degradation, decision.clamp_output_tokens, decision.model, decision.pool


def test_each_step_shows_in_the_decision():
    asked = ask(6_000, model="llama-70b")
    steps = [overloaded(step, degradation=SMALLER).admit(asked, 30.0) for step in (1, 2, 3)]

    assert said(make(degradation=SMALLER).admit(asked, 30.0)) == (0, None, None, None)
    assert [said(decision) for decision in steps] == [
        (1, 1_024, None, None),
        (2, 1_024, "llama-8b", None),
        (3, 1_024, "llama-8b", "cold"),
    ]


def test_a_busy_gpu_degrades_like_a_deep_queue():
    controller = make()
    controller.observe_engine(0.0, gpu_util=0.93)

    assert said(controller.admit(ask(), 0.0)) == (1, 1_024, None, None)


def test_short_answers_are_left_as_they_are():
    decision = overloaded().admit(ask(max_tokens=1_024), 30.0)

    assert (decision.clamp_output_tokens, decision.continuation) == (None, None)


def test_a_model_without_a_smaller_one_stays():
    assert overloaded(2, degradation=SMALLER).admit(ask(model="mixtral"), 30.0).model is None


def test_known_prefixes_and_short_requests_stay_in_the_hot_pool():
    controller = overloaded(3)

    assert controller.admit(ask(6_000, 100), 30.0).pool == "cold"
    assert controller.admit(ask(6_000, 100, cached_tokens=4_000), 30.0).pool == "hot"
    assert controller.admit(ask(1_000, 100), 30.0).pool == "hot"


def test_premium_is_clamped_by_overload_and_spared_the_rest():
    decision = overloaded(3, degradation=SMALLER).admit(ask(40_000, lane="premium", model="llama-70b"), 30.0)

    assert decision.admitted
    assert said(decision) == (3, 1_024, None, "hot")


def test_a_very_large_request_waits_for_calm():
    controller = overloaded(capacity_tokens=200_000)
    refused = controller.admit(ask(31_600), 30.0)
    assert (refused.reason, refused.retry, refused.degradation) == ("degraded", True, 1)
    assert 29 <= (refused.retry_after_s or 0) <= 30
    assert controller.admit(ask(31_000), 30.0).admitted

    assert make().admit(ask(31_600), 30.0).admitted
    assert controller.admit(ask(31_600), 61.0).admitted  # nothing was heard of the engine for 30 s


def test_a_very_large_request_takes_nobodys_turn_to_come_back():
    controller = overloaded(capacity_tokens=60_000)
    for _ in range(50):
        assert controller.admit(ask(31_600), 30.0).reason == "degraded"
    while (decision := controller.admit(ask(500, 500), 30.0)).admitted:
        pass

    assert decision.reason == "lane_budget"
    assert (decision.retry_after_s or 30) < 10


def test_what_is_held_is_what_the_clamp_allows():
    controller = overloaded()
    long_answers(controller)
    held = controller.snapshot(30.0).held_tokens
    decision = controller.admit(ask(), 30.0)

    assert decision.expected_output_tokens == 1_024
    assert controller.snapshot(30.0).held_tokens - held == 500 + 1_024


def test_an_answer_that_reached_its_clamp_teaches_no_shorter_answers():
    controller = make()
    long_answers(controller)
    for _ in range(200):
        controller.observe_engine(30.0, queue_depth=DEEP)
        decision = controller.admit(ask(), 30.0)
        controller.settle(decision.reservation_id, 1_024, 30.0)

    assert controller.admit(ask(), 100.0).expected_output_tokens > 2_500


def test_a_full_lane_takes_clamped_answers_before_it_refuses():
    calm, degraded = make(40_000), overloaded(capacity_tokens=40_000)
    admitted = []
    for controller in (calm, degraded):
        long_answers(controller)
        count = 0
        while controller.admit(ask(), 30.0).admitted:
            count += 1
        admitted.append(count)

    assert admitted[1] > 2 * admitted[0]


def test_the_rest_of_an_answer_is_the_same_request():
    controller = overloaded(3, degradation=SMALLER)
    first = controller.admit(ask(6_000, 2_500, lane="batch", model="llama-70b"), 30.0)
    second = controller.admit(
        ask(7_024, 2_500, lane="premium", model="llama-70b", continuation=first.continuation), 31.0
    )
    third = controller.admit(ask(8_048, 2_500, continuation=second.continuation), 100.0)

    assert [decision.lane for decision in (first, second, third)] == ["batch"] * 3
    assert [decision.clamp_output_tokens for decision in (first, second, third)] == [1_024, 1_024, 452]
    assert [decision.model for decision in (first, second, third)] == ["llama-8b"] * 3
    assert [decision.pool for decision in (first, second, third)] == ["cold"] * 3
    assert third.continuation is None
    assert controller.snapshot(100.0).continuations == 0


def test_an_answer_without_a_limit_goes_on_to_the_largest_request():
    controller = overloaded()
    first = controller.admit(ask(max_tokens=None), 30.0)
    rest = controller.admit(ask(1_524, None, continuation=first.continuation), 100.0)

    assert rest.clamp_output_tokens == 32_000 - 1_024


def test_the_rest_of_an_answer_is_not_asked_to_wait_again():
    controller = make()
    controller.observe_engine(0.0, queue_depth=DEEP, kv_miss_rate=0.0)
    first = controller.admit(ask(), 0.0)
    controller.observe_engine(1.0, queue_depth=DEEP, kv_miss_rate=1.0, batch_tokens=1e9)

    assert controller.admit(ask(1_524), 1.0).reason == "backpressure"
    assert controller.admit(ask(1_524, continuation=first.continuation), 1.0).admitted


def test_the_rest_of_an_answer_waits_for_true_capacity_and_keeps_its_handle():
    controller = overloaded(capacity_tokens=20_000)
    first = controller.admit(ask(), 30.0)
    other = controller.admit(ask(15_000, 1_000, lane="premium"), 30.0)
    refused = controller.admit(ask(4_000, continuation=first.continuation), 30.0)
    assert refused.reason == "saturated"

    controller.settle(other.reservation_id, 10, 31.0)
    assert controller.admit(ask(4_000, continuation=first.continuation), 31.0).admitted
    assert controller.snapshot(31.0).unknown_continuations == 0


def test_the_rest_of_an_answer_is_charged_once():
    """The prompt comes back with the answer so far: both were paid for with the first part."""
    quota = TenantLimits(hourly=Quota(10_000))
    controller = overloaded(tenants={"acme": quota})
    first = controller.admit(ask(4_000, 1_500), 30.0)
    controller.settle(first.reservation_id, 1_024, 31.0)
    rest = controller.admit(ask(5_024, 1_500, continuation=first.continuation), 31.0)
    assert rest.admitted
    controller.settle(rest.reservation_id, 476, 32.0)

    assert controller.admit(ask(5_000, 1), 32.0).reason == "tenant_quota"
    assert controller.admit(ask(4_499, 1), 32.0).admitted


def test_a_longer_prompt_than_was_paid_for_is_charged():
    controller = overloaded(tenants={"acme": TenantLimits(hourly=Quota(10_000))})
    first = controller.admit(ask(1_000, 1_500), 30.0)
    controller.settle(first.reservation_id, 1_024, 31.0)

    assert (
        controller.admit(ask(12_000, 1_500, continuation=first.continuation), 31.0).reason == "tenant_quota"
    )


def test_a_handle_of_another_tenant_is_a_request_of_its_own_and_counted():
    controller = overloaded()
    first = controller.admit(ask(lane="premium"), 30.0)
    stolen = controller.admit(ask(tenant="other", lane="batch", continuation=first.continuation), 30.0)

    assert stolen.lane == "batch"
    assert controller.snapshot(30.0).unknown_continuations == 1
    assert controller.snapshot(30.0).continuations == 2


def test_the_rest_of_an_answer_does_not_wait_but_who_makes_a_handle_up_waits_like_others():
    controller = overloaded(capacity_tokens=10_000)
    first = controller.admit(ask(lane="premium"), 30.0)
    controller.settle(first.reservation_id, 1_024, 30.0)
    assert controller.admit(ask(8_900, 1_000, lane="premium"), 30.0).admitted
    rest = ask(1_524, lane="premium", continuation=first.continuation)
    made_up = ask(1_524, lane="premium", continuation="0" * 32)

    assert controller.enqueue(rest, 30.0, 500.0).reason == "saturated"
    ticket = controller.enqueue(made_up, 30.0, 500.0)
    assert isinstance(ticket, Ticket)
    [(answered, decision)] = controller.advance(31.0)
    assert (answered, decision.reason) == (ticket, "wait_expired")


def test_handles_come_from_the_operating_system_where_nobody_seeds_them(monkeypatch):
    """Those of a Mersenne Twister can be told from others of it."""
    monkeypatch.setattr("random._urandom", lambda length: b"\xab" * length)
    controllers = [Controller(Rules(), random=random) for random in (None, Random(1), Random(1))]
    for controller in controllers:
        controller.observe_engine(30.0, queue_depth=DEEP)
    own, *seeded = (controller.admit(ask(), 30.0).continuation for controller in controllers)

    assert own == "ab" * 16
    assert seeded[0] == seeded[1] != own


def test_several_answers_are_clamped_and_have_no_one_rest():
    decision = overloaded().admit(ask(n=2), 30.0)

    assert (decision.clamp_output_tokens, decision.continuation) == (1_024, None)


def test_a_forecast_degrades_earlier_and_lets_nothing_more_in():
    degradation = DegradationRules(cut=0.2)
    controllers = [make(degradation=degradation, max_tightening_change_per_s=1e9) for _ in range(2)]
    controllers[1].set_tightening(1.0, 29.0)
    for controller in controllers:
        controller.observe_engine(30.0, queue_depth=4_500)
    rules, tight = (controller.admit(ask(), 30.0) for controller in controllers)
    assert said(rules) == (0, None, None, None)
    assert said(tight) == (1, 1_024, None, None)
    assert said(controllers[1].admit(ask(lane="premium"), 30.0)) == (0, None, None, None)

    shed = controllers[1].admit(ask(31_600), 30.0)
    assert (shed.reason, shed.tightened) == ("degraded", True)
    assert controllers[0].admit(ask(31_600), 30.0).admitted


def test_what_a_forecast_clamps_takes_no_room_that_the_rules_would_refuse():
    no_cut = LaneRule(0.45, 800.0)
    controller = make(standard=no_cut, alpha=1.0, beta=0.0, gamma=0.0, max_tightening_change_per_s=1e9)
    long_answers(controller)
    while controller.admit(ask(), 30.0).admitted:
        pass
    controller.set_tightening(1.0, 30.0)
    controller.observe_engine(31.0, queue_depth=4_900)
    refused = controller.admit(ask(), 31.0)

    assert controller.snapshot(31.0).degradation == 1
    assert (refused.reason, refused.tightened) == ("lane_budget", False)


def test_preemptions_shrink_what_may_be_held_and_nothing_is_dropped():
    controller = make(50_000)
    ids = [controller.admit(ask(500, 500, lane="premium"), 0.0).reservation_id for _ in range(50)]
    for now_s in (0.0, 5.0, 10.0):
        controller.observe_engine(now_s, preemptions_per_s=2.0)
    state = controller.snapshot(10.0)
    assert (state.capacity_tokens, state.usable_tokens, state.held_tokens) == (50_000, 36_450, 50_000)
    assert (state.reservations, state.kv_shrinks, state.backpressure) == (50, 3, 1.0)

    for reservation_id in ids[:15]:
        assert controller.admit(ask(500, 500, lane="premium"), 11.0).reason == "saturated"
        assert controller.settle(reservation_id, 500, 11.0)
    assert controller.admit(ask(500, 500, lane="premium"), 11.0).admitted


def test_premium_keeps_its_share_of_what_can_be_used():
    controller = make(50_000)
    for now_s in range(0, 50, 5):
        controller.observe_engine(float(now_s), preemptions_per_s=2.0)
    assert controller.snapshot(45.0).usable_tokens == 25_000
    while controller.admit(ask(500, 500), 45.0).admitted:
        pass

    assert sum(controller.admit(ask(500, 500, lane="premium"), 45.0).admitted for _ in range(20)) >= 10


def test_calm_brings_the_capacity_back():
    controller = make(50_000)
    controller.observe_engine(0.0, allocation_failures=3)
    controller.observe_engine(5.0, allocation_failures=4)
    assert controller.snapshot(5.0).usable_tokens == 45_000
    for now_s in range(10, 120, 5):
        controller.observe_engine(float(now_s), allocation_failures=4)

    assert controller.snapshot(115.0).usable_tokens == 50_000


def test_an_engine_that_has_gone_silent_has_its_whole_capacity_again():
    controller = make(50_000)
    controller.observe_engine(0.0, preemptions_per_s=1.0)

    assert controller.snapshot(600.0).usable_tokens == 45_000
    assert controller.snapshot(601.0).usable_tokens == 50_000


def test_the_saturation_point_follows_what_is_learned():
    controller = make()
    before = controller.snapshot(0.0)
    for _ in range(400):
        controller.learn_engine(
            ttft_mean_s=A100.prefill_s(4_000),
            waiting=0,
            prompt_tokens_per_s=8_000.0,
            requests_per_s=2.0,
            prefix_hit_rate=0.0,
        )
    after = controller.snapshot(0.0)

    assert before.engine is H100
    assert (after.prefill_learned.enough, after.decode_learned.enough) == (True, False)
    assert after.lanes["batch"].saturation_requests < 0.6 * before.lanes["batch"].saturation_requests


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), -1.0])
def test_impossible_readings_change_nothing_and_are_counted(value):
    controller = make()
    controller.observe_engine(
        0.0, queue_depth=value, gpu_util=value, preemptions_per_s=value, allocation_failures=value
    )
    controller.learn_engine(running=value, tpot_mean_s=value)
    state = controller.snapshot(0.0)

    assert said(controller.admit(ask(), 0.0)) == (0, None, None, None)
    assert (state.degradation, state.usable_tokens, state.decode_learned.readings) == (0, 100_000, 0)
    assert state.dropped_readings >= 6


def test_a_limit_caps_another():
    assert capped(2_000, 976) == 976
