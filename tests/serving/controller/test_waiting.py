"""Waiting as its users meet it; reports of what went wrong elsewhere are cited by address."""

from collections import Counter
from random import Random

import pytest

from serving.controller.decide import Controller
from serving.controller.decision import Decision, RequestFacts
from serving.controller.quota import Quota
from serving.controller.rules import LaneRule, Rules
from serving.controller.tenants import TenantLimits
from serving.controller.waiting import Ticket


def make(capacity_tokens: int = 50_000, **settings) -> Controller:
    """A controller without hard rejection: its own count alone decides."""
    settings = {"hard_reject_above": 1.0, "hard_reject_cut": 0.0, "max_wait_ms": 1e9, **settings}
    return Controller(Rules(capacity_tokens=capacity_tokens, **settings), random=Random(1))


def ask(tokens: int = 1_000, **facts) -> RequestFacts:
    return RequestFacts(prompt_tokens=tokens - 1, max_tokens=1, **facts)


def fill(controller: Controller, lane: str = "premium", tokens: int = 1_000, now_s: float = 0.0) -> list[str]:
    """Let requests of that size in until the first is refused; their reservations."""
    ids = []
    while (decision := controller.admit(ask(tokens, lane=lane), now_s)).reservation_id is not None:
        ids.append(decision.reservation_id)
    return ids


def waits(controller: Controller, now_s: float = 0.0, tokens: int = 1_000, wait_ms=None, **facts) -> Ticket:
    ticket = controller.enqueue(ask(tokens, **facts), now_s, wait_ms)
    assert isinstance(ticket, Ticket), ticket
    return ticket


def waiting(controller: Controller, now_s: float = 0.0) -> dict[str, int]:
    return {name: lane.waiting for name, lane in controller.snapshot(now_s).lanes.items()}


def test_a_request_that_fits_does_not_wait():
    decision = make().enqueue(ask(), 0.0)

    assert isinstance(decision, Decision)
    assert decision.admitted


def test_freed_room_wakes_the_right_one_at_once_and_the_late_one_is_refused():
    """https://github.com/BerriAI/litellm/issues/361: a waiting request polled until it timed out."""
    controller = make()
    ids = fill(controller)
    late = waits(controller, 0.0, lane="premium")
    batch = waits(controller, 0.0, lane="batch")
    premium = waits(controller, 0.15, lane="premium")
    assert controller.advance(0.15) == []
    controller.settle(
        ids[0], 1, 0.3
    )  # 0.2 s are over for the first; batch may use nothing of premium's share

    answers = dict(controller.advance(0.3))
    assert (answers[late].reason, answers[premium].admitted) == ("wait_expired", True)
    assert batch not in answers
    assert controller.next_due_s(0.3) == pytest.approx(4.7)


def test_nothing_waits_longer_than_its_lane_or_its_deadline_allows():
    controller = make()
    fill(controller)
    standard = waits(controller, lane="standard")
    urgent = waits(controller, lane="standard", deadline_ms=350.0)  # prefill takes 101 ms of it
    short = waits(controller, lane="standard", wait_ms=100.0)

    assert [ticket for ticket, _ in controller.advance(0.11)] == [short]
    assert [ticket for ticket, _ in controller.advance(0.26)] == [urgent]
    assert [ticket for ticket, _ in controller.advance(0.8)] == [standard]
    assert controller.next_due_s(0.8) is None


def test_the_rules_bound_every_wait():
    controller = make(max_wait_ms=300.0)
    fill(controller)
    asked = [waits(controller, wait_ms=wait_ms) for wait_ms in (None, 1e6)]
    asked.append(waits(controller, deadline_ms=5_000.0))

    assert [ticket for ticket, _ in controller.advance(0.3)] == asked


def test_the_queue_is_bounded_and_overflow_sheds_the_lowest_lane_first():
    """https://github.com/vllm-project/vllm/issues/18826: the queue had no bound."""
    controller, random = make(1_000_000, waiting_grace=0), Random(2)
    fill(controller, tokens=10_000)
    refused: Counter[str] = Counter()
    for _ in range(10_000):
        lane = random.choice(["standard", "batch"])
        answer = controller.enqueue(ask(lane=lane), 0.0)
        if isinstance(answer, Decision):
            assert answer.reason == "queue_full"
            assert answer.retry_after_s is not None
            refused[lane] += 1
    shed = controller.advance(0.0)

    assert {(ticket.lane.name, decision.reason) for ticket, decision in shed} == {("batch", "queue_full")}
    assert sum(waiting(controller).values()) == 5_000
    assert len(shed) + sum(refused.values()) == 5_000
    assert waiting(controller)["batch"] == 750  # its weight of the places, and nothing more


def test_the_newest_of_the_lowest_lane_makes_room():
    controller = make(max_waiting=2)
    fill(controller)
    waits(controller, lane="batch")
    second = waits(controller, lane="batch")
    waits(controller, lane="standard")

    assert [ticket for ticket, _ in controller.advance(0.0)] == [second]


def test_premium_waits_within_its_grace_where_standard_is_refused():
    """https://github.com/ai-dynamo/dynamo/issues/12298: priority traffic was shed at everyone's cap."""
    controller = make(max_waiting=10, waiting_grace=2)
    fill(controller)
    for _ in range(10):
        waits(controller, lane="premium")
    standard, *premium = (
        controller.enqueue(ask(lane=lane), 0.0) for lane in ("standard", "premium", "premium", "premium")
    )

    assert isinstance(standard, Decision)
    assert standard.reason == "queue_full"
    assert [isinstance(answer, Ticket) for answer in premium] == [True, True, False]
    assert premium[-1].reason == "queue_full"


def test_a_full_queue_an_expired_wait_and_a_busy_engine_are_told_apart_and_advised_by_drain_rate():
    """https://github.com/vllm-project/production-stack/pull/876: they all looked the same."""
    controller = make(1_000_000, max_waiting=1, waiting_grace=0)
    for _ in range(100):
        controller.admit(ask(10_000, lane="premium"), 0.0)
    ticket = waits(controller, lane="premium", wait_ms=20_000.0)
    full = controller.enqueue(ask(lane="premium"), 0.0)
    busy = controller.admit(ask(lane="premium"), 0.0)
    ((late, expired),) = controller.advance(20.0)

    assert late is ticket
    assert [decision.reason for decision in (full, expired, busy)] == [
        "queue_full",
        "wait_expired",
        "saturated",
    ]
    assert all(decision.retry for decision in (full, expired, busy))
    assert full.retry_after_s <= 2  # 1,000 tokens wait, and 1,700 a second leave


def test_small_requests_pass_a_large_one_until_it_is_aged_and_then_nothing_does():
    """https://github.com/vllm-project/vllm/issues/57413 and https://github.com/vllm-project/vllm/pull/33499."""
    controller = make(200_000)
    running = [controller.admit(ask(10_000, lane="standard"), 0.0).reservation_id for _ in range(11)]
    head = waits(controller, 0.0, 100_000, lane="standard", wait_ms=10_000.0)
    for now_s in (1.0, 2.0, 4.9):
        passed = controller.enqueue(ask(1_000, lane="standard"), now_s)
        assert isinstance(passed, Decision)
        assert passed.admitted
    small = waits(controller, 5.1, 1_000, lane="standard", wait_ms=4_000.0)
    assert controller.admit(ask(1_000, lane="standard"), 5.2).reason == "waiting_ahead"
    assert controller.enqueue(ask(1_000, lane="premium"), 5.2).admitted  # its share is its own
    for number, reservation_id in enumerate(running):
        controller.settle(reservation_id, 1, 6.0 + number / 10)
        answers = dict(controller.advance(6.0 + number / 10))
        if answers:
            break

    assert answers[head].admitted
    assert small not in answers or answers[small].admitted


@pytest.mark.parametrize("weights", [(1.0, 1.0), (3.0, 1.0)])
def test_backlogged_tenants_share_a_lane_by_tokens(weights):
    """https://github.com/llm-d/llm-d-router/issues/1182: round robin was unfair by tokens."""
    tenants = {name: TenantLimits(weight=weight) for name, weight in zip("ab", weights, strict=True)}
    controller = make(100_000, tenants=tenants)
    sizes, given, running = {"a": 200, "b": 8_000}, Counter(), []
    for second in range(0, 600, 5):
        now_s = float(second)
        for name, size in sizes.items():
            for _ in range(160_000 // 4 // size):
                answer = controller.enqueue(ask(size, tenant=name), now_s, 10_000.0)
                if isinstance(answer, Decision) and answer.admitted:
                    running.append((answer.reservation_id, name, size))
                    given[name] += size
        free, running = running[: len(running) // 2 + 1], running[len(running) // 2 + 1 :]
        for reservation_id, _, _ in free:
            controller.settle(reservation_id, 1, now_s)
        for ticket, decision in controller.advance(now_s):
            if decision.admitted:
                name = ticket.request.tenant
                running.append((decision.reservation_id, name, sizes[name]))
                given[name] += sizes[name]

    share = given["a"] / (given["a"] + given["b"])
    assert share == pytest.approx(weights[0] / sum(weights), abs=0.05)


def test_a_tenant_that_asks_one_by_one_saves_no_turns_up():
    controller = make(30_000, premium=LaneRule(0.0, 200.0, protected=True), standard=LaneRule(0.85, 800.0))
    ids = fill(controller, "standard")
    for _ in range(40):
        waits(controller, tenant="backlog", wait_ms=60_000.0)
    given: Counter[str] = Counter()
    mine = waits(controller, tenant="single", wait_ms=60_000.0)
    for step in range(20):
        controller.settle(ids.pop(0), 1, 0.1 * step)
        for ticket, decision in controller.advance(0.1 * step):
            given[ticket.request.tenant] += 1
            ids.append(decision.reservation_id)
            if ticket is mine:
                mine = waits(controller, 0.1 * step, tenant="single", wait_ms=60_000.0)

    assert abs(given["single"] - given["backlog"]) <= 2


def test_backlogged_lanes_share_by_their_weights():
    controller = make(100_000, premium=LaneRule(0.0, 200.0, protected=True),
                      standard=LaneRule(0.75, 800.0), batch=LaneRule(0.25, 5_000.0))  # fmt: skip
    ids = fill(controller, "batch")
    for _ in range(1_000):
        waits(controller, lane="standard", wait_ms=1e6)
        waits(controller, lane="batch", wait_ms=1e6)
    given: Counter[str] = Counter()
    for step in range(400):
        controller.settle(ids.pop(0), 1, 0.1 * step)
        for ticket, decision in controller.advance(0.1 * step):
            given[ticket.lane.name] += 1
            ids.append(decision.reservation_id)

    assert given["standard"] / given.total() == pytest.approx(0.75, abs=0.1)


def test_a_lane_over_its_own_budget_blocks_nobody_else():
    controller = make(100_000, max_tightening_change_per_s=100.0, tightening_spares_s=0.0)
    fill(controller, "batch")
    controller.set_tightening(1.0, 0.0)
    waits(controller, 0.5, lane="batch", wait_ms=1_000.0)

    controller.settle("r1", 1, 1.4)
    assert controller.admit(ask(500, lane="premium"), 1.4).admitted
    assert not any(decision.admitted for _, decision in controller.advance(1.4))


def test_who_leaves_holds_nothing_and_wakes_whom_it_blocked():
    controller = make(200_000)
    for _ in range(11):
        controller.admit(ask(10_000), 0.0)
    head = waits(controller, 0.0, 100_000, wait_ms=10_000.0)
    small = waits(controller, 6.0, wait_ms=5_000.0)

    assert controller.leave(head, 7.0)
    assert not controller.leave(head, 7.0)
    assert [ticket for ticket, decision in controller.advance(7.0) if decision.admitted] == [small]
    assert sum(waiting(controller, 7.0).values()) == 0


def test_waiting_is_charged_to_the_quota_and_given_back_when_it_was_in_vain():
    controller = make(tenants={"a": TenantLimits(hourly=Quota(2_500))})
    fill(controller, "premium", 2_500)
    first = waits(controller, lane="standard", tenant="a", wait_ms=500.0)
    waits(controller, lane="standard", tenant="a")
    refused = controller.enqueue(ask(lane="standard", tenant="a"), 0.0)
    assert refused.reason == "tenant_quota"

    assert controller.advance(0.6)[0][0] is first
    waits(controller, 0.6, lane="standard", tenant="a")


def test_room_too_small_for_anyone_lets_no_one_in_and_the_next_that_fits_goes():
    controller = make()
    ids = [*fill(controller, tokens=4_900), *fill(controller, tokens=100)]
    tickets = [
        waits(controller, tokens=tokens, lane="premium", wait_ms=1e6) for tokens in (3_000, 900, 2_000)
    ]
    for _ in range(5):
        controller.settle(ids.pop(), 1, 1.0)
    assert controller.advance(1.0) == []
    controller.settle(ids.pop(), 1, 1.0)
    for _ in range(3):
        controller.settle(ids.pop(), 1, 1.0)

    assert [ticket for ticket, _ in controller.advance(1.0)] == [tickets[1]]


def test_a_turn_that_time_alone_gives_comes_with_the_next_advance():
    controller = make()
    ids = fill(controller, "batch")
    assert controller.admit(ask(lane="standard"), 0.0).reason == "lane_budget"  # the loan is called back
    ticket = waits(controller, lane="batch", wait_ms=60_000.0)
    controller.settle(ids[0], 1, 0.1)

    assert controller.advance(0.1) == []
    assert [(told, decision.admitted) for told, decision in controller.advance(40.0)] == [(ticket, True)]
