import json
import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import InputError
from models.guard.tripwire import (
    ALPHA,
    BET,
    BLOCK_TICKS,
    LIMIT,
    START_BLOCKS,
    STRICT_LIMIT,
    TRIPS_AT,
    TripWire,
    Watch,
)

DAY = 24


def shares(random: np.random.Generator, rate: float, blocks: int, runs: int) -> np.ndarray:
    """Shares of each block over a threshold of that rate, scores correlated 0.95; (blocks, runs)."""
    score, cut = random.standard_normal(runs), NormalDist().inv_cdf(1.0 - rate)
    found = np.zeros((blocks, runs))
    for block in range(blocks):
        for _ in range(BLOCK_TICKS // 10):  # every tenth tick, correlated 0.95 ** 10: as good for the share
            score = 0.6 * score + 0.8 * random.standard_normal(runs)
            found[block] += score > cut
    return found / (BLOCK_TICKS // 10)


def bet(watch: Watch, share: float) -> None:
    """A block with that share."""
    for tick in range(BLOCK_TICKS):
        watch.add(tick < round(share * BLOCK_TICKS))


def plain(series: list[float], limit: float) -> float:
    """Wealth by the definition: every stake's product over the blocks since it was put down."""
    wealth = 0.0
    for stake, start in enumerate(range(0, len(series), START_BLOCKS), 1):
        product = math.prod(1.0 + BET * (share / limit - 1.0) for share in series[start:])
        wealth += product / (stake * (stake + 1))
    return wealth


@given(st.lists(st.integers(0, 80), max_size=60), st.sampled_from([LIMIT, STRICT_LIMIT]))
@settings(max_examples=25, deadline=None)
def test_wealth_is_the_mixture_of_bets(marked: list[int], limit: float) -> None:
    watch = Watch(limit)
    for count in marked:
        bet(watch, count / BLOCK_TICKS)
    assert watch.wealth == pytest.approx(plain([count / BLOCK_TICKS for count in marked], limit))
    assert watch.crossed == (watch.wealth >= TRIPS_AT)


@pytest.mark.parametrize("limit", [LIMIT, STRICT_LIMIT])
def test_at_the_limit_no_bet_gains_and_none_can_be_lost_whole(limit: float) -> None:
    for share in (0.0, limit, 1.0):
        watch = Watch(limit)
        bet(watch, share)
        assert watch.wealth == pytest.approx(0.5 * (1.0 + BET * (share / limit - 1.0)))
        assert watch.wealth > 0.0


def test_it_seldom_trips_in_twenty_days_at_a_true_rate_of_five_percent() -> None:
    series = shares(np.random.default_rng(0), 0.05, 20 * DAY, 400)
    tripped = [trips_after(series[:, run].tolist()) is not None for run in range(400)]
    assert np.mean(tripped) < ALPHA


def test_it_trips_within_a_day_at_fifteen_percent() -> None:
    series = shares(np.random.default_rng(1), 0.15, DAY, 200)
    hours = [trips_after(series[:, run].tolist()) for run in range(200)]
    assert None not in hours
    assert np.median([hour for hour in hours if hour is not None]) <= 12


def test_a_long_good_past_hides_no_bad_day() -> None:
    random = np.random.default_rng(2)
    good, bad = shares(random, 0.047, 19 * DAY, 50), shares(random, 0.15, 2 * DAY, 50)
    hours = [trips_after([*good[:, run], *bad[:, run]]) for run in range(50)]
    late = [hour - 19 * DAY for hour in hours if hour is not None]
    assert len(late) == 50
    assert np.median(late) <= DAY


def trips_after(series: list[float]) -> int | None:
    """Blocks until the wealth crosses; stakes as an array, so that hundreds of runs take a moment."""
    stakes = np.zeros(len(series) // START_BLOCKS + 1)
    for block, share in enumerate(series):
        if block % START_BLOCKS == 0:
            stake = block // START_BLOCKS
            stakes[stake] = 1.0 / ((stake + 1) * (stake + 2))
        stakes *= 1.0 + BET * (share / LIMIT - 1.0)
        if stakes.sum() >= TRIPS_AT:
            return block + 1
    return None


def hour(
    wire: TripWire, over: bool, *, negative: bool = True, late: bool = False, in_time: bool = False
) -> None:
    for _ in range(BLOCK_TICKS):
        wire.settle(over, negative=negative, late=late, in_time=in_time)


def test_once_tripped_it_stays_so_and_says_why() -> None:
    wire = TripWire()
    assert wire.reason is None
    hours = 0
    while not wire.tripped:
        hour(wire, True)
        hours += 1
    assert hours <= 3
    for _ in range(100):
        hour(wire, False)
    assert wire.tripped
    assert "100.0% had a score over the threshold" in str(wire.reason)
    assert "retrain" in str(wire.reason)


def test_late_ticks_of_an_alarm_that_began_in_time_are_meant_to_stand() -> None:
    for in_time in (True, False):
        wire = TripWire()
        for _ in range(10):
            hour(wire, True, negative=False, late=True, in_time=in_time)
        assert wire.tripped is not in_time
        assert wire.over.blocks == 0


def test_ticks_of_other_kinds_are_not_watched() -> None:
    wire = TripWire()
    hour(wire, True, negative=False)
    assert wire.to_dict() == TripWire().to_dict()


@given(st.lists(st.booleans(), max_size=40), st.integers(0, 39))
@settings(max_examples=10, deadline=None)
def test_it_goes_on_exactly_after_json(hours: list[bool], cut: int) -> None:
    unbroken, again = TripWire(), TripWire()
    for index, over in enumerate(hours):
        if index == cut:
            again.settle(True, negative=True, late=False, in_time=False)
            unbroken.settle(True, negative=True, late=False, in_time=False)
            again = TripWire.from_dict(json.loads(json.dumps(again.to_dict(), allow_nan=False)))
        for wire in (unbroken, again):
            hour(wire, over and index % 3 == 0)
    assert again.to_dict() == unbroken.to_dict()


@pytest.mark.parametrize("part", ["over", "strict"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("blocks", None),
        ("blocks", -1),
        ("ticks", BLOCK_TICKS),
        ("marked", 7),
        ("stakes", [math.nan]),
        ("stakes", [-1.0]),
        ("stakes", "much"),
        ("shares", [2.0]),
    ],
)
def test_damaged_state_is_refused(part: str, name: str, value: object) -> None:
    state = TripWire().to_dict()
    with pytest.raises(InputError, match="Trip wire state"):
        TripWire.from_dict(state | {part: state[part] | {name: value}})
    with pytest.raises(InputError, match="Trip wire state"):
        TripWire.from_dict({key: kept for key, kept in state.items() if key != part})
