import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.scenarios import FIELDS, MOST_SOURCES, SCENARIOS, Due, Followed, Level, crossings
from features.ticks import SLOTS

NEAR = 3.0 / SCENARIOS
Run = tuple[float, float, float, float]
Outcomes = list[tuple[int, float]]


def level(baseline: float, usual: float, line: float) -> Level:
    return Level(*np.array([[baseline], [usual], [line]]))


CALM = level(baseline=1_000.0, usual=1_000.0, line=2_000.0)


def due(*runs: Run) -> Due:
    """Runs of (start, spread, chance, load) around one tick."""
    after, spread, chance, load = np.array(runs or np.zeros((0, 4))).T
    loads = np.stack([load, np.full_like(load, np.nan)], axis=1)
    return Due(np.zeros(len(load), np.int64), after, spread, chance, loads)


def followed(*runs: Outcomes, light: int = 0) -> Followed:
    """Runs that started at the tick: outcomes of (peak, load), and as many more that are no follow-up."""
    count = np.array([len(run) for run in runs], dtype=np.int64)
    table = np.zeros((2, len(runs), max(count, default=1) + light))
    for row, run in enumerate(runs):
        table[:, row, -len(run) :] = np.array(sorted(run)).T
    none = np.zeros(len(runs), np.int64)
    row = np.arange(len(runs))
    return Followed(none, none, count + light, count, row, table[0].astype(np.int64), table[1])


def slots(due: Due, followed: Followed, level: Level = CALM) -> np.ndarray:
    return crossings(due, followed, level)[:SLOTS, 0]


def test_nothing_due_never_crosses() -> None:
    found = crossings(due(), followed(), CALM)
    assert found.shape == (FIELDS, 1)
    assert not found[: 2 * SLOTS].any()
    assert found[2 * SLOTS, 0] == pytest.approx(0.5, abs=0.01)


def test_a_load_over_the_line_crosses_at_once() -> None:
    assert slots(due(), followed(), level(1_000.0, 3_000.0, 2_000.0)).tolist() == [1.0, 0, 0, 0, 0, 0]


def test_a_run_crosses_in_the_slot_that_it_is_due_in() -> None:
    found = slots(due((36.0, 0.1, 1.0, 5_000.0)), followed())
    assert found.argmax() == 3
    assert found.sum() == pytest.approx(1.0)


def test_chances_are_those_of_the_run() -> None:
    assert slots(due((36.0, 0.1, 0.25, 5_000.0)), followed()).sum() == pytest.approx(0.25, abs=NEAR)


def test_two_light_runs_cross_only_together() -> None:
    light = (36.0, 0.1, 1.0, 700.0)
    assert slots(due(light), followed()).sum() < 0.1
    assert slots(due(light, light), followed()).sum() > 0.9
    assert slots(due(light, (9.0, 0.1, 1.0, 700.0)), followed()).sum() < 0.1


def test_an_overdue_run_that_has_not_come_is_not_expected_any_more() -> None:
    assert not slots(due((-40.0, 3.0, 1.0, 5_000.0)), followed()).any()


def test_a_follow_up_that_may_come_any_time_counts_in_full() -> None:
    # Spread over the minute its mean stays under the line; in four scenarios of five there is a burst.
    outcomes = [(peak_s, 3_000.0) for peak_s in range(5, 45, 5)]
    found = crossings(due(), followed(outcomes, light=2), CALM)
    assert found[:SLOTS].sum() == pytest.approx(0.8, abs=2 * NEAR)
    np.testing.assert_array_equal(found[:SLOTS], found[SLOTS : 2 * SLOTS])


def test_scheduled_runs_do_not_count_as_follow_ups() -> None:
    assert not crossings(due((36.0, 0.1, 1.0, 5_000.0)), followed(), CALM)[SLOTS : 2 * SLOTS].any()


def test_only_the_heaviest_of_many_runs_take_part() -> None:
    light = [(36.0, 0.1, 1.0, 1.0)] * (2 * MOST_SOURCES)
    assert slots(due(*light, (36.0, 0.1, 1.0, 5_000.0)), followed()).sum() == pytest.approx(1.0)


RUNS = st.lists(
    st.tuples(st.floats(-30, 90), st.floats(0.1, 60), st.floats(0, 1), st.floats(0, 1e7)), max_size=40
)
FOLLOWED = st.lists(
    st.lists(st.tuples(st.integers(0, 90), st.floats(1, 1e7)), min_size=1, max_size=8), max_size=30
)


@given(RUNS, FOLLOWED, st.integers(0, 5), st.floats(1, 1e6))
@settings(max_examples=60, deadline=None)
def test_shares_are_shares_and_more_load_crosses_no_later(
    runs: list[Run], outcomes: list[Outcomes], light: int, base: float
) -> None:
    found = crossings(due(*runs), followed(*outcomes, light=light), level(base, base, 2 * base))[:, 0]
    assert np.isfinite(found).all()
    assert (found >= 0).all()
    for shares in (found[:SLOTS], found[SLOTS : 2 * SLOTS]):
        assert shares.sum() <= 1 + 1e-9
    assert found[2 * SLOTS] <= found[2 * SLOTS + 1]
    # Scheduled runs only add to what follows: by the end of each slot at least as many have crossed.
    assert (np.cumsum(found[:SLOTS]) >= np.cumsum(found[SLOTS : 2 * SLOTS]) - 1e-9).all()


@given(st.lists(st.tuples(RUNS, FOLLOWED, st.floats(1, 1e6)), min_size=1, max_size=5))
@settings(max_examples=30, deadline=None)
def test_a_tick_is_told_the_same_alone_and_among_others(
    ticks: list[tuple[list[Run], list[Outcomes], float]],
) -> None:
    """Bit for bit, or features online would not be those of a batch."""
    parts = [(due(*runs), followed(*outcomes, [(95, 1.0)] * 9)) for runs, outcomes, _ in ticks]
    base = np.array([each for _, _, each in ticks])
    which = [np.repeat(np.arange(len(parts)), [len(part[side].tick) for part in parts]) for side in (0, 1)]

    def together(side: int, name: str) -> np.ndarray:
        return np.concatenate([getattr(part[side], name) for part in parts])

    rows = np.arange(len(which[1]))
    found = crossings(
        Due(which[0], *(together(0, name) for name in ("after_s", "spread_s", "chance", "loads"))),
        Followed(
            which[1],
            *(together(1, name) for name in ("age_s", "outcomes", "heavy")),
            rows,
            *(together(1, name) for name in ("peak_s", "load")),
        ),
        Level(base, base, 2 * base),
    )
    for tick, (runs, outcomes) in enumerate(parts):
        alone = crossings(runs, outcomes, level(base[tick], base[tick], 2 * base[tick]))
        np.testing.assert_array_equal(found[:, tick], alone[:, 0])


def test_a_follow_up_comes_when_its_run_is_that_old() -> None:
    at_tick = followed([(45, 5_000.0)])
    assert slots(due(), at_tick).argmax() == 4
    later = dataclasses.replace(at_tick, age_s=np.array([30]))
    assert slots(due(), later).argmax() == 1
    assert slots(due(), later).sum() == pytest.approx(1.0)


def test_the_latest_of_many_runs_are_those_that_are_followed() -> None:
    many = [[(30, 1.0)]] * MOST_SOURCES
    assert slots(due(), followed(*many, [(30, 5_000.0)])).sum() == pytest.approx(1.0)
    assert not slots(due(), followed([(30, 5_000.0)], *many)).any()
