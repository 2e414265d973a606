import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.scenarios import FIELDS, MOST_SOURCES, SCENARIOS, Due, Followed, Level, crossings
from features.ticks import SLOTS

CALM = Level(baseline=1_000.0, usual=1_000.0, line=2_000.0)
NEAR = 3.0 / SCENARIOS


def due(*runs: tuple[float, float, float, float]) -> Due:
    """Runs of (start, spread, chance, load)."""
    after, spread, chance, load = np.array(runs or np.zeros((0, 4))).T
    return Due(after, spread, chance, np.stack([load, np.full_like(load, np.nan)], axis=1))


def slots(due: Due, followed: list[Followed], level: Level = CALM) -> np.ndarray:
    return crossings(due, followed, level)[:SLOTS]


def test_nothing_due_never_crosses() -> None:
    found = crossings(due(), [], CALM)
    assert found.shape == (FIELDS,)
    assert not found[: 2 * SLOTS].any()
    assert found[2 * SLOTS] == pytest.approx(0.5, abs=0.01)


def test_a_load_over_the_line_crosses_at_once() -> None:
    assert slots(due(), [], Level(1_000.0, 3_000.0, 2_000.0)).tolist() == [1.0, 0, 0, 0, 0, 0]


def test_a_run_crosses_in_the_slot_that_it_is_due_in() -> None:
    found = slots(due((36.0, 0.1, 1.0, 5_000.0)), [])
    assert found.argmax() == 3
    assert found.sum() == pytest.approx(1.0)


def test_chances_are_those_of_the_run() -> None:
    assert slots(due((36.0, 0.1, 0.25, 5_000.0)), []).sum() == pytest.approx(0.25, abs=NEAR)


def test_two_light_runs_cross_only_together() -> None:
    light = (36.0, 0.1, 1.0, 700.0)
    assert slots(due(light), []).sum() < 0.1
    assert slots(due(light, light), []).sum() > 0.9
    assert slots(due(light, (9.0, 0.1, 1.0, 700.0)), []).sum() < 0.1


def test_an_overdue_run_that_has_not_come_is_not_expected_any_more() -> None:
    assert not slots(due((-40.0, 3.0, 1.0, 5_000.0)), []).any()


def test_a_follow_up_that_may_come_any_time_counts_in_full() -> None:
    # Spread over the minute its mean stays under the line; in four scenarios of five there is a burst.
    outcomes = Followed(np.arange(5.0, 55.0, 5.0), np.r_[np.full(8, 3_000.0), 0.0, 0.0])
    found = crossings(due(), [outcomes], CALM)
    assert found[:SLOTS].sum() == pytest.approx(0.8, abs=2 * NEAR)
    np.testing.assert_array_equal(found[:SLOTS], found[SLOTS : 2 * SLOTS])


def test_scheduled_runs_do_not_count_as_follow_ups() -> None:
    assert not crossings(due((36.0, 0.1, 1.0, 5_000.0)), [], CALM)[SLOTS : 2 * SLOTS].any()


def test_only_the_heaviest_of_many_runs_take_part() -> None:
    light = [(36.0, 0.1, 1.0, 1.0)] * (2 * MOST_SOURCES)
    assert slots(due(*light, (36.0, 0.1, 1.0, 5_000.0)), []).sum() == pytest.approx(1.0)


@given(
    st.lists(
        st.tuples(st.floats(-30, 90), st.floats(0.1, 60), st.floats(0, 1), st.floats(0, 1e7)), max_size=40
    ),
    st.lists(st.tuples(st.floats(-100, 100), st.floats(0, 1e7)), min_size=1, max_size=8),
    st.floats(1, 1e6),
)
@settings(max_examples=60, deadline=None)
def test_shares_are_shares_and_more_load_crosses_no_later(
    runs: list[tuple[float, float, float, float]], outcomes: list[tuple[float, float]], base: float
) -> None:
    level = Level(base, base, 2 * base)
    followed = [Followed(*np.array(outcomes).T)]
    found = crossings(due(*runs), followed, level)
    assert np.isfinite(found).all()
    assert (found >= 0).all()
    for shares in (found[:SLOTS], found[SLOTS : 2 * SLOTS]):
        assert shares.sum() <= 1 + 1e-9
    assert found[2 * SLOTS] <= found[2 * SLOTS + 1]
    # Scheduled runs only add to what follows: by the end of each slot at least as many have crossed.
    assert (np.cumsum(found[:SLOTS]) >= np.cumsum(found[SLOTS : 2 * SLOTS]) - 1e-9).all()
