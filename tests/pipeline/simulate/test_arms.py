from hypothesis import given
from hypothesis import strategies as st

from pipeline.simulate.arms import arms
from tests.pipeline.simulate.samples import ticks


def test_rules_alone_are_told_nothing_and_the_forecast_arm_its_alarms() -> None:
    span = ticks(100, 4, alarm=[0, 1, 1, 0], tightening=[0.0, 0.4, 1.0, 0.0])
    alone, forecast, oracle = arms(span)
    assert [one.name for one in (alone, forecast, oracle)] == ["rules", "forecast", "oracle"]
    assert (alone.tightening, forecast.tightening, oracle.tightening) == ({}, {105: 0.4, 110: 1.0}, {})


@given(
    first=st.integers(0, 40).map(lambda n: 5 * n),
    count=st.integers(1, 60),
    onsets=st.sets(st.integers(0, 700), max_size=5),
)
def test_the_oracle_tightens_through_the_last_minute_before_each_onset(
    first: int, count: int, onsets: set[int]
) -> None:
    oracle = arms(ticks(first, count, tuple(onsets)))[2]
    near = {t for t in range(first, first + 5 * count, 5) if any(0 < x - t <= 60 for x in onsets)}
    assert oracle.tightening == dict.fromkeys(sorted(near), 1.0)
