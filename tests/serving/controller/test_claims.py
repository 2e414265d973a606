from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.controller.claims import AHEAD_S, KEPT_S, Claims


def trusted(share: float = 1.0) -> Claims:
    claims = Claims()
    claims.share = share
    return claims


def test_room_is_kept_from_just_before_the_time_until_a_little_later():
    claims = trusted()
    claims.add("a", 10, 1_000, due_s=10.0)

    times_s = [9.9 - AHEAD_S, 10.0 - AHEAD_S / 2, 10.0 + KEPT_S / 2, 10.1 + KEPT_S]
    assert [claims.kept_tokens(now_s) for now_s in times_s] == [0, 1_000, 1_000, 0]
    assert claims.count == 0


def test_only_the_one_that_was_told_is_expected_and_only_once():
    claims = trusted()
    claims.add("a", 10, 1_000, due_s=10.0)

    assert not claims.redeem("b", 10, 10.0)
    assert not claims.redeem("a", 11, 10.0)
    assert not claims.redeem("a", 10, 9.0)  # too early: it has not waited its turn
    assert claims.redeem("a", 10, 10.0)
    assert not claims.redeem("a", 10, 10.0)
    assert claims.kept_tokens(10.0) == 0


def test_where_nobody_comes_back_nothing_is_kept():
    claims = trusted(0.5)
    for second in range(100):
        claims.add(None, 10, 1_000, due_s=float(second))

    assert claims.kept_tokens(100.0) < 50


moves = st.lists(
    st.tuples(st.sampled_from(["add", "redeem"]), st.sampled_from("ab"), st.floats(0, 5), st.floats(0, 1)),
    max_size=60,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(moves)
def test_what_is_kept_is_what_is_open_and_due(history):
    claims, now_s, open_ = Claims(), 0.0, []
    for move, tenant, due_in_s, step_s in history:
        now_s += step_s
        open_ = [(due_s, name) for due_s, name in open_ if due_s > now_s - KEPT_S]
        if move == "add":
            claims.add(tenant, 1, 7, due_s=now_s + due_in_s)
            open_.append((now_s + due_in_s, tenant))
        elif claims.redeem(tenant, 1, now_s):
            open_.remove(next(claim for claim in open_ if claim[1] == tenant))
        claims.kept_tokens(now_s)
        assert claims._due_tokens == 7 * sum(due_s <= now_s + AHEAD_S for due_s, _ in open_)
        assert 0 <= claims.share <= 1
        assert claims.count == len(open_)
