from collections.abc import Callable
from pathlib import Path

import pytest

from data.errors import InputError
from serving.clock import ManualClock
from serving.controller.decide import Controller
from serving.controller.decision import RequestFacts
from serving.controller.rules import Rules
from serving.gateways.in_process import Configuration, RulesAlone, build, from_environment, jobs
from serving.http.messages import AdmitRequest, SettleRequest
from serving.settings import Settings


def test_an_empty_environment_gives_the_defaults_and_trusts_nobody():
    assert from_environment({}) == Configuration(Settings(), None, trust_headers=False)


def test_the_environment_names_file_bundle_and_state(tmp_path: Path):
    file = tmp_path / "tidegate.yaml"
    file.write_text("reservations: {lease_s: 77}\n")
    told = from_environment(
        {
            "TIDEGATE_CONFIG": str(file),
            "TIDEGATE_BUNDLE": "out/bundle",
            "TIDEGATE_STATE": "var/state.json",
            "TIDEGATE_TRUST_HEADERS": "yes",
        }
    )
    assert told.settings.rules.lease_s == 77
    assert (told.bundle, told.settings.state_file) == (Path("out/bundle"), Path("var/state.json"))
    assert told.trust_headers


def test_a_value_that_says_neither_yes_nor_no_is_refused():
    with pytest.raises(InputError, match="TIDEGATE_TRUST_HEADERS must be 1 or 0; got 'maybe'"):
        from_environment({"TIDEGATE_TRUST_HEADERS": "maybe"})


def test_without_a_bundle_the_decisions_are_those_of_the_rules():
    rules = Rules(capacity_tokens=20_000)
    clock = ManualClock(1_700_000_000_000_000)
    gate = build(Configuration(Settings(rules=rules)), clock)
    assert isinstance(gate, RulesAlone)
    plain = Controller(rules)
    reserved = []
    for number in range(40):
        lane = ("premium", "standard", "batch")[number % 3]
        facts = RequestFacts(500 + number, tenant="acme", lane=lane, max_tokens=300)
        ours = gate.admit(AdmitRequest(prompt_tokens=500 + number, tenant="acme", lane=lane, max_tokens=300))
        theirs = plain.admit(facts, clock.monotonic_s())
        assert (ours.admitted, ours.reason, ours.expected_output_tokens) == (
            theirs.admitted,
            theirs.reason,
            theirs.expected_output_tokens,
        )
        if ours.reservation_id:
            reserved.append((ours.reservation_id, theirs.reservation_id))
    assert 0 < len(reserved) < 40
    for ours_id, theirs_id in reserved:
        assert gate.settle(SettleRequest(reservation_id=ours_id, output_tokens=20, outcome="served"))
        plain.settle(theirs_id, 20, clock.monotonic_s())
    assert gate.controller.snapshot(0.0).held_tokens == plain.snapshot(0.0).held_tokens == 0
    registry = gate.metrics.registry
    assert registry.get_sample_value("tidegate_settled_total") == len(reserved)
    assert registry.get_sample_value("tidegate_held_tokens") == 0


@pytest.mark.parametrize("forecasts", [True, False])
def test_nobody_can_guess_a_continuation_of_service_or_middleware(
    forecasts: bool,
    bundle_folder: Callable[[float | None], Path],
    monkeypatch: pytest.MonkeyPatch,
):
    gate = build(Configuration(bundle=bundle_folder(None) if forecasts else None), ManualClock(1_000_000))
    gate.controller.observe_engine(0.0, queue_depth=6_000)
    monkeypatch.setattr("random._urandom", lambda length: b"\xab" * length)
    assert gate.admit(AdmitRequest(prompt_tokens=9, max_tokens=4_000)).continuation == "ab" * 16


def test_a_lease_that_is_renewed_outlives_its_time():
    clock = ManualClock(1_700_000_000_000_000)
    gate = RulesAlone(Settings(rules=Rules(lease_s=10)), clock)
    kept = gate.admit(AdmitRequest(prompt_tokens=100)).reservation_id
    lost = gate.admit(AdmitRequest(prompt_tokens=100)).reservation_id
    assert kept is not None
    clock.advance(6)
    assert gate.renew(kept)
    clock.advance(6)
    assert (gate.renew(kept), gate.renew(str(lost))) == (True, False)
    assert jobs(gate) == []
