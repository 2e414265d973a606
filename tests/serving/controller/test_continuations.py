from random import Random

from hypothesis import given
from hypothesis import strategies as st

from serving.controller.continuations import Continuations


def keep(most: int = 100, live_s: float = 600.0) -> Continuations:
    return Continuations(most, live_s, Random(3))


def issue(kept: Continuations, now_s: float = 0.0, left_tokens: int = 500) -> str:
    handle = kept.issue(now_s, "acme", "premium", "small", "hot", left_tokens, 1_524)
    assert handle is not None
    return handle


def test_a_handle_stands_for_the_first_part():
    kept = keep()
    found = kept.find(issue(kept), "acme", 599.0)

    assert found is not None
    assert (found.lane, found.model, found.pool, found.left_tokens) == ("premium", "small", "hot", 500)


def test_a_handle_is_good_once_for_its_tenant_and_its_time():
    kept = keep()
    handle = issue(kept)
    assert kept.find(handle, "other", 1.0) is None
    assert kept.find(handle, None, 1.0) is None
    assert kept.find(handle, "acme", 600.0) is None
    assert kept.find("0" * 32, "acme", 1.0) is None
    assert kept.find(handle, "acme", 1.0) is not None
    kept.redeem(handle)
    assert kept.find(handle, "acme", 1.0) is None
    assert kept.unknown == 5


def test_a_handle_that_made_room_meanwhile_is_redeemed_all_the_same():
    kept = keep(most=1)
    handle = issue(kept)
    issue(kept)
    kept.redeem(handle)

    assert (len(kept), kept.unredeemed) == (1, 1)


def test_nothing_left_is_no_continuation():
    assert keep().issue(0.0, "acme", "batch", None, None, 0, 1_524) is None


def test_handles_that_nobody_redeems_are_forgotten_and_counted():
    kept = keep()
    for number in range(50):
        issue(kept, float(number))
    issue(kept, 625.0)

    assert (len(kept), kept.unredeemed) == (25, 26)


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=60), st.integers(1, 5))
def test_there_are_never_more_than_the_bound_and_every_handle_is_accounted_for(history, most):
    kept, now_s, redeemed = keep(most, live_s=100.0), 0.0, 0
    for issued, (step_s, redeem) in enumerate(history, start=1):
        now_s += step_s
        handle = issue(kept, now_s)
        if redeem:
            kept.redeem(handle)
            redeemed += 1
        assert len(kept) <= most
        assert issued == redeemed + kept.unredeemed + len(kept)
