import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from features.learned import EVERYONE, Learned, sum_up
from features.scenarios import Level

LEVEL = Level(*np.array([[100.0], [100.0], [200.0]]))


def go_on(learned: Learned, first_s: int, until_s: int, seed: int) -> None:
    """Three flows of two tenants: one every 80 s, one half a minute after it, one at random."""
    for second in range(first_s, until_s):
        random = np.random.default_rng([seed, second])
        active = [flow for flow, phase in ((0, 0), (1, 35)) if second % 80 == phase]
        active += [2] if random.random() < 0.3 else []
        for flow in active:
            work = learned.expected_work(flow, 1, int(random.integers(1, 5_000)))
            learned.recurrence.observe(second, flow, flow, 0 if flow < 2 else 1, work)
        endings: dict = {}
        sum_up([(flow, 100, flow, int(random.integers(0, 900))) for flow in active], endings)
        learned.finished(endings)
        if (second + 1) % 300 == 0:
            learned.hour(second + 1)


def told(learned: Learned, t_s: int) -> list:
    """All that it says at a tick."""
    due, crossings = learned.recurrence.around(t_s, LEVEL)
    work = [learned.expected_work(flow, 3, 1_000) for flow in range(4)]
    return [due.tolist(), crossings.tolist(), work, learned.ended, learned.ended_by_hour]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 900), st.integers(0, 200), st.integers(0, 200))
def test_a_copy_knows_the_same_and_each_goes_on_by_itself(seed, then_s, one_s, other_s) -> None:
    learned = Learned()
    go_on(learned, 0, then_s, seed)
    twin = learned.copy()
    go_on(learned, then_s, then_s + one_s, seed + 1)
    go_on(twin, then_s, then_s + other_s, seed + 2)
    for grown, seconds, other_seed in ((learned, one_s, seed + 1), (twin, other_s, seed + 2)):
        alone = Learned()
        go_on(alone, 0, then_s, seed)
        go_on(alone, then_s, then_s + seconds, other_seed)
        assert told(grown, then_s + seconds) == told(alone, then_s + seconds)


def test_what_is_asked_of_a_copy_teaches_nobody_else() -> None:
    learned = Learned()
    go_on(learned, 0, 1_000, 3)
    before = told(learned.copy(), 1_000)
    told(learned.copy(), 1_200)
    assert told(learned, 1_000) == before
    assert np.array(before[0]).max() > 0.0


def test_a_flow_without_ends_is_expected_to_be_like_everyone() -> None:
    learned = Learned()
    assert learned.expected_work(5, 2, 300) == 300
    learned.finished({1: (2, 200, 100, 60, 160, 12_800), 2: (2, 200, 0, 20, 220, 24_200)})
    assert learned.expected_work(1, 2, 300) == 150 + 60
    assert learned.expected_work(5, 2, 300) == 225 + 40
    assert (EVERYONE, learned.ended) == (-1, (4, 380, 37_000))
