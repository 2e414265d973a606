from serving.controller.decide import Controller
from serving.controller.decision import RequestFacts
from serving.controller.gate import Gate
from serving.controller.pool import Ask, Grant
from serving.controller.quota import Quota
from serving.controller.rules import Rules
from serving.controller.shared_limits import SharedLimits
from serving.controller.tenants import TenantLimits

RULES = Rules(
    capacity_tokens=10_000,
    max_tenants=1,
    default_tenant=TenantLimits(hourly=Quota(1_000)),
    output_prior_tokens=1,
)


def shared(rules: Rules = RULES) -> tuple[Controller, SharedLimits]:
    controller, limits = Controller(rules), SharedLimits(rules, 4, exact=False)
    controller.on_gate(lambda gate, now_s: gate.share(limits, now_s), 0.0)
    return controller, limits


def exchanged(controller: Controller, limits: SharedLimits, room: int, now_s: float) -> list[Ask]:
    """One exchange in which every pool is granted so much."""

    def step(gate: Gate, at_s: float) -> list[Ask]:
        asks = limits.asks(gate, at_s, all_of_them=False)
        limits.granted(gate, at_s, [Grant(room, 1_000, 0, False)] * len(asks), live=4)
        return asks

    return controller.on_gate(step, now_s)


def test_a_controller_alone_shares_nothing():
    controller = Controller(RULES)
    assert controller.on_gate(lambda gate, _: gate.shared, 0.0) is None
    assert controller.snapshot(0.0).usable_tokens == 10_000


def test_until_the_store_answers_a_replica_goes_by_its_share():
    controller, _ = shared()
    assert controller.snapshot(0.0).usable_tokens == 2_500
    admitted = [controller.admit(RequestFacts(9, "acme"), 0.0).admitted for _ in range(100)]
    assert sum(admitted) == 25  # of 10 tokens each: a fourth of the hour's 1,000


def test_what_was_let_in_while_the_store_was_asked_comes_out_of_the_kept_room():
    controller, limits = shared()
    controller.admit(RequestFacts(9, "acme"), 0.0)
    asks = controller.on_gate(lambda gate, now_s: limits.asks(gate, now_s, all_of_them=False), 0.0)
    assert [ask.used_tokens for ask in asks] == [0, 10, 10]
    controller.admit(RequestFacts(9, "acme"), 0.0)
    grants = [Grant(30, 1_000, 0, False)] * 3
    controller.on_gate(lambda gate, now_s: limits.granted(gate, now_s, grants, live=4), 0.0)
    admitted = [controller.admit(RequestFacts(9, "acme"), 0.0).admitted for _ in range(10)]
    assert sum(admitted) == 2  # used 10, granted 30, of which one of 10 came in meanwhile


def test_a_new_hour_carries_room_over_and_no_more():
    controller, limits = shared()
    controller.admit(RequestFacts(9, "acme"), 10.0)
    exchanged(controller, limits, 20, 10.0)
    controller.advance(4_000.0)  # the reservation's lease is over
    admitted = [controller.admit(RequestFacts(9, "acme"), 4_000.0).admitted for _ in range(10)]
    assert sum(admitted) <= 3


def test_a_forgotten_tenant_gives_its_room_up_and_keeps_what_it_used():
    controller, limits = shared()
    given = controller.admit(RequestFacts(9, "acme"), 0.0)
    assert given.reservation_id is not None
    exchanged(controller, limits, 20, 0.0)
    controller.settle(given.reservation_id, 1, 0.0)
    controller.admit(RequestFacts(9, "other"), 0.0)  # room for one tenant alone
    asks = {ask.name: ask for ask in exchanged(controller, limits, 0, 0.0)}
    told = [ask for ask in asks.values() if ask.length_s and ask.want_tokens == 0]
    assert [(ask.used_tokens, ask.keep_tokens) for ask in told] == [(10, 0)]
