from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.controller.budget import Ledger
from serving.controller.outputs import OutputQuantile

FLOW = OutputQuantile(0.9)


def ledger_of(capacity_tokens: int, lease_s: float = 120.0) -> Ledger:
    return Ledger(capacity_tokens, lease_s, "r")


def test_exactly_what_fits_is_reserved():
    ledger = ledger_of(50_000)
    given_ids = [ledger.reserve("premium", 1_000, 0.0, FLOW) for _ in range(100)]

    assert sum(reservation_id is not None for reservation_id in given_ids) == 50
    assert ledger.held_tokens == 50_000


def test_releasing_twice_frees_once():
    ledger = ledger_of(1_000)
    reservation_id = ledger.reserve("premium", 600, 0.0, FLOW)
    assert reservation_id is not None

    assert ledger.release(reservation_id) is not None
    assert ledger.release(reservation_id) is None
    assert ledger.held_tokens == 0


def test_negative_tokens_are_not_held():
    assert ledger_of(10).reserve("batch", -1, 0.0, FLOW) is None


def test_a_lease_ends_on_time():
    ledger = ledger_of(1_000, lease_s=120.0)
    ledger.reserve("premium", 600, 0.0, FLOW)

    assert ledger.expired(119.9) == []
    assert [reservation.tokens for reservation in ledger.expired(120.0)] == [600]
    assert ledger.held_tokens == 0


def test_a_renewed_lease_does_not_hide_one_that_ended():
    ledger = ledger_of(1_000, lease_s=10.0)
    streaming = ledger.reserve("premium", 1, 0.0, FLOW)
    ledger.reserve("premium", 2, 1.0, FLOW)
    assert streaming is not None
    assert ledger.renew(streaming, 5.0)

    assert [reservation.tokens for reservation in ledger.expired(11.0)] == [2]
    assert [reservation.tokens for reservation in ledger.expired(15.0)] == [1]
    assert not ledger.renew(streaming, 16.0)


def reserve(ledger: Ledger, now_s: float, number: int) -> None:
    ledger.reserve("standard", number * 37 % 500, now_s, FLOW)


def release(ledger: Ledger, now_s: float, number: int) -> None:
    ledger.release(f"r{number}")


def renew(ledger: Ledger, now_s: float, number: int) -> None:
    ledger.renew(f"r{number}", now_s)


@pytest.mark.parametrize("capacity", [0, 700, 5_000])
@given(
    st.lists(
        st.tuples(st.sampled_from([reserve, release, renew]), st.integers(0, 40), st.floats(0, 20)),
        max_size=60,
    )
)
def test_what_is_held_is_the_sum_of_open_reservations(
    capacity: int, calls: list[tuple[Callable[[Ledger, float, int], None], int, float]]
):
    ledger = ledger_of(capacity, lease_s=30.0)
    now_s = 0.0
    for call, number, step_s in calls:
        now_s += step_s
        ledger.expired(now_s)
        call(ledger, now_s, number)
        assert 0 <= ledger.held_tokens <= capacity
        assert ledger.held_tokens == sum(open_.tokens for open_ in ledger._open.values())
        assert all(open_.expires_s > now_s for open_ in ledger._open.values())
    ledger.expired(now_s + 30.0)
    assert (len(ledger), ledger.held_tokens) == (0, 0)
