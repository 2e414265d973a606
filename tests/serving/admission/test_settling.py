import pytest

from serving.admission.settling import settle
from serving.controller.decide import Controller
from serving.controller.decision import RequestFacts
from serving.controller.quota import Quota
from serving.controller.rules import Rules
from serving.controller.tenants import TenantLimits
from serving.http.messages import SettleRequest


def make() -> Controller:
    limits = TenantLimits(hourly=Quota(1_000))
    return Controller(Rules(capacity_tokens=100_000, default_tenant=limits))


def admit(controller: Controller, tokens: int = 900, **facts) -> str:
    decision = controller.admit(RequestFacts(tokens - 1, "acme", max_tokens=1, **facts), 0.0)
    assert decision.reservation_id is not None
    return decision.reservation_id


@pytest.mark.parametrize("outcome", ["shed", "failed"])
def test_what_the_engine_did_not_serve_costs_its_tenant_nothing(outcome):
    controller = make()
    told = SettleRequest(reservation_id=admit(controller), outcome=outcome, output_tokens=5)

    assert settle(controller, told, 1.0)
    assert not settle(controller, told, 1.0)
    assert admit(controller, 1_000)


@pytest.mark.parametrize(("outcome", "left"), [("served", 96), ("aborted", 96)])
def test_what_was_generated_is_charged(outcome, left):
    controller = make()
    told = SettleRequest(reservation_id=admit(controller), outcome=outcome, output_tokens=5)
    settle(controller, told, 1.0)

    assert controller.admit(RequestFacts(left, "acme", max_tokens=1), 1.0).reason == "tenant_quota"
    assert admit(controller, left)


def expected(controller: Controller) -> int:
    decision = controller.admit(RequestFacts(10, "b", "m"), 0.0)
    controller.cancel(decision.reservation_id or "", 0.0)
    return decision.expected_output_tokens


@pytest.mark.parametrize(
    ("told", "learned"),
    [
        ({"outcome": "served"}, True),
        ({"outcome": "served", "estimated": True}, False),
        ({"outcome": "aborted"}, False),
    ],
)
def test_only_counted_tokens_of_served_answers_are_learned(told, learned):
    controller = Controller(Rules(capacity_tokens=100_000))
    for _ in range(20):
        held = controller.admit(RequestFacts(10, "b", "m"), 0.0).reservation_id
        settle(controller, SettleRequest(reservation_id=held, output_tokens=40, **told), 0.0)

    assert (expected(controller) < 100) is learned


def test_a_time_to_first_token_is_counted_against_the_lanes_target():
    controller = make()
    for ttft_ms in (100.0, 801.0):
        held = admit(controller, 400, lane="standard")
        settle(controller, SettleRequest(reservation_id=held, outcome="served", ttft_ms=ttft_ms), 1.0)
    lane = controller.snapshot(1.0).lanes["standard"]

    assert (lane.ttft_met, lane.ttft_missed) == (1, 1)
