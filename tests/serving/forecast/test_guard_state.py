import json
from pathlib import Path

import pytest

from data.errors import InputError
from models.bundle import GuardState, Manifest, TrainingWindow
from models.guard.guard import Guard
from models.guard.skill import Onset, SkillGate
from models.guard.tripwire import BLOCK_TICKS, TripWire
from serving.forecast.guard_state import MOST_ASIDE, Guards, guard_state, load_guards, save


def manifest(threshold: float | None) -> Manifest:
    return Manifest(
        model_sha256="0" * 64,
        feature_names=(),
        feature_spec_hash="",
        scaler_mean=(),
        scaler_scale=(),
        training=TrainingWindow(source="", data_sha256="", first="", last="", requests=0),
        guard=GuardState(
            threshold=threshold,
            effective_negatives=100,
            thinning_step=1,
            advisory_reason=None,
            skill=((True, 0.02),) * 5,
        ),
        metrics={},
        versions={},
    )


def load_guard(path: Path | None, version: str, told: Manifest) -> Guard:
    return load_guards(path, version, told).guard


def used_guard() -> Guard:
    guard = Guard(1.5)
    for t_s in range(1_000, 1_200, 5):
        guard.decide(t_s, 0.0)
        guard.settle(t_s, True)
    guard.decide(1_300, 9.0)
    return guard


def test_a_guard_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    guard, path = used_guard(), tmp_path / "deep" / "guard.json"
    save(path, guard_state("abc", guard))
    again = load_guard(path, "abc", manifest(7.0))
    assert again.threshold == guard.threshold != 7.0
    assert again.ledger.to_dict() == guard.ledger.to_dict()
    assert [file.name for file in path.parent.iterdir()] == ["guard.json"]


@pytest.mark.parametrize("threshold", [7.0, None])
def test_the_state_of_another_bundle_keeps_the_ledger_and_takes_the_new_threshold(
    tmp_path: Path, threshold: float | None
) -> None:
    guard, path = used_guard(), tmp_path / "guard.json"
    save(path, guard_state("abc", guard))
    again = load_guard(path, "def", manifest(threshold))
    assert again.threshold == threshold
    assert again.ledger.to_dict() == guard.ledger.to_dict()


def test_a_charge_that_was_never_judged_stands_after_a_restart(tmp_path: Path) -> None:
    guard, path = used_guard(), tmp_path / "guard.json"
    save(path, guard_state("abc", guard))
    again = load_guard(path, "abc", manifest(7.0))
    assert again.ledger.charges == 1
    assert again.to_dict()["unsettled"] == []
    assert again.ledger.remaining() == guard.ledger.remaining() == 1


def closed_and_tripped(path: Path) -> Guard:
    """A guard whose gate is closed and whose wire is crossed, saved by bundle "abc"."""
    guard = used_guard()
    guard.skill, guard.wire = SkillGate([Onset(None, False, 0.02)] * 9), TripWire()
    for _ in range(24 * BLOCK_TICKS):
        guard.wire.settle(True, negative=True, late=False, in_time=False)
    save(path, guard_state("abc", guard))
    return guard


def test_a_restart_opens_no_gate_and_mends_no_wire(tmp_path: Path) -> None:
    path = tmp_path / "guard.json"
    guard = closed_and_tripped(path)
    again = load_guard(path, "abc", manifest(1.5))
    assert (again.muted, again.skill and again.skill.open) == (True, False)
    assert again.reason == guard.reason
    assert again.to_dict()["wire"] == guard.to_dict()["wire"]
    assert again.to_dict()["skill"] == guard.to_dict()["skill"]


def test_a_new_bundle_brings_a_new_gate_and_a_new_wire_and_leaves_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "guard.json"
    guard = closed_and_tripped(path)
    again = load_guard(path, "def", manifest(1.5))
    assert (again.muted, again.advisory, again.reason) == (False, False, None)
    assert again.ledger.to_dict() == again.would_ledger.to_dict() == guard.ledger.to_dict()


def test_a_state_from_before_there_were_gate_and_wire_takes_those_of_the_bundle(tmp_path: Path) -> None:
    path, ledger = tmp_path / "guard.json", used_guard().ledger.to_dict()
    old = {"version": 1, "threshold": 1.25, "scale": 0.5, "alarmed": True, "unsettled": [], "ledger": ledger}
    path.write_text(json.dumps({"version": 1, "bundle": "abc", "guard": old}))
    again = load_guard(path, "abc", manifest(7.0))
    assert (again.threshold, again.scale, again.advisory) == (1.25, 0.5, False)
    assert again.ledger.to_dict() == again.would_ledger.to_dict() == ledger
    assert again.skill is not None
    assert again.skill.anticipated == 5
    assert again.wire is not None


def test_a_bundle_without_evidence_of_skill_starts_closed() -> None:
    state = manifest(2.0).guard.model_copy(update={"skill": ()})
    guard = load_guard(None, "abc", manifest(2.0).model_copy(update={"guard": state}))
    assert guard.advisory
    assert "No burst has shown yet" in str(guard.reason)


def test_no_file_is_a_fresh_guard(tmp_path: Path) -> None:
    guard = load_guard(tmp_path / "none.json", "abc", manifest(2.0))
    assert (guard.threshold, guard.ledger.charges) == (2.0, 0)


def test_a_state_cut_anywhere_or_of_another_kind_is_refused_with_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "guard.json"
    save(path, guard_state("abc", used_guard()))
    whole = path.read_text()
    damaged = [whole[: len(whole) * part // 50] for part in range(50)]
    damaged += ["[]", "{}", '{"version": 2, "guard": {}}', '{"version": 1, "guard": []}']
    damaged += [json.dumps({"version": 1, "bundle": "abc", "guard": {"version": 1, "threshold": "high"}})]
    for text in damaged:
        path.write_text(text)
        with pytest.raises(InputError, match=r"guard\.json is damaged: .* delete it to start"):
            load_guard(path, "abc", manifest(2.0))


def test_a_folder_in_place_of_the_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't be read"):
        load_guard(tmp_path, "abc", manifest(2.0))


def test_a_bundle_that_comes_back_is_still_tripped_and_the_ledger_has_gone_on(tmp_path: Path) -> None:
    path = tmp_path / "guard.json"
    tripped = closed_and_tripped(path)
    guards = load_guards(path, "abc", manifest(1.5))
    ledger = guards.guard.ledger
    fresh = guards.swap("def", manifest(7.0))
    assert (fresh.muted, fresh.threshold) == (False, 7.0)
    assert fresh.ledger is ledger
    fresh.decide(1_500, 99.0)
    again = guards.swap("abc", manifest(1.5))
    assert (again.muted, again.reason, again.threshold) == (True, tripped.reason, tripped.threshold)
    assert again.ledger is ledger
    assert again.would_ledger.to_dict() == ledger.to_dict()
    assert again.to_dict()["skill"] == tripped.to_dict()["skill"]


def test_what_other_bundles_saw_outlives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "guard.json"
    closed_and_tripped(path)
    save(path, load_guards(path, "def", manifest(7.0)).to_dict())
    save(path, load_guards(path, "ghi", manifest(8.0)).to_dict())
    assert load_guards(path, "abc", manifest(1.5)).guard.muted
    assert not load_guards(path, "def", manifest(7.0)).guard.muted


def test_the_same_bundle_loaded_again_keeps_its_guard() -> None:
    guards = Guards("abc", used_guard())
    assert guards.swap("abc", manifest(9.0)) is guards.guard
    assert guards.aside == {}


def test_of_many_bundles_the_oldest_are_forgotten_but_never_a_crossed_wire(tmp_path: Path) -> None:
    path = tmp_path / "guard.json"
    closed_and_tripped(path)
    guards = load_guards(path, "abc", manifest(1.5))
    for number in range(2 * MOST_ASIDE):
        guards.swap(f"b{number}", manifest(float(number)))
    assert len(guards.aside) == MOST_ASIDE
    assert "b0" not in guards.aside
    assert guards.swap("abc", manifest(1.5)).muted


@pytest.mark.parametrize("aside", [[], {"def": 3}, {"def": {}}, {"def": {"version": 2, "threshold": "high"}}])
def test_damage_in_what_other_bundles_saw_is_told_at_the_start(tmp_path: Path, aside: object) -> None:
    path = tmp_path / "guard.json"
    save(path, guard_state("abc", used_guard()) | {"aside": aside})
    with pytest.raises(InputError, match=r"guard\.json is damaged: .* delete it to start"):
        load_guards(path, "abc", manifest(2.0))
