from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.live.samples import Sample
from serving.telemetry.fleet import Fleet, combine

OK = Sample(source="pool", at_us=0, engine="", state="ok")


def sample(**readings: Any) -> Sample:
    return replace(OK, **readings)


def test_queues_add_up_and_kv_shares_do_not():
    fleet = combine(
        [
            sample(engine="0", waiting=3, running=7, kv_cache_usage=0.9, kv_blocks=1_000),
            sample(engine="1", waiting=4, running=2, kv_cache_usage=0.1, kv_blocks=3_000),
        ]
    )
    assert (fleet.waiting, fleet.running) == (7, 9)
    assert fleet.kv_cache_usage == pytest.approx(0.3)


def test_where_a_weight_is_not_known_the_worst_engine_speaks():
    engines = [
        sample(engine="0", kv_cache_usage=0.9, prefix_hit_rate=0.8, prompt_tokens_per_s=100.0),
        sample(engine="1", kv_cache_usage=0.1, kv_blocks=3_000, prefix_hit_rate=0.2),
    ]
    assert (combine(engines).kv_cache_usage, combine(engines).prefix_hit_rate) == (0.9, 0.2)


def test_hit_rates_are_weighted_by_prompt_tokens():
    busy, quiet = (
        sample(engine=name, prefix_hit_rate=rate, prompt_tokens_per_s=tokens_per_s)
        for name, rate, tokens_per_s in (("0", 0.8, 900.0), ("1", 0.2, 100.0))
    )
    assert combine([busy, quiet]).prefix_hit_rate == pytest.approx(0.74)


def test_only_engines_that_are_ok_tell_and_none_is_zero():
    readings = {"waiting": 9, "kv_cache_usage": 0.99, "prefix_hit_rate": 0.1}
    asked = [sample(engine=state, state=state, **readings) for state in ("suspect", "failed")]
    assert combine(asked) == Fleet(engines=2)
    assert combine([*asked, sample(engine="2", waiting=5)]) == Fleet(engines=3, telling=1, waiting=5)


SHARES = st.one_of(st.none(), st.floats(0, 1))


@given(st.lists(st.tuples(SHARES, SHARES, st.one_of(st.none(), st.floats(0, 1e9))), max_size=5))
def test_a_fleet_lies_between_its_engines(engines: list[tuple[float | None, float | None, float | None]]):
    fleet = combine(
        sample(kv_cache_usage=usage, prefix_hit_rate=hits, prompt_tokens_per_s=weight, kv_blocks=3)
        for usage, hits, weight in engines
    )
    for place, value in ((0, fleet.kv_cache_usage), (1, fleet.prefix_hit_rate)):
        known = [shares[place] for shares in engines if shares[place] is not None]
        assert (value is None) == (not known)
        assert value is None or min(known) - 1e-12 <= value <= max(known)
