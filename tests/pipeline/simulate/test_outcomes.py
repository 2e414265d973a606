from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.schema import LANES
from pipeline.play.score import good
from pipeline.simulate.calls import Call
from pipeline.simulate.outcomes import by_lane, differences, outcomes, restrained
from tests.pipeline.simulate.samples import call, ticks

TARGETS_S = {"premium": 0.2, "standard": 0.8, "batch": 5.0}


def ended(at_s: float, lane: str, end: str, ttft_s: float | None, **told: Any) -> Call:
    one = call(at_s, lane=lane, **told)
    one.end, one.ended_s = end, at_s + 30.0
    one.first_token_s = None if ttft_s is None else at_s + ttft_s
    one.tries = one.tries or 1
    return one


@st.composite
def endings(draw: st.DrawFn) -> list[Call]:
    """Calls over some hours, that ended in any way."""
    random = Random(draw(st.integers(0, 10_000)))
    made = []
    for at_s in sorted(random.uniform(0.0, 8 * 3600.0) for _ in range(draw(st.integers(1, 60)))):
        end = random.choice(("served", "served", "refused", "failed"))
        ttft_s = None if end == "refused" else random.choice((0.1, 0.2, 0.5, 0.8, 3.0, 9.0))
        made.append(
            ended(
                at_s,
                random.choice(LANES),
                end,
                ttft_s,
                refusals=random.randrange(3),
                restrained_s=random.choice((None, at_s, at_s + 7.0)),
            )
        )
    return made


def plain_good(one: Call) -> bool:
    ttft_s = None if one.first_token_s is None else one.first_token_s - one.at_s
    return one.end == "served" and ttft_s is not None and ttft_s <= TARGETS_S[one.lane]


def plain_false(one: Call, onsets: list[int], eligible: dict[int, bool]) -> bool:
    """Restrained at a tick that counts, with no onset within the 60 s after it."""
    if one.restrained_s is None:
        return False
    t = int(one.restrained_s // 5) * 5
    following = min((x for x in onsets if x > t), default=None)
    return eligible.get(t, False) and (following is None or following - t > 60)


@settings(max_examples=60, deadline=None)
@given(endings(), st.lists(st.integers(0, 8 * 3600), max_size=8), st.integers(0, 99))
def test_what_each_lane_got_by_a_plain_count(calls: list[Call], onsets: list[int], seed: int) -> None:
    random = Random(seed)
    count = 8 * 3600 // 5 - 300  # the last calls come after the last tick
    counts = [random.random() < 0.7 for _ in range(count)]
    span = ticks(0, count, tuple(onsets), eligible=counts)
    eligible = dict(zip(span["t_s"].to_list(), counts, strict=True))
    found = {row["lane"]: row for row in by_lane(outcomes(calls), TARGETS_S, span)}
    present = [lane for lane in LANES if any(one.lane == lane for one in calls)]
    assert list(found) == [*present, "all"]
    span_s = max(1.0, calls[-1].at_s - calls[0].at_s)
    for lane, row in found.items():
        mine = [one for one in calls if lane in (one.lane, "all")]
        good_ones = [one for one in mine if plain_good(one)]
        served = [one for one in mine if one.end == "served"]
        wanted = {
            "offered": len(mine),
            "good": len(good_ones),
            "late": len(served) - len(good_ones),
            "refused": sum(one.end == "refused" for one in mine),
            "failed": sum(one.end == "failed" for one in mine),
            "restrained": sum(one.restrained_s is not None for one in mine),
            "falsely_restrained": sum(plain_false(one, onsets, eligible) for one in mine),
            "answers_429": sum(one.refusals for one in mine),
        }
        assert {name: row[name] for name in wanted} == wanted
        assert row["good"] + row["late"] + row["refused"] + row["failed"] == row["offered"]
        assert row["good_share"] == pytest.approx(len(good_ones) / len(mine))
        assert row["goodput_per_s"] == pytest.approx(len(good_ones) / span_s)
        waits = [one.first_token_s - one.at_s for one in served if one.first_token_s is not None]
        median = pytest.approx(float(np.median(waits))) if waits else None
        assert row["ttft_p50_s"] == median


@settings(max_examples=40, deadline=None)
@given(endings(), st.integers(0, 9))
def test_arms_differ_by_the_calls_that_are_good_in_one_of_them(calls: list[Call], seed: int) -> None:
    random = Random(seed)
    others = [
        ended(one.at_s, one.lane, "refused", None)
        if random.random() < 0.3
        else ended(one.at_s, one.lane, "served", 0.1)
        for one in calls
    ]
    found = differences(outcomes(others), outcomes(calls), TARGETS_S, seed=seed)
    assert list(found) == ["all", *LANES]
    for lane, apart in found.items():
        pairs = [(a, b) for a, b in zip(others, calls, strict=True) if lane in (a.lane, "all")]
        ours, theirs = sum(plain_good(a) for a, _ in pairs), sum(plain_good(b) for _, b in pairs)
        if not pairs:
            assert (apart.good_share.value, apart.relative) == (None, None)
            continue
        assert apart.good_share.value == pytest.approx((ours - theirs) / len(pairs))
        assert apart.relative == (pytest.approx(ours / theirs - 1.0) if theirs else None)
        hours = {(int(a.at_s) - int(calls[0].at_s)) // 3600 for a, _ in pairs}
        assert (apart.good_share.low is None) == (len(hours) < 5)


def test_intervals_are_of_whole_hours_drawn_again() -> None:
    # Every hour has a hundred calls; with the forecast one more of them is good in each odd hour.
    at_s = [3600 * hour + 36 * n for hour in range(10) for n in range(100)]
    alone = [ended(at, "batch", "served", 1.0 if n % 100 else 9.0) for n, at in enumerate(at_s)]
    ours = [
        ended(at, "batch", "served", 1.0 if n % 100 or n // 100 % 2 else 9.0) for n, at in enumerate(at_s)
    ]
    apart = differences(outcomes(ours), outcomes(alone), TARGETS_S, seed=4)["all"]
    gains = np.array([0.0, 0.01] * 5)
    draws = np.random.default_rng(4).multinomial(10, np.full(10, 0.1), 1_000)
    low, high = np.quantile(draws @ gains / 10, (0.05, 0.95))
    assert apart.good_share.value == pytest.approx(0.005)
    assert (apart.good_share.low, apart.good_share.high) == (pytest.approx(low), pytest.approx(high))
    assert apart.relative == pytest.approx(995 / 990 - 1)


def test_a_target_that_is_met_to_the_moment_is_met_and_what_is_not_served_is_never_good() -> None:
    calls = [
        ended(0.0, "standard", "served", 0.8),
        ended(0.0, "standard", "served", 0.81),
        ended(0.0, "premium", "served", 0.21),
        ended(0.0, "batch", "failed", 0.1),
        ended(0.0, "batch", "refused", None),
    ]
    assert outcomes(calls).select(good(TARGETS_S)).to_series().to_list() == [True, False, False, False, False]


def test_only_a_negative_tick_restrains_falsely() -> None:
    # Ticks 0 to 195 s; an onset at 150 s; those from 50 s to 70 s don't count.
    eligible = [not 50 <= t <= 70 for t in range(0, 200, 5)]
    span = ticks(0, 40, (150,), eligible=eligible)
    at = {12.0: True, 52.0: False, 89.9: True, 90.0: False, 149.0: False, 160.0: True, 500.0: False}
    calls = [ended(0.0, "batch", "served", 1.0, restrained_s=at_s) for at_s in at]
    free = ended(0.0, "batch", "served", 1.0)
    marked = restrained(outcomes([*calls, free]), span)
    assert marked["false"].to_list() == [*at.values(), False]


def test_outcomes_are_in_the_order_of_the_calls() -> None:
    calls = [ended(float(n), "batch", "served", 1.0, generated_tokens=n) for n in range(5)]
    frame = outcomes(calls)
    assert frame["output_tokens"].to_list() == [0, 1, 2, 3, 4]
    assert frame["sent_s"].to_list() == frame["at_s"].to_list()
