import json
import math
import re
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.live.engines import WANTED, Reading, read
from data.live.exposition import ScrapeError, parse
from data.live.samples import Sample, frame
from data.live.stillness import GAUGES
from data.live.track import Observed, Track
from data.schema import ENGINE_SAMPLES
from data.writer import fitted

AT_US = 1_700_000_000_000_000


def reading(started_s: float | None = None, **values: float) -> Reading:
    return Reading("0", "vllm", "m", values, started_s)


def observed(*readings: Reading, every_s: float = 10.0) -> list[Observed]:
    track = Track("pool", 60.0)
    return [track.observe(each, AT_US, every_s * i) for i, each in enumerate(readings)]


def samples(*readings: Reading, every_s: float = 10.0) -> list[Sample]:
    return [each.sample for each in observed(*readings, every_s=every_s)]


def test_an_interval_has_rates_and_means():
    before = dict.fromkeys(
        ("prompt_tokens", "output_tokens", "requests", "preemptions", "cached_tokens", "looked_up_tokens"),
        0.0,
    )
    before |= dict.fromkeys(("ttft_sum", "ttft_count", "tpot_sum", "tpot_count"), 0.0)
    after = {
        "prompt_tokens": 800.0,
        "output_tokens": 400.0,
        "requests": 20.0,
        "preemptions": 5.0,
        "cached_tokens": 600.0,
        "looked_up_tokens": 800.0,
        "ttft_sum": 6.0,
        "ttft_count": 20.0,
        "tpot_sum": 8.0,
        "tpot_count": 400.0,
    }
    first, second = samples(
        reading(**before, waiting=1), reading(**after, waiting=3, running=7, kv_blocks=99)
    )
    assert (first.state, first.reason, first.interval_s) == ("ok", "first reading: no rates yet", None)
    assert second == Sample(
        source="pool",
        at_us=AT_US,
        engine="0",
        kind="vllm",
        model="m",
        state="ok",
        waiting=3,
        running=7,
        kv_blocks=99,
        interval_s=10.0,
        prefix_hit_rate=0.75,
        prompt_tokens_per_s=80.0,
        output_tokens_per_s=40.0,
        requests_per_s=2.0,
        preemptions_per_s=0.5,
        ttft_mean_s=0.3,
        tpot_mean_s=0.02,
    )


def test_kv_use_out_of_range_is_dropped_and_counted_never_clamped():
    (below, above) = observed(reading(kv_cache_usage=-0.39), reading(kv_cache_usage=39.0))
    assert below.dropped + above.dropped == 2
    assert (below.sample.kv_cache_usage, above.sample.kv_cache_usage) == (None, None)
    assert "-0.39 lies outside 0 to 1" in (below.sample.reason or "")


def test_kv_use_that_may_be_a_percentage_is_refused_until_the_engine_restarts():
    uses = [(0.9, 1e3), (1.1, 2e3), (0.9, 3e3), (0.9, 5.0)]
    told = observed(*(reading(kv_cache_usage=use, prompt_tokens=count) for use, count in uses))
    assert [each.sample.kv_cache_usage for each in told] == [0.9, None, None, 0.9]
    assert [each.dropped for each in told] == [0, 1, 1, 0]
    assert "may be a percentage" in (told[2].sample.reason or "")


def test_one_infinite_reading_leaves_the_others_as_they_are():
    told = observed(*(reading(waiting=value) for value in (5.0, math.inf, 5.0, 5.0)))
    assert [each.sample.waiting for each in told] == [5, None, 5, 5]
    assert [each.dropped for each in told] == [0, 1, 0, 0]


def test_a_counter_that_is_not_a_number_makes_both_its_intervals_unknown():
    told = observed(*(reading(requests=count) for count in (10.0, math.nan, 30.0, 40.0)))
    assert [each.sample.requests_per_s for each in told] == [None, None, None, 1.0]
    assert told[1].sample.reason == "requests is NaN"


def test_an_idle_hour_has_no_load_and_unknown_ratios():
    idle = reading(prompt_tokens=9e5, looked_up_tokens=9e5, cached_tokens=4e5, ttft_sum=3.0, ttft_count=7.0)
    last = samples(*[idle] * 60, every_s=60.0)[-1]
    assert (last.state, last.prompt_tokens_per_s) == ("ok", 0.0)
    assert (last.prefix_hit_rate, last.ttft_mean_s) == (None, None)


def test_a_hit_rate_gauge_counts_only_where_there_are_no_counters():
    assert samples(reading(hit_rate=0.6))[0].prefix_hit_rate == 0.6
    assert samples(reading(hit_rate=0.0, cached_tokens=5.0))[0].prefix_hit_rate is None


def test_more_hits_than_look_ups_are_no_rate():
    before, after = reading(cached_tokens=0, looked_up_tokens=0), reading(cached_tokens=9, looked_up_tokens=5)
    told = observed(before, after)[1]
    assert (told.sample.prefix_hit_rate, told.dropped) == (None, 1)


def test_gauges_frozen_after_a_mass_abort_are_suspect_and_unknown():
    stuck = reading(kv_cache_usage=0.99, waiting=40, running=0, prompt_tokens=1e6, output_tokens=1e6)
    told = samples(*[stuck] * 8)
    assert [sample.state for sample in told] == ["ok"] * 6 + ["suspect"] * 2
    assert [told[-1].kv_cache_usage, told[-1].waiting, told[-1].running] == [None, None, None]
    assert told[-1].output_tokens_per_s == 0.0
    assert told[-1].reason == "waiting stood at 40 for 70 s while no token was counted"


def test_tokens_counted_just_after_the_gauges_froze_do_not_save_them():
    stuck = [
        reading(kv_cache_usage=0.99, output_tokens=5e5 + min(i, 1)) for i in range(9)
    ]  # one token comes late
    assert [sample.state for sample in samples(*stuck)] == ["ok"] * 7 + ["suspect"] * 2


def test_a_gauge_that_moves_again_is_believed_again():
    stuck = [reading(kv_cache_usage=0.99, output_tokens=5e5)] * 8
    assert samples(*stuck, reading(kv_cache_usage=0.1, output_tokens=5e5))[-1].kv_cache_usage == 0.1


def test_a_gauge_that_stands_against_flowing_tokens_is_suspect():
    told = samples(*(reading(kv_cache_usage=0.0, output_tokens=2e4 * i) for i in range(8)))
    assert told[5].state == "ok"
    assert (told[-1].state, told[-1].kv_cache_usage, told[-1].output_tokens_per_s) == ("suspect", None, 2e3)
    assert told[-1].reason == "kv_cache_usage stood at 0 for 70 s while 2000 tokens/s were generated"


@pytest.mark.parametrize(
    ("kv_cache_usage", "tokens_per_s"),
    [
        pytest.param(0.0, 0.0, id="idle"),
        pytest.param(0.0, 20.0, id="short requests between the scrapes"),
        pytest.param(1.0, 2e3, id="full under load"),
    ],
)
def test_a_gauge_that_may_honestly_stand_still_is_believed(kv_cache_usage: float, tokens_per_s: float):
    still = [
        reading(kv_cache_usage=kv_cache_usage, running=0, output_tokens=10 * tokens_per_s * i)
        for i in range(20)
    ]
    assert {sample.state for sample in samples(*still)} == {"ok"}


def test_without_token_counters_nothing_speaks_against_a_gauge():
    assert {sample.state for sample in samples(*[reading(kv_cache_usage=0.5)] * 20)} == {"ok"}


def test_a_gap_starts_the_count_of_standing_still_anew():
    track = Track("pool", 60.0)
    stuck = reading(kv_cache_usage=0.99, output_tokens=5e5)
    states = [track.observe(stuck, AT_US, at_s).sample.state for at_s in (0.0, 50.0, 3600.0, 3650.0, 3660.0)]
    assert states == ["ok"] * 4 + ["suspect"]


ANY = st.one_of(st.floats(), st.floats(0, 1), st.integers(0, 1000).map(float))
SIGNALS = (
    "waiting",
    "running",
    "kv_cache_usage",
    "kv_blocks",
    "hit_rate",
    "cached_tokens",
    "looked_up_tokens",
)
READINGS = st.dictionaries(st.sampled_from((*SIGNALS, "output_tokens", "ttft_sum", "ttft_count")), ANY)


@given(st.lists(READINGS, max_size=8), st.floats(1, 40))
def test_whatever_an_engine_exports_its_samples_are_rows_of_the_lake(
    values: list[dict[str, float]], every_s: float
):
    told = samples(*(reading(**each) for each in values), every_s=every_s)
    rows = fitted("engine_samples", frame(told))
    assert rows.height == len(values)
    for column in ENGINE_SAMPLES:
        if column.polars in (pl.Float64(), pl.Int64()):
            assert (rows[column.name].drop_nulls() >= 0).all()
            assert rows[column.name].cast(pl.Float64).drop_nulls().is_finite().all()
    for sample, each in zip(told, values, strict=True):
        for name in GAUGES:
            shown: Any = getattr(sample, name)
            assert shown is None or shown == each[name]


LINES = st.tuples(
    st.sampled_from(sorted(name for name in WANTED if "vllm" in name)),
    st.dictionaries(
        st.sampled_from(
            ["engine", "WorkerId", "tp_rank", "priority", "reason", "num_gpu_blocks", "model_name"]
        ),
        st.one_of(st.integers(0, 2).map(str), st.text(max_size=5)),
        max_size=3,
    ),
    st.one_of(st.floats(), st.integers(0, 10**20), st.text(max_size=5)),
)


@given(st.lists(st.lists(LINES, max_size=6), max_size=2))
def test_any_page_is_rows_of_the_lake_or_a_reason(pages: list[list[tuple[str, dict[str, str], object]]]):
    tracks: dict[str, Track] = {}
    for at_s, page in enumerate(pages):
        text = "".join(
            name + json.dumps(labels, ensure_ascii=False).replace('": ', '"=') + f" {value}\n"
            for name, labels, value in page
        )
        for each in (text, re.sub(r'"(\w+)"=', r"\1=", text)):
            try:
                understood = read(parse(each.encode(), "text/plain", WANTED))
            except ScrapeError:
                continue
            rows = [
                tracks.setdefault(r.engine, Track("pool", 60.0)).observe(r, AT_US, at_s).sample
                for r in understood
            ]
            assert fitted("engine_samples", frame(rows)).height == len(understood)
