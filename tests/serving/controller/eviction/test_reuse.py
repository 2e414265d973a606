import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.controller.eviction.reuse import AGE_EDGES_S, AGES, HORIZON_S, KINDS, ReuseTable

WIDTHS_S = [end - start for start, end in zip(AGE_EDGES_S, (*AGE_EDGES_S[1:], HORIZON_S), strict=True)]


def plain_value(reused, age):
    """Best reuses per block-second over all ages at which one may let go, by the definition."""
    best, alive, reuses, held_s = 0.0, 1.0, 0.0, 0.0
    for chance, width_s in zip(reused[age:], WIDTHS_S[age:], strict=True):
        reuses += alive * chance
        held_s += alive * width_s * (1 - chance / 2)
        alive *= 1 - chance
        best = max(best, reuses / held_s)
    return best


@given(st.lists(st.integers(0, 10_000), min_size=AGES, max_size=AGES))
def test_values_are_those_of_the_definition(reuses):
    table = ReuseTable()
    for age, blocks in enumerate(reuses):
        table.expose(0, (age,), 10_000)
        table.reuse(0, age, blocks)
    table.learn(0.0)

    chances = [(blocks + 200 * (blocks + 40) / 10_200) / 10_200 for blocks in reuses]
    for age in range(AGES):
        assert table.value(0, age) == pytest.approx(plain_value(chances, age))
        assert 0 <= table.chance(0, age) <= 1


def test_before_anything_is_known_younger_blocks_are_worth_more():
    table = ReuseTable()

    values = [table.value(3, age) for age in range(1, AGES)]

    assert values == sorted(values, reverse=True)


def test_a_think_time_makes_older_blocks_worth_more_than_fresh_ones():
    table = ReuseTable()
    table.expose(1, range(AGES), 10_000)
    table.reuse(1, 7, 5_000)  # most come back 64 to 128 s later
    table.learn(0.0)

    assert table.value(1, 7) > table.value(1, 5) > table.value(1, 1)
    assert table.value(1, 7) > 10 * table.value(1, 9)


def test_a_kind_that_was_never_seen_is_worth_what_all_are():
    table = ReuseTable()
    table.expose(1, range(AGES), 10_000)
    table.reuse(1, 7, 5_000)
    table.learn(0.0)

    assert table.value(0, 7) == pytest.approx(table.value(1, 7), rel=0.1)
    assert all(table.value(kind, 7) == table.value(0, 7) for kind in range(2, KINDS))


def test_old_habits_lose_their_weight():
    table = ReuseTable(half_life_s=60.0)
    table.expose(1, range(AGES), 10_000)
    table.reuse(1, 7, 9_000)
    table.learn(0.0)
    before = table.chance(1, 7)
    table.expose(1, range(AGES), 10_000)
    table.learn(600.0)

    assert table.chance(1, 7) < before
    table.learn(0.0)  # a clock that steps back changes nothing
    assert table.chance(1, 7) < before
