"""What holds of waiting and charging on any sequence of calls and any clock."""

from dataclasses import dataclass
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from data.schema import LANES
from serving.controller.decide import Controller
from serving.controller.decision import Decision, RequestFacts
from serving.controller.quota import Quota
from serving.controller.rules import Rules
from serving.controller.tenants import TenantLimits
from serving.controller.waiting import Ticket

RULES = Rules(
    capacity_tokens=20_000,
    lease_s=30.0,
    max_waiting=4,
    waiting_grace=2,
    max_tenants=3,
    max_tightening_change_per_s=1e9,
    tightening_spares_s=2.0,
    default_tenant=TenantLimits(
        hourly=Quota(300_000, sliding=True), daily=Quota(1_500_000, burst_tokens=10_000)
    ),
    tenants={"a": TenantLimits(weight=2.0)},
)

KINDS = ["admit", "enqueue", "settle", "cancel", "leave", "renew", "tau"]
WEIGHTS = [3, 5, 6, 1, 1, 1, 1]


def make() -> Controller:
    return Controller(RULES, random=Random(9))


def everything(controller: Controller) -> tuple[int, ...]:
    """Tokens held, reservations, waiting requests and their tokens, and tenants' open requests."""
    gate = controller._gate
    queues = gate.waiting.by_lane.values()
    return (
        gate.ledger.held_tokens,
        len(gate.ledger),
        gate.waiting.count,
        *(len(queue) for queue in queues),
        *(queue.tokens for queue in queues),
        *(lane.held_tokens for lane in gate.lanes.by_name.values()),
        sum(account.open for account in gate.tenants._accounts.values()),
    )


def test_nothing_leaks_in_100_000_random_steps():
    controller, random, now_s = make(), Random(11), 0.0
    open_ids: list[str] = []
    tickets: list[Ticket] = []
    for _ in range(100_000):
        jump = random.random()
        now_s += random.uniform(-1e4, 1e4) if jump < 0.001 else random.expovariate(8.0)
        (kind,) = random.choices(KINDS, WEIGHTS)
        answer = None
        if kind in ("admit", "enqueue"):
            request = RequestFacts(
                random.randrange(3_000),
                random.choice(["a", "b", "c", "d", "e", None]),
                lane=random.choice(LANES),
                max_tokens=random.choice([None, 1, 2_000]),
                deadline_ms=random.choice([None, None, 900.0]),
            )
            answer = getattr(controller, kind)(request, now_s)
        elif kind == "leave" and tickets:
            controller.leave(tickets.pop(random.randrange(len(tickets))), now_s)
        elif kind == "tau":
            controller.set_tightening(random.random(), now_s)
        elif open_ids and kind != "leave":
            number = random.randrange(len(open_ids))
            reservation_id = open_ids[number] if random.random() < 0.3 else open_ids.pop(number)
            if kind == "settle":
                controller.settle(reservation_id, random.choice([None, 0, 50, 5_000]), now_s)
            else:
                getattr(controller, kind)(reservation_id, now_s)
        answers = [decision for _, decision in controller.advance(now_s)]
        if isinstance(answer, Ticket):
            tickets.append(answer)
        elif answer is not None:
            answers.append(answer)
        open_ids += [decision.reservation_id for decision in answers if decision.reservation_id]
        state = everything(controller)
        assert min(state) >= 0
        assert state[0] <= 20_000
        assert state[2] <= 6
    seen = set().union(*(lane.refused for lane in controller.snapshot(now_s).lanes.values()))
    assert seen >= {"tenant_quota", "saturated", "lane_budget", "waiting_ahead", "queue_full", "wait_expired"}
    controller.advance(now_s + 10.0)
    controller.advance(now_s + 45.0)
    assert set(everything(controller)) == {0}
    gate = controller._gate
    later_s = gate.at(now_s + 45.0) + 2 * 86_400
    for account in gate.tenants._accounts.values():
        assert account.hour.used_tokens(later_s) == account.day.used_tokens(later_s) == 0


@dataclass
class Step:
    kind: str
    after_s: float
    request: RequestFacts
    number: int


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(["admit", "enqueue", "enqueue", "enqueue", "enqueue", "settle", "cancel", "leave"]),
        st.floats(0, 0.4),
        st.builds(
            RequestFacts,
            prompt_tokens=st.integers(0, 6_000),
            tenant=st.sampled_from(["a", "b", "c", None]),
            lane=st.sampled_from(LANES),
            max_tokens=st.integers(1, 2_000),
        ),
        st.integers(1, 20),
    ),
    max_size=40,
)


def replay(controller: Controller, history: list[Step], tau: float | None) -> tuple[list[object], float]:
    """All that the controller answered, tickets by the order in which they began to wait."""
    now_s, answers, names = 0.0, [], {}
    for step in history:
        now_s += step.after_s
        if tau is not None:
            controller.set_tightening(tau, now_s)
        if step.kind in ("admit", "enqueue"):
            answer = getattr(controller, step.kind)(step.request, now_s)
            if isinstance(answer, Ticket):
                answer = names.setdefault(answer, len(names))
            answers.append(answer)
        elif step.kind == "leave":
            for ticket, name in names.items():
                if name == step.number:
                    answers.append(controller.leave(ticket, now_s))
        elif step.kind == "settle":
            answers.append(controller.settle(f"r{step.number}", 100, now_s))
        else:
            answers.append(controller.cancel(f"r{step.number}", now_s))
        answers += [(names.get(ticket), decision) for ticket, decision in controller.advance(now_s)]
    return answers, now_s


@settings(max_examples=60, deadline=None)
@given(steps)
def test_tightening_0_is_the_rules_bit_for_bit(history):
    assert replay(make(), history, 0.0)[0] == replay(make(), history, None)[0]


def went(controller: Controller, now_s: float, freed: int) -> set[int]:
    """Numbers of the tickets that go when a reservation is freed."""
    queues = controller._gate.waiting.by_lane.values()
    numbers = {ticket: ticket.number for queue in queues for ticket in queue._tickets.values()}
    controller.cancel(f"r{freed}", now_s)
    return {numbers[ticket] for ticket, decision in controller.advance(now_s) if decision.admitted}


@settings(max_examples=300, deadline=None)
@given(steps, st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.integers(1, 20))
def test_of_those_who_wait_more_tightening_lets_none_in_that_less_does_not(history, past, one, other, freed):
    sets = []
    for level in sorted((one, other)):
        controller = make()
        now_s = replay(controller, history, past)[1]
        controller.set_tightening(level, now_s)
        sets.append(went(controller, now_s + 0.001, freed))
    less, more = sets

    assert more <= less


@settings(max_examples=100, deadline=None)
@given(
    steps, st.integers(0, 6_000), st.sampled_from(LANES), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)
)
def test_more_tightening_never_admits_a_newcomer_that_less_does_not(history, tokens, lane, past, one, other):
    answers = []
    for level in sorted((one, other)):
        controller = make()
        now_s = replay(controller, history, past)[1]
        controller.set_tightening(level, now_s)
        answers.append(
            controller.admit(RequestFacts(tokens, "new", lane=lane, max_tokens=100), now_s + 0.001)
        )
    less, more = answers

    assert less.admitted or not more.admitted


@settings(max_examples=60, deadline=None)
@given(steps)
def test_every_answer_is_whole(history):
    for answer in replay(make(), history, 0.5)[0]:
        decision = answer[1] if isinstance(answer, tuple) and not isinstance(answer, Decision) else answer
        if isinstance(decision, Decision):
            assert decision.admitted == (decision.reservation_id is not None) == (decision.reason is None)
            assert decision.retry == (decision.retry_after_ms is not None)
