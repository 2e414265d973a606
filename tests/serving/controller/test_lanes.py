from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.schema import LANES
from serving.controller.lanes import Lanes
from serving.controller.rules import LaneRule, Rules


def make(**settings) -> Lanes:
    return Lanes(Rules(capacity_tokens=100_000, **settings), Random(1))


def fill(lanes: Lanes, name: str, tokens: int, tightening: float = 0.0, now_s: float = 0.0) -> int:
    """Take requests of that size until the lane's budget refuses; tokens held."""
    lane = lanes.by_name[name]
    while not lanes.overflow_tokens(lane, tokens, tightening, now_s) and lane.held_tokens < 100_000:
        lanes.take(lane, tokens, now_s)
    return lane.held_tokens


def test_shares_follow_the_weights():
    assert [lane.share_tokens for lane in make().by_name.values()] == [40_000, 45_000, 15_000]


@pytest.mark.parametrize("name", ["standard", "batch"])
def test_a_lane_borrows_all_that_the_other_leaves_but_nothing_of_premium(name):
    assert fill(make(), name, 1_000) == 60_000


def test_premium_borrows_from_everyone():
    assert fill(make(), "premium", 1_000) == 100_000


def test_a_gate_without_premium_clients_can_give_its_weight_away():
    lanes = make(
        premium=LaneRule(0.0, 200.0, protected=True),
        standard=LaneRule(0.8, 800.0, cut=0.3),
        batch=LaneRule(0.2, 5_000.0, cut=0.8),
    )

    assert fill(lanes, "standard", 1_000) == 100_000


@pytest.mark.parametrize(("name", "left"), [("standard", 42_000), ("batch", 12_000)])
def test_full_tightening_cuts_standard_to_70_and_batch_to_20_percent(name, left):
    assert fill(make(), name, 1_000, tightening=1.0) == left


def test_a_lane_refused_within_its_share_calls_the_loan_back():
    lanes = make()
    standard, batch = lanes.by_name["standard"], lanes.by_name["batch"]
    fill(lanes, "batch", 1_000)
    assert lanes.overflow_tokens(standard, 1_000, 0.0, 0.0) == 1_000
    lanes.call_back(standard, 1_000, until_s=5.0)
    lanes.give_back(batch, 1_000, 1.0)

    assert lanes.overflow_tokens(batch, 1_000, 0.0, 1.0) == 45_000  # all that it borrowed
    assert lanes.overflow_tokens(standard, 1_000, 0.0, 1.0) == 0
    assert lanes.overflow_tokens(batch, 1_000, 0.0, 5.0) == 0


def test_a_lane_that_called_its_loan_back_may_borrow_itself():
    lanes = make()
    fill(lanes, "batch", 1_000)
    lanes.call_back(lanes.by_name["standard"], 1_000, until_s=5.0)
    lanes.give_back(lanes.by_name["batch"], 60_000, 1.0)

    assert fill(lanes, "standard", 1_000, now_s=1.0) == 60_000


def test_a_lane_beyond_its_share_has_no_loan_to_call_back():
    lanes = make()
    fill(lanes, "standard", 1_000)
    lanes.call_back(lanes.by_name["standard"], 1_000, until_s=5.0)
    lanes.give_back(lanes.by_name["standard"], 20_000, 1.0)

    assert fill(lanes, "batch", 1_000, now_s=1.0) == 20_000


def test_backlogged_lanes_come_to_their_weights():
    lanes, random = make(), Random(3)
    fill(lanes, "batch", 500)
    shares = []
    for step in range(2_000):
        now_s = step * 0.01
        held = [lane for lane in lanes.by_name.values() for _ in range(lane.held_tokens // 500)]
        lanes.give_back(random.choice(held), 500, now_s)
        for name in random.choices(["standard", "batch"], [1, 3], k=12):
            lane = lanes.by_name[name]
            if lanes.overflow_tokens(lane, 500, 0.0, now_s):
                lanes.call_back(lane, 500, until_s=now_s + 3.0)
            else:
                lanes.take(lane, 500, now_s)
        shares.append(lanes.by_name["standard"].held_tokens)

    assert sum(shares[-1_000:]) / 1_000 == pytest.approx(45_000, rel=0.05)


moves = st.lists(
    st.tuples(
        st.sampled_from(LANES),
        st.integers(1, 60_000),
        st.floats(0, 1),
        st.sampled_from(["take", "give_back", "expire"]),
    ),
    max_size=60,
)


@settings(deadline=None)  # a busy machine is no fault of the lanes
@given(moves, st.integers(1, 40_000))
def test_others_can_never_push_premium_below_its_weight(history, wanted):
    lanes = make()
    open_: dict[str, list[int]] = {name: [] for name in LANES}
    for now_s, (name, tokens, tightening, move) in enumerate(history):
        lane = lanes.by_name[name]
        if move == "take" and not lanes.overflow_tokens(lane, tokens, tightening, now_s):
            held = sum(map(sum, open_.values()))
            if held + tokens <= 100_000:
                lanes.take(lane, tokens, now_s)
                open_[name].append(tokens)
            elif name == "premium":
                assert sum(open_["premium"]) + tokens > 40_000
        elif open_[name]:
            getattr(lanes, move if move != "take" else "expire")(lane, open_[name].pop(), now_s)
        assert [lane.held_tokens for lane in lanes.by_name.values()] == [sum(open_[name]) for name in LANES]
        assert lanes.shared_held_tokens <= lanes.shared_tokens
    if sum(open_["premium"]) + wanted <= 40_000:
        assert sum(map(sum, open_.values())) + wanted <= 100_000


@settings(deadline=None)
@given(
    moves, st.sampled_from(["standard", "batch"]), st.integers(1, 60_000), st.floats(0, 1), st.floats(0, 1)
)
def test_more_tightening_never_leaves_more_room(history, name, tokens, one, other):
    lanes = make()
    for now_s, (lane_name, size, tightening, _) in enumerate(history):
        lane = lanes.by_name[lane_name]
        if lanes.overflow_tokens(lane, size, tightening, now_s):
            lanes.call_back(lane, size, until_s=now_s + 20.0)
        else:
            lanes.take(lane, size, now_s)
    less, more = sorted((one, other))
    lane = lanes.by_name[name]
    if lanes.overflow_tokens(lane, tokens, less, 61.0) > 0:
        assert lanes.overflow_tokens(lane, tokens, more, 61.0) > 0
