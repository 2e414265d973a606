"""The guard with its skill gate and its trip wire."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.ticks import TICK_S
from models.bundle import GuardState
from models.guard.guard import RATE, Guard, Verdict
from models.guard.ledger import Ledger
from models.guard.skill import ONSETS, Onset, SkillGate
from models.guard.tripwire import BLOCK_TICKS, TripWire

SMALL = ((1_000, 0.05), (300, 0.15))
OUTCOME_TICKS = 12
PROOF = [Onset(None, True, 0.02)] * 5
NO_PROOF = [Onset(None, False, 0.02)] * 30

# An onset now and then: everything else about a tick follows from when it comes.
worlds = st.lists(
    st.tuples(
        st.none() | st.just(math.nan) | st.floats(-4.0, 8.0),
        st.sampled_from([False] * 15 + [True]),
        st.booleans(),
    ),
    min_size=30,
    max_size=240,
)
World = list[tuple[float | None, bool, bool]]


def outcomes(world: World) -> list[dict[str, Any]]:
    """How each tick turns out: arguments of settle."""
    onsets = [index * TICK_S + 3 for index, (_, onset, _) in enumerate(world) if onset]
    found = []
    for index, (_, _, eligible) in enumerate(world):
        t_s = index * TICK_S
        onset_s = next((x for x in onsets if t_s < x <= t_s + 60), None)
        late = eligible and onset_s is not None and onset_s - t_s <= 30
        found.append({"negative": eligible and onset_s is None, "late": late, "onset_s": onset_s})
    return found


def play(guard: Guard, world: World, first: int = 0, last: int | None = None) -> list[tuple[Verdict, bool]]:
    """Verdicts, and whether the guard was advisory just before each."""
    known, seen = outcomes(world), []
    for index in range(first, len(world) if last is None else last):
        if (past := index - OUTCOME_TICKS) >= 0:
            guard.settle(past * TICK_S, **known[past])
        advisory = guard.advisory
        seen.append((guard.decide(index * TICK_S, world[index][0]), advisory))
    return seen


def gated(evidence: list[Onset], ledger: Ledger | None = None) -> Guard:
    return Guard(0.0, 1.0, ledger or Ledger(SMALL), SkillGate(evidence), TripWire())


def calm(ticks: int = 60) -> World:
    return [(-9.0, False, True)] * ticks


@given(worlds, st.sampled_from([PROOF, NO_PROOF, []]))
@settings(max_examples=60, deadline=None)
def test_whatever_the_scores_the_budget_holds_and_an_advisory_guard_never_alarms(
    world: World, evidence: list[Onset]
) -> None:
    world = calm() + world
    guard = gated(evidence)
    seen, negative = play(guard, world), [outcome["negative"] for outcome in outcomes(world)]
    assert not any(verdict.alarm for verdict, advisory in seen if advisory)
    for stands in ("alarm", "would"):
        marked = [index for index, (verdict, _) in enumerate(seen) if getattr(verdict, stands)]
        for end in marked:
            for length_s, share in SMALL:
                window = range(max(0, end - length_s // TICK_S + 1), end + 1)
                false = sum(negative[index] for index in marked if index in window)
                assert false <= share * sum(negative[index] for index in window) + 1e-9


@given(worlds, st.sampled_from([PROOF, NO_PROOF]))
@settings(max_examples=40, deadline=None)
def test_would_be_alarms_are_the_alarms_of_a_guard_without_gate_and_wire(
    world: World, evidence: list[Onset]
) -> None:
    world = calm() + world
    bare = [verdict for verdict, _ in play(Guard(0.0, 1.0, Ledger(SMALL)), world)]
    for verdict, (ours, advisory) in zip(bare, play(gated(evidence), world), strict=True):
        assert ours.would == verdict.alarm
        assert ours.alarm == (verdict.alarm and not advisory)
        assert (ours.threshold, ours.denied) == (verdict.threshold, verdict.denied)


@given(worlds)
@settings(max_examples=40, deadline=None)
def test_an_advisory_guard_spends_nothing_and_earns_as_before(world: World) -> None:
    world = calm() + world
    closed, never = gated(NO_PROOF), Guard(None, 1.0, Ledger(SMALL))
    seen = play(closed, world)
    play(never, world)
    if all(advisory for _, advisory in seen):
        assert closed.ledger.to_dict()["calm"] == never.ledger.to_dict()["calm"]
        assert closed.ledger.charges == 0
        assert closed.would_ledger.charges == sum(verdict.would for verdict, _ in seen)


@given(worlds, st.integers(0, 240), st.sampled_from([PROOF, NO_PROOF]))
@settings(max_examples=50, deadline=None)
def test_it_goes_on_exactly_after_json(world: World, at: int, evidence: list[Onset]) -> None:
    world = calm() + world
    at = min(at, len(world))
    unbroken, stopped = gated(evidence), gated(evidence)
    play(unbroken, world, last=at)
    play(stopped, world, last=at)
    state = json.loads(json.dumps(stopped.to_dict(), allow_nan=False))
    again = Guard.from_dict(state)
    assert again.to_dict() == state
    assert play(again, world, at) == play(unbroken, world, at)
    assert again.to_dict() == unbroken.to_dict()


def foreseen(hours: int, from_hour: int) -> World:
    """An onset every half hour; from some hour on, scores rise 50 s ahead of it."""
    world: World = []
    for tick in range(hours * 720):
        ahead = 359 - tick % 360
        score = 5.0 if ahead <= 10 and tick >= from_hour * 720 else -1.0
        world.append((score, ahead == 0, ahead < 330))
    return world


def test_a_closed_gate_opens_when_would_be_alarms_show_skill() -> None:
    guard = gated([Onset(None, False, 0.02)] * 5, Ledger())
    seen = play(guard, foreseen(8, 3))
    assert all(advisory for _, advisory in seen[: 3 * 720])
    opened = next(index for index, (_, advisory) in enumerate(seen) if not advisory)
    assert 4 * 720 <= opened <= 6 * 720
    assert any(verdict.alarm for verdict, _ in seen[opened:])
    assert guard.ledger.charges < guard.would_ledger.charges


def test_scores_that_run_away_from_the_threshold_mute_the_guard_for_good() -> None:
    guard = gated(PROOF, Ledger())
    index = 0
    while not guard.muted:
        assert index < 24 * 720
        if index >= OUTCOME_TICKS:
            guard.settle((index - OUTCOME_TICKS) * TICK_S, negative=True)
        guard.decide(index * TICK_S, float(index))
        index += 1
    for later in range(index, index + 3 * 720):
        guard.settle((later - OUTCOME_TICKS) * TICK_S, negative=True)
        assert not guard.decide(later * TICK_S, 1e9).alarm
    assert guard.advisory
    assert "retrain" in str(guard.reason)
    assert Guard.from_dict(guard.to_dict()).muted


@pytest.mark.parametrize("trips", [False, True])
def test_drift_that_the_threshold_follows_trips_nothing(trips: bool) -> None:
    # Five scales up and down within a day, and a scale an hour for good: 11.6 % are over the threshold then.
    random = np.random.default_rng(0)
    guard = gated(PROOF, Ledger())
    would = 0
    for index in range(48 * 720):
        if index >= OUTCOME_TICKS:
            guard.settle((index - OUTCOME_TICKS) * TICK_S, negative=True)
        hours = index / 720
        drift = hours if trips else -2.5 * math.cos(math.tau * hours / 24)
        would += guard.decide(index * TICK_S, float(random.normal() + drift)).would
    assert guard.muted == trips
    assert 0.02 < would / (48 * 720) <= RATE


def test_a_tripped_wire_is_the_reason_that_is_told() -> None:
    guard = gated(NO_PROOF)
    assert "random alarm" in str(guard.reason)
    assert guard.wire is not None
    for _ in range(10 * BLOCK_TICKS):
        guard.wire.settle(True, negative=True, late=False, in_time=False)
    assert "trip wire" in str(guard.reason)


@pytest.mark.parametrize("proof", [True, False])
def test_a_guard_starts_as_the_evidence_of_its_bundle_says(proof: bool) -> None:
    state = GuardState(
        threshold=1.5,
        scale=0.5,
        effective_negatives=100,
        thinning_step=1,
        advisory_reason=None,
        skill=((proof, 0.02),) * ONSETS,
    )
    ledger = Ledger()
    guard = Guard.start(state, ledger)
    assert (guard.threshold, guard.scale, guard.advisory, guard.muted) == (1.5, 0.5, not proof, False)
    assert guard.ledger is ledger


def test_a_paused_guard_learns_of_its_own_ticks_and_books_nothing() -> None:
    guard = Guard(1.0, ledger=earned(), skill=SkillGate(), wire=TripWire())
    start_s = (guard.ledger.now_s or 0) + TICK_S
    for t_s in range(start_s, start_s + 100, TICK_S):
        guard.decide(t_s, 0.0)
    guard.pause()
    books, threshold = guard.ledger.to_dict(), guard.threshold
    assert guard.awaits(start_s)
    guard.learn(start_s, negative=True)
    assert not guard.awaits(start_s)
    assert guard.awaiting
    assert guard.ledger.to_dict() == guard.would_ledger.to_dict() == books
    assert guard.threshold is not None
    assert threshold is not None
    assert guard.threshold < threshold
    assert guard.wire is not None
    assert guard.wire.to_dict()["over"]["ticks"] == 1


def test_a_resumed_guard_goes_by_the_books_of_now() -> None:
    guard = Guard(1.0, ledger=earned())
    guard.pause()
    now = Ledger()
    now.settle(1, negative=True)
    guard.resume(now)
    assert guard.ledger is now
    assert guard.would_ledger is not now
    assert guard.would_ledger.to_dict() == now.to_dict()
    assert not guard.decide(10, 9.0).alarm  # one calm tick pays for no alarm


def earned() -> Ledger:
    """A ledger with budget, as after calm hours."""
    ledger = Ledger()
    for t_s in range(0, 36_000, TICK_S):
        ledger.settle(t_s, negative=True)
    return ledger
