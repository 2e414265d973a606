import json
from dataclasses import replace
from random import Random

import polars as pl
import pytest

from data.errors import InputError
from pipeline.simulate.fleet import Fleet
from pipeline.simulate.study import Settings, adapted, study
from serving.controller.engine_model import H100
from serving.controller.rules import Rules
from tests.pipeline.simulate.samples import requests, ticks

START_S, COUNT = 100, 120
ONSET_S = 400


@pytest.fixture(scope="module")
def trace() -> pl.DataFrame:
    """Two calls a second for a quarter of an hour, with a crowd from the onset on."""
    random = Random(3)
    times = [random.uniform(0.0, 900.0) for _ in range(1_800)]
    times += [random.uniform(ONSET_S, ONSET_S + 20.0) for _ in range(500)]
    rows = [
        {
            "at_s": at_s,
            "prompt_tokens": random.randrange(100, 2_000),
            "output_tokens": random.randrange(10, 400),
            "lane": random.choice(("premium", "standard", "batch")),
            "tenant": random.choice("abc"),
        }
        for at_s in sorted([0.0, *times])
    ]
    return requests(*rows)


@pytest.fixture(scope="module")
def span() -> pl.DataFrame:
    alarm = [int(ONSET_S - 60 <= t < ONSET_S + 20) for t in range(START_S, START_S + 5 * COUNT, 5)]
    return ticks(START_S, COUNT, (ONSET_S,), alarm=alarm, tightening=[float(on) for on in alarm])


def test_every_arm_gets_the_same_calls_and_is_compared_with_rules_alone(
    trace: pl.DataFrame, span: pl.DataFrame
) -> None:
    told: list[tuple[str, float]] = []
    found = study(trace, span, Rules(), Settings(), lambda what, share: told.append((what, share)))
    assert [arm["name"] for arm in found["arms"]] == ["rules", "forecast", "oracle"]
    assert found["span"] == {"start_s": START_S, "end_s": START_S + 5 * COUNT}
    within = trace.with_columns(
        at_s=(pl.col("arrived_at") - trace["arrived_at"][0]).dt.total_microseconds() / 1e6
    )
    within = within.filter(pl.col("at_s").is_between(START_S, START_S + 5 * COUNT, closed="left"))
    assert found["calls"] == within.height
    for arm in found["arms"]:
        lanes = {lane["lane"]: lane for lane in arm["lanes"]}
        assert list(lanes) == ["premium", "standard", "batch", "all"]
        assert lanes["all"]["offered"] == found["calls"]
        assert sum(lanes[name]["offered"] for name in ("premium", "standard", "batch")) == found["calls"]
    alone, forecast, oracle = ({lane["lane"]: lane for lane in arm["lanes"]} for arm in found["arms"])
    assert alone["all"]["restrained"] == 0
    assert {lane["difference"]["good_share"]["value"] for lane in alone.values()} == {0.0}
    assert forecast["all"]["restrained"] > 0
    assert oracle["all"]["falsely_restrained"] == 0
    for name in alone:
        apart = forecast[name]["good_share"] - alone[name]["good_share"]
        assert forecast[name]["difference"]["good_share"]["value"] == pytest.approx(apart)
    arms = [f"play to {arm['title']}" for arm in found["arms"]]
    assert list(dict.fromkeys(what for what, _ in told)) == ["size the fleet", *arms]


def test_the_same_arguments_give_the_same_numbers_and_another_seed_others(
    trace: pl.DataFrame, span: pl.DataFrame
) -> None:
    first, again = (json.dumps(study(trace, span, Rules(), Settings(seed=1))) for _ in range(2))
    assert first == again
    assert first != json.dumps(study(trace, span, Rules(), Settings(seed=2))).replace(
        '"seed": 2', '"seed": 1'
    )


def test_without_alarms_and_onsets_all_arms_are_rules_alone(trace: pl.DataFrame) -> None:
    found = study(trace, ticks(START_S, COUNT), Rules(), Settings())
    first, *others = (arm["lanes"] for arm in found["arms"])
    assert [others[0], others[1]] == [first, first]


def test_waiting_changes_what_users_get(trace: pl.DataFrame, span: pl.DataFrame) -> None:
    at_once, waits = (study(trace, span, Rules(), Settings(waits=waits)) for waits in (False, True))
    first, second = (found["arms"][0]["lanes"][-1] for found in (at_once, waits))
    assert second["answers_429"] < first["answers_429"]


def test_rules_keep_what_they_say_and_take_the_fleet_for_the_rest() -> None:
    slow = Fleet(replace(H100, kv_blocks=1_000), replicas=3, load=0.6, slowed=2.0)
    rules = adapted(Rules(), slow)
    assert (rules.engine, rules.capacity) == (slow.profile, 48_000)
    assert [rules.lane(name).ttft_target_ms for name in ("premium", "standard", "batch")] == [
        400,
        1_600,
        10_000,
    ]
    told = adapted(Rules(capacity_tokens=7_000), replace(slow, slowed=0.5))
    assert (told.capacity, told.premium.ttft_target_ms) == (7_000, 200)


def test_a_span_without_calls_is_refused(trace: pl.DataFrame) -> None:
    with pytest.raises(InputError, match="two or more, at different times"):
        study(trace, ticks(5_000, 10), Rules(), Settings())
