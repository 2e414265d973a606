"""The rules as their users meet them; reports of what went wrong elsewhere are cited by address."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from serving.controller.decide import Controller
from serving.controller.decision import Decision, RequestFacts
from serving.controller.rules import Rules


def make(capacity_tokens: int = 50_000, **settings) -> Controller:
    return Controller(Rules(capacity_tokens=capacity_tokens, **settings), random=Random(1))


def ask(prompt_tokens: int = 500, max_tokens: int | None = 500, **facts) -> RequestFacts:
    return RequestFacts(prompt_tokens=prompt_tokens, max_tokens=max_tokens, **facts)


def teach(controller: Controller, output_tokens: int, now_s: float = 0.0, times: int = 100, **facts) -> None:
    for _ in range(times):
        decision = controller.admit(RequestFacts(1, **facts), now_s)
        controller.settle(decision.reservation_id, output_tokens, now_s)


@pytest.mark.parametrize("repeat", range(100))
def test_concurrent_requests_never_overshoot(repeat):
    """https://github.com/BerriAI/litellm/issues/34732: check, then spend, overshot the limit."""
    controller = make(50_000)

    async def one() -> Decision:
        await asyncio.sleep(0)
        return controller.admit(ask(lane="premium"), 0.0)

    async def all_at_once() -> list[Decision]:
        return await asyncio.gather(*(one() for _ in range(100)))

    decisions = asyncio.run(all_at_once())
    assert sum(decision.admitted for decision in decisions) == 50
    assert {decision.reason for decision in decisions if not decision.admitted} == {"saturated"}
    assert controller.snapshot(0.0).held_tokens == 50_000


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads that interrupt one another after microseconds, where a gap would show."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before_s)


@pytest.mark.usefixtures("hasty_threads")
def test_threads_never_overshoot():
    controller = make(50_000)
    start = threading.Barrier(8)

    def client(_: int) -> None:
        start.wait()
        open_ids = []
        for _ in range(5_000):
            decision = controller.admit(ask(lane="premium"), 0.0)
            if decision.admitted:
                open_ids.append(decision.reservation_id)
            elif open_ids:
                assert controller.settle(open_ids.pop(), 500, 0.0)
        for reservation_id in open_ids:
            assert controller.settle(reservation_id, 500, 0.0)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(client, range(8)))

    after = controller.snapshot(0.0)
    premium = after.lanes["premium"]
    assert (after.held_tokens, premium.held_tokens, after.reservations) == (0, 0, 0)
    assert premium.admitted + sum(premium.refused.values()) == 40_000
    assert premium.refused["saturated"] > 0


def test_a_budget_of_tokens_tells_long_prompts_from_short_ones():
    """https://github.com/sgl-project/sglang/pull/34011: eight long prompts killed a server."""
    for prompt_tokens, admitted in ((499_999, 2), (3_999, 8)):
        controller = make(1_000_000)
        decisions = [controller.admit(ask(prompt_tokens, 1, lane="premium"), 0.0) for _ in range(8)]
        assert sum(decision.admitted for decision in decisions) == admitted


def test_a_missing_or_huge_limit_reserves_what_the_tenant_needs():
    """https://github.com/BerriAI/litellm/pull/27509: it reserved all headroom."""
    controller, random = make(), Random(2)
    for _ in range(400):
        decision = controller.admit(ask(1, None, tenant="a"), 0.0)
        controller.settle(decision.reservation_id, max(1, round(random.gauss(200, 50))), 0.0)

    huge, missing = (controller.admit(ask(1, limit, tenant="a"), 1.0) for limit in (1_000_000, None))
    assert huge.expected_output_tokens == missing.expected_output_tokens
    assert 200 < missing.expected_output_tokens < 350


def test_of_two_limits_the_larger_counts():
    """https://github.com/BerriAI/litellm/pull/34223: max_tokens=1 slipped past the reservation."""
    controller = make()
    teach(controller, 20_000, tenant="a")
    decision = controller.admit(ask(1, 1, max_completion_tokens=5_000, tenant="a"), 0.0)

    assert decision.expected_output_tokens == 5_000


def test_every_answer_that_is_generated_is_reserved():
    controller = make()

    assert controller.admit(ask(1, 100, n=3), 0.0).expected_output_tokens == 300
    assert controller.admit(ask(1, 100, n=3, best_of=5), 0.0).expected_output_tokens == 500


def test_each_of_several_answers_is_learned_as_one():
    controller = make()
    for _ in range(20):
        decision = controller.admit(ask(1, None, n=5, tenant="a"), 0.0)
        controller.settle(decision.reservation_id, 500, 0.0)

    assert 90 <= controller.admit(ask(1, None, tenant="a"), 0.0).expected_output_tokens <= 110


def test_a_tiny_prompt_with_a_large_limit_enters_an_idle_engine():
    """https://github.com/jundot/omlx/issues/1885: a guard that scaled with max_tokens refused it."""
    assert make().admit(ask(10, 4_096), 0.0).admitted


def test_streams_cut_at_any_point_leak_nothing():
    """https://github.com/BerriAI/litellm/pull/30522: refusals at 805 of 800 with 280 really spent."""
    controller, random = make(10_000_000), Random(4)
    for number in range(1_000):
        decision = controller.admit(ask(), number * 0.01)
        end = random.choice(["gone", "cancelled", "settled", "settled twice"])
        if end == "cancelled":
            controller.cancel(decision.reservation_id, number * 0.01)
        if end.startswith("settled"):
            assert controller.settle(decision.reservation_id, random.randrange(500), number * 0.01)
        if end == "settled twice":
            assert not controller.settle(decision.reservation_id, 7, number * 0.01)

    after = controller.snapshot(10.0 + 120.0)
    assert (after.held_tokens, after.reservations) == (0, 0)
    assert after.expired > 0
    assert after.unknown_reservations > 0


def test_a_renewed_stream_outlives_its_first_lease():
    controller = make()
    decision = controller.admit(ask(), 0.0)
    assert controller.renew(decision.reservation_id, 100.0)

    assert controller.snapshot(200.0).reservations == 1
    assert controller.snapshot(220.0).reservations == 0
    assert not controller.renew(decision.reservation_id, 221.0)


def test_premium_is_not_shed_with_everyone_else():
    """https://github.com/ai-dynamo/dynamo/issues/12298: priority traffic met the same cap as all."""
    controller = make()
    controller.observe_engine(0.0, queue_depth=1e6, batch_tokens=1e9, kv_miss_rate=1.0)

    refused = controller.admit(ask(), 1.0)
    assert (refused.reason, refused.backpressure) == ("backpressure", pytest.approx(1.0))
    assert controller.admit(ask(lane="premium"), 1.0).admitted


def test_premium_meets_its_true_capacity():
    controller = make(50_000)
    decisions = [controller.admit(ask(lane="premium"), 0.0) for _ in range(51)]

    assert [decision.admitted for decision in decisions[-2:]] == [True, False]
    assert decisions[-1].reason == "saturated"


def test_kinds_of_refusal_are_told_apart_and_advised_apart():
    """https://github.com/vllm-project/production-stack/pull/876: they all looked the same."""
    full = make(50_000)
    for _ in range(50):
        full.admit(ask(lane="premium"), 0.0)
    budget = make(50_000)
    for _ in range(30):
        budget.admit(ask(), 0.0)
    pressed = make(50_000)
    pressed.observe_engine(0.0, queue_depth=1e6, kv_miss_rate=1.0, batch_tokens=1e9)
    asked = ask(5_000, deadline_ms=100.0)
    decisions = [
        make().admit(asked, 0.0),
        make().admit(ask(50_001), 0.0),
        full.admit(ask(), 0.0),
        pressed.admit(ask(), 0.0),
        budget.admit(ask(), 0.0),
    ]

    reasons = ["deadline", "too_large", "saturated", "backpressure", "lane_budget"]
    assert [decision.reason for decision in decisions] == reasons
    assert [decision.retry for decision in decisions] == [False, False, True, True, True]
    assert [decision.retry_after_ms is None for decision in decisions] == [True, True, False, False, False]


def test_a_deadline_that_prefill_can_meet_is_no_reason():
    assert make().admit(ask(2_000, deadline_ms=193.0), 0.0).admitted
    assert not make().admit(ask(2_000, deadline_ms=192.0), 0.0).admitted


def test_an_idle_hour_leaves_the_gate_open():
    """https://github.com/ai-dynamo/dynamo/issues/6985: no traffic gave 0/0 and skipped turns."""
    controller = make()
    controller.admit(ask(), 0.0)

    assert controller.admit(ask(), 3_600.0).admitted
    assert controller.snapshot(3_600.0).reservations == 1


def test_without_telemetry_the_own_count_decides():
    """https://github.com/kedacore/keda/issues/3065: nulls became 0 and everything shrank at peak."""
    controller = make(100_000)
    for _ in range(86):
        controller.admit(ask(lane="premium"), 0.0)
    controller.observe_engine(0.0)

    refused = controller.admit(ask(), 0.0)
    assert (refused.reason, refused.backpressure) == ("backpressure", 0.86)


def test_one_engine_behind_two_model_names_has_one_budget():
    """https://github.com/BerriAI/litellm/issues/41957: limits differed by alias."""
    controller = make(50_000)
    names = ["llama", "llama-alias"] * 30
    decisions = [controller.admit(ask(model=name, lane="premium"), 0.0) for name in names]

    assert sum(decision.admitted for decision in decisions) == 50


def test_an_unknown_lane_is_judged_as_standard_and_counted():
    controller = make()
    lanes = [controller.admit(ask(lane=lane), 0.0).lane for lane in ("gold", None, "batch")]

    assert lanes == ["standard", "standard", "batch"]
    assert controller.snapshot(0.0).unknown_lanes == 1


def test_a_breach_stays_in_its_lane():
    controller = make(50_000)
    while controller.admit(ask(lane="batch", tenant="hog"), 0.0).admitted:
        pass
    refused = controller.admit(ask(lane="standard"), 0.0)
    assert refused.reason == "lane_budget"

    held = controller.snapshot(0.0).lanes["batch"].held_tokens
    for number in range(1, 11):
        controller.settle(f"r{number}", 500, 0.5)
    for _ in range(10):
        assert controller.admit(ask(lane="batch", tenant="hog"), 0.6).reason == "lane_budget"
        assert controller.admit(ask(lane="standard"), 0.6).admitted
    assert controller.snapshot(0.6).lanes["batch"].held_tokens == held - 10_000
    assert controller.admit(ask(lane="premium"), 0.6).admitted


def test_full_tightening_sheds_early_and_says_that_it_did():
    controller = make(50_000)
    for _ in range(12):
        assert controller.admit(ask(lane="batch"), 0.0).admitted
    controller.set_tightening(1.0, 0.0)
    shed = controller.admit(ask(lane="batch"), 5.0)

    assert (shed.reason, shed.tightened, shed.tightening) == ("lane_budget", True, 1.0)
    assert controller.admit(ask(lane="premium"), 5.0).admitted
    assert controller.snapshot(5.0).lanes["batch"].tightened == 1


@pytest.mark.parametrize(("spares_s", "brief", "long"), [(15.0, True, False), (0.0, False, False)])
def test_who_has_ended_before_the_burst_comes_is_not_tightened(spares_s, brief, long):
    controller = make(100_000, max_tightening_change_per_s=10.0, tightening_spares_s=spares_s)
    controller.admit(ask(12_000, 1, lane="batch"), 0.0)
    controller.set_tightening(1.0, 0.0)

    assert controller.admit(ask(1_000, 100, lane="batch"), 5.0).admitted == brief
    assert controller.admit(ask(1_000, 1_000, lane="batch"), 5.0).admitted == long


def test_who_runs_longer_than_a_burst_is_away_is_tightened_however_few_its_tokens():
    controller = make(100_000, max_tightening_change_per_s=10.0)
    controller.admit(ask(12_000, 1, lane="batch"), 0.0)
    controller.set_tightening(1.0, 0.0)

    shed = controller.admit(ask(1, 512, lane="batch"), 5.0)  # 25 s of decode
    assert (shed.admitted, shed.reason, shed.tightened) == (False, "lane_budget", True)


def test_tightening_lowers_the_threshold_of_hard_rejection():
    controller = make(50_000)
    controller.observe_engine(0.0, queue_depth=5_000, batch_tokens=25_000, kv_miss_rate=0.9)
    assert controller.admit(ask(), 0.0).admitted
    controller.set_tightening(1.0, 0.0)
    shed = controller.admit(ask(), 5.0)

    assert (shed.reason, shed.tightened) == ("backpressure", True)
    assert shed.backpressure == pytest.approx(0.4 * 0.5 + 0.3 + 0.27)


def test_a_refusal_that_the_rules_would_make_too_is_not_the_forecasts():
    controller = make(50_000)
    controller.set_tightening(1.0, 0.0)
    controller.observe_engine(5.0, queue_depth=1e6, batch_tokens=1e9, kv_miss_rate=1.0)

    assert not controller.admit(ask(), 5.0).tightened


def test_what_the_forecast_sheds_calls_no_loan_back():
    controller = make(100_000, max_tightening_change_per_s=10.0)
    for _ in range(40):
        controller.admit(ask(), 0.0)
    for _ in range(15):
        controller.admit(ask(lane="batch"), 0.0)
    controller.set_tightening(1.0, 0.0)
    shed = controller.admit(ask(2_500), 5.0)
    controller.set_tightening(0.0, 5.0)

    assert shed.tightened
    assert controller.admit(ask(lane="batch"), 5.2).admitted


def test_looking_changes_nothing_even_when_leases_end_in_between():
    watched, alone = make(50_000, lease_s=30.0), make(50_000, lease_s=30.0)
    for controller in (watched, alone):
        for _ in range(50):
            controller.admit(ask(lane="premium"), 0.0)
        for number in range(1, 9):
            controller.renew(f"r{number}", 20.0)
    for now_s in range(20, 40):
        watched.snapshot(now_s)

    assert watched.snapshot(40.0) == alone.snapshot(40.0)


def test_first_tokens_are_counted_against_the_lanes_target():
    controller = make()
    for ttft_ms in (100.0, 200.0, 201.0, None):
        decision = controller.admit(ask(lane="premium"), 0.0)
        controller.settle(decision.reservation_id, 10, 0.0, ttft_ms)

    premium = controller.snapshot(0.0).lanes["premium"]
    assert (premium.ttft_met, premium.ttft_missed) == (2, 1)


def test_a_failed_request_teaches_nothing():
    controller = make()
    for output_tokens in [0, None, -5] * 10:
        decision = controller.admit(ask(1, None, tenant="a"), 0.0)
        controller.settle(decision.reservation_id, output_tokens, 0.0)

    assert controller.admit(ask(1, None, tenant="a"), 0.0).expected_output_tokens == 512
    assert controller.snapshot(0.0).unknown_outputs == 30


def test_a_reservation_of_another_process_is_unknown():
    before = Controller(id_prefix="a-").admit(ask(), 0.0)
    after = Controller(id_prefix="b-")
    after.admit(ask(), 0.0)

    assert not after.settle(before.reservation_id, 10, 1.0)
    assert after.snapshot(1.0).reservations == 1
