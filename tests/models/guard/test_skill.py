import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from data.errors import InputError
from features.ticks import TICK_S
from models.guard.skill import (
    APART_S,
    CLOSES_OVER,
    DAY_S,
    DAYS,
    LEAST,
    ONSETS,
    OPENS_AT,
    Onset,
    SkillGate,
    binomial_tail,
)

HOUR = 3_600 // TICK_S


def told(gate: SkillGate, would: NDArray[np.bool_], onsets: list[int], first: int = 0) -> list[bool]:
    """Settle tick after tick, told the onsets within 60 s (rising, seconds); whether the gate stood open."""
    after = np.searchsorted(onsets, TICK_S * np.arange(len(would)), side="right")
    opened = []
    for tick in range(first, len(would)):
        t_s = tick * TICK_S
        onset_s = onsets[after[tick]] if after[tick] < len(onsets) else None
        near = onset_s is not None and onset_s - t_s <= 60
        gate.settle(t_s, bool(would[tick]), onset_s if near else None)
        opened.append(gate.open)
    return opened


def noise(random: np.random.Generator, ticks: int, correlation: float = 0.9) -> NDArray[np.bool_]:
    """Alarms in about 5 % of the time, in episodes, that know nothing."""
    score = random.standard_normal(ticks)
    for tick in range(1, ticks):
        score[tick] = correlation * score[tick - 1] + math.sqrt(1 - correlation**2) * score[tick]
    return score > 1.645


def foreseen(would: NDArray[np.bool_], onsets: list[int]) -> NDArray[np.bool_]:
    """The same alarms, and one from 50 s ahead of each of these onsets to it."""
    would = would.copy()
    for x in onsets:
        would[(x - 50) // TICK_S : x // TICK_S + 1] = True
    return would


def plain(would: NDArray[np.bool_], x: int) -> bool:
    """The definition, tick by tick."""
    alarm = {tick * TICK_S for tick in np.flatnonzero(would).tolist()}
    early = any(t in alarm for t in range(0, len(would) * TICK_S, TICK_S) if x - 60 <= t <= x - 30)
    return early and all(t in alarm for t in range(0, len(would) * TICK_S, TICK_S) if x - 10 < t <= x)


@given(st.integers(0, 10**6), st.lists(st.integers(100, 2_900), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_an_onset_is_anticipated_as_the_definition_says(seed: int, onsets: list[int]) -> None:
    random = np.random.default_rng(seed)
    would = np.repeat(random.random(60) < 0.5, 10)
    gate, spaced = SkillGate(), sorted(onsets)
    told(gate, would, spaced)
    counted: list[int] = []
    for x in spaced:
        if not counted or x - counted[-1] >= APART_S:
            counted.append(x)
    assert [(onset.at_s, onset.anticipated) for onset in gate.onsets] == [
        (x, plain(would, x)) for x in counted
    ]


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_chance_is_the_share_of_ticks_at_which_an_onset_would_have_been_anticipated(seed: int) -> None:
    would = np.repeat(np.random.default_rng(seed).random(40) < 0.3, 10)
    gate = SkillGate()
    told(gate, would, [1_995])
    hits = [plain(would, tick * TICK_S) for tick in range(12, 400)]
    assert gate.onsets[0].chance == pytest.approx((sum(hits) + 12) / (len(hits) + 12))


def test_alarms_that_know_nothing_keep_the_gate_closed_in_nearly_every_run() -> None:
    # A dozen runs of two days at 48 onsets a day; the docstring tells of 20 days.
    opened = 0
    for seed in range(12):
        random = np.random.default_rng(seed)
        onsets = np.sort(random.integers(HOUR * TICK_S, 48 * 3_600, 96)).tolist()
        opened += any(told(SkillGate(), noise(random, 48 * HOUR), onsets))
    assert opened <= 1


@pytest.mark.parametrize(("recall", "within"), [(0.5, 20), (0.3, 35)])
def test_alarms_with_skill_open_the_gate_within_so_many_onsets(recall: float, within: int) -> None:
    opened = []
    for seed in range(10):
        random = np.random.default_rng(seed)
        onsets = list(range(3_600, 3_600 * (within + 1), 3_600))
        known = [x for x in onsets if random.random() < recall]
        would = foreseen(noise(random, HOUR * (within + 1)), known)
        opened.append(any(told(SkillGate(), would, onsets)))
    assert np.mean(opened) >= 0.9


def test_it_closes_when_skill_is_lost_and_does_not_flap() -> None:
    random = np.random.default_rng(1)
    onsets = list(range(3_600, 90 * 3_600, 3_600))
    gate = SkillGate()
    open_at = told(gate, foreseen(noise(random, 90 * HOUR), onsets[:30]), onsets)
    changes = np.flatnonzero(np.diff(open_at))
    assert len(changes) == 2  # opens, and closes for good
    assert changes[0] < 8 * HOUR
    assert 45 * HOUR < changes[1] < 80 * HOUR
    assert "a random alarm with the same share of time" in str(gate.reason)


@given(st.lists(st.tuples(st.booleans(), st.floats(0.001, 0.3)), max_size=60))
@settings(max_examples=100, deadline=None)
def test_it_opens_on_proof_and_closes_where_luck_would_do(stream: list[tuple[bool, float]]) -> None:
    gate = SkillGate()
    was = False
    for index, (anticipated, chance) in enumerate(stream):
        gate.onsets.append(Onset(index * APART_S, anticipated, chance))
        gate._judge()
        latest = stream[: index + 1][-ONSETS:]
        hits, mean = sum(hit for hit, _ in latest), sum(chance for _, chance in latest) / len(latest)
        luck = binomial_tail(hits, len(latest), mean)
        was = (hits >= LEAST and luck <= OPENS_AT) or (was and luck <= CLOSES_OVER)
        assert gate.open == was
        assert (gate.reason is None) == gate.open


def test_evidence_of_calibration_opens_or_leaves_closed() -> None:
    assert SkillGate([Onset(None, True, 0.03)] * 4 + [Onset(None, False, 0.03)] * 6).open
    assert not SkillGate([Onset(None, True, 0.03)] * (LEAST - 1)).open
    assert not SkillGate([Onset(None, False, 0.03)] * 40).open
    assert "No burst has shown" in str(SkillGate().reason)


def test_evidence_is_too_old_after_two_weeks_without_a_burst() -> None:
    gate = SkillGate([Onset(None, True, 0.03)] * 10)
    gate.settle(0, False, None)
    gate.settle(DAYS * DAY_S - APART_S - TICK_S, False, None)
    assert gate.open
    gate.settle(DAYS * DAY_S - APART_S, False, None)
    assert not gate.open
    assert not gate.onsets


def test_an_onset_with_an_unknown_tick_in_its_last_minute_counts_neither_way() -> None:
    for hole in (0, 6, 11):
        gate = SkillGate()
        for tick in range(30):
            t_s = tick * TICK_S
            would = None if tick == 8 + hole else True
            gate.settle(t_s, would, 100 if 40 <= t_s < 100 else None)
        assert not gate.onsets
    gate = SkillGate()
    for tick in (tick for tick in range(30) if tick != 12):  # never decided
        gate.settle(tick * TICK_S, True, 100 if 40 <= tick * TICK_S < 100 else None)
    assert not gate.onsets


def test_an_onset_that_late_outputs_take_back_is_none() -> None:
    gate = SkillGate()
    for tick in range(40):
        gate.settle(tick * TICK_S, True, 100 if 40 <= tick * TICK_S < 80 else None)
    assert not gate.onsets


@given(st.integers(0, 10**6), st.integers(0, 700))
@settings(max_examples=20, deadline=None)
def test_it_goes_on_exactly_after_json(seed: int, cut: int) -> None:
    random = np.random.default_rng(seed)
    onsets = np.sort(random.integers(0, 3_600, 5)).tolist()
    would = np.repeat(random.random(72) < 0.4, 10)
    evidence = [Onset(None, bool(hit), 0.03) for hit in random.random(6) < 0.5]
    unbroken, before = SkillGate(evidence), SkillGate(evidence)
    told(unbroken, would, onsets)
    told(before, would[:cut], onsets)
    state = json.loads(json.dumps(before.to_dict(), allow_nan=False))
    again = SkillGate.from_dict(state)
    assert again.to_dict() == state
    told(again, would, onsets, first=cut)
    assert again.to_dict() == unbroken.to_dict()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("onsets", None),
        ("onsets", [[0, True]]),
        ("onsets", [[0, True, 0.0]]),
        ("onsets", [[0, True, math.nan]]),
        ("hours", [[1, 2]]),
        ("recent", [[5]]),
        ("next_s", "soon"),
    ],
)
def test_damaged_state_is_refused(name: str, value: object) -> None:
    state = SkillGate([Onset(3, True, 0.1)]).to_dict()
    with pytest.raises(InputError, match="Skill gate state"):
        SkillGate.from_dict(state | {name: value})
    with pytest.raises(InputError, match="Skill gate state"):
        SkillGate.from_dict({key: kept for key, kept in state.items() if key != name})


@given(st.integers(0, 40), st.integers(0, 40), st.floats(0.001, 0.999))
def test_the_tail_is_a_probability_that_falls_with_k(k: int, n: int, p: float) -> None:
    tails = [binomial_tail(hits, n, p) for hits in (k, k + 1)]
    assert 0.0 <= tails[1] <= tails[0] <= 1.0 + 1e-12
    assert (tails[0] == 0.0) == (k > n) or tails[0] < 1e-100
