import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import InputError
from pipeline.simulate.calls import Call
from pipeline.simulate.fleet import Scrapes, peak_blocks, saturated_calls_per_s, sized, slowed
from serving.controller.decide import Controller
from serving.controller.engine_model import H100
from serving.controller.rules import Rules
from tests.pipeline.simulate.samples import PLAIN, call, fleet


def traffic(per_s: float, seconds: float = 120.0, seed: int = 1) -> list[Call]:
    """Calls at random times, of mixed lengths."""
    random = Random(seed)
    return [
        call(at_s, random.randrange(50, 3_000), random.randrange(2, 300))
        for at_s in sorted(random.uniform(0.0, seconds) for _ in range(round(per_s * seconds)))
    ]


@settings(max_examples=15, deadline=None)
@given(per_s=st.floats(0.2, 8.0), load=st.floats(0.05, 1.5), seed=st.integers(0, 99))
def test_the_calls_load_the_fleet_as_asked_for(per_s: float, load: float, seed: int) -> None:
    calls = traffic(per_s, 60.0, seed)
    made = sized(calls, H100, replicas=None, load=load, kv_room=None)
    offered_per_s = len(calls) / (calls[-1].at_s - calls[0].at_s)
    can_per_s = made.replicas * saturated_calls_per_s(calls, made.profile)
    assert offered_per_s / can_per_s == pytest.approx(load, rel=0.02)
    assert made.load == pytest.approx(load)
    # As few as can: one less would have to be faster than the profile.
    assert made.replicas == 1 or 1.0 <= made.slowed < made.replicas / (made.replicas - 1) + 1e-9


def test_replicas_that_are_asked_for_are_as_the_profile_says() -> None:
    calls = traffic(2.0)
    made = sized(calls, H100, replicas=3, load=0.6, kv_room=None)
    assert (made.profile, made.replicas, made.slowed) == (H100, 3, 1.0)
    offered_per_s = len(calls) / (calls[-1].at_s - calls[0].at_s)
    assert made.load == pytest.approx(offered_per_s / saturated_calls_per_s(calls, H100) / 3)


def test_a_slower_engine_takes_as_many_times_as_long_for_everything() -> None:
    calls, half = traffic(2.0), slowed(H100, 2.0)
    assert half.name == f"{H100.name}, 0.50 times as fast"
    assert half.prefill_s(700) == pytest.approx(2 * H100.prefill_s(700))
    assert half.decode_step_s(9) == pytest.approx(2 * H100.decode_step_s(9))
    assert saturated_calls_per_s(calls, half) == pytest.approx(saturated_calls_per_s(calls, H100) / 2)


def test_kv_room_is_a_share_of_what_calls_hold_at_their_peak_and_holds_the_largest() -> None:
    calls = traffic(6.0)
    made = sized(calls, H100, replicas=1, load=0.6, kv_room=0.5)
    peak = peak_blocks(calls, H100, 1)
    largest = max(one.prompt_tokens + one.output_tokens for one in calls)
    assert made.profile.kv_blocks == round(0.5 * peak) > largest / H100.block_tokens
    tight = sized(calls, H100, replicas=1, load=0.6, kv_room=1e-6)
    assert largest <= tight.profile.capacity_tokens < largest + 2 * H100.block_tokens
    assert sized(calls, H100, replicas=2, load=0.6, kv_room=None).capacity_tokens == 2 * H100.capacity_tokens


def test_peak_of_calls_that_overlap_is_that_of_all_together() -> None:
    # 100 prompt tokens are 7 blocks, 8 with the token at the end of prefill where that begins another.
    assert peak_blocks([call(0.0, 96), call(100.0, 96)], PLAIN, 1) == 7
    assert peak_blocks([call(0.0, 96), call(0.0, 96), call(0.1, 96)], PLAIN, 1) >= 14


def test_what_is_cached_holds_kv_room_as_long_as_its_call_runs() -> None:
    # 64 of 96 tokens are in cache, 4 blocks, as if all were computed; the first ends before the next comes.
    assert peak_blocks([call(0.0, 96, cached_tokens=64), call(100.0, 96, cached_tokens=64)], PLAIN, 1) == 7
    together = [call(0.0, 96, cached_tokens=64), call(0.0, 96, cached_tokens=64), call(0.1, 96)]
    assert peak_blocks(together, PLAIN, 1) >= 14


def test_who_waits_in_line_holds_nothing() -> None:
    # All come at once, and none ends before the last: a batch holds 256 of them, whoever else waits.
    def crowd(size: int) -> list[Call]:
        return [call(at_s, 96, 400, cached_tokens=64) for at_s in (*[0.0] * size, 20.0)]

    assert peak_blocks(crowd(300), PLAIN, 1) == peak_blocks(crowd(256), PLAIN, 1) >= 256 * 7


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"replicas": 0}, "must have 1 or more replicas; got 0"),
        ({"load": 0.0}, "The load must be over 0, such as 0.6; got 0"),
        ({"load": math.inf}, "got inf"),
        ({"load": math.nan}, "got nan"),
        ({"kv_room": -0.1}, "The KV room must be over 0 and at most 1; got -0.1"),
        ({"kv_room": 1.5}, "got 1.5"),
        ({"kv_room": math.nan}, "got nan"),
    ],
)
def test_numbers_out_of_range_are_refused_in_a_sentence(changed: dict[str, float], sentence: str) -> None:
    asked = {"replicas": None, "load": 0.6, "kv_room": 0.6} | changed
    with pytest.raises(InputError, match=sentence):
        sized(traffic(1.0), H100, **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize("calls", [[], [call(3.0)], [call(3.0), call(3.0)]])
def test_calls_at_one_time_say_nothing_of_a_load(calls: list[Call]) -> None:
    with pytest.raises(InputError, match="two or more, at different times"):
        sized(calls, H100, replicas=None, load=0.6, kv_room=0.6)


def test_a_scrape_reads_all_replicas_and_what_is_not_known_stays_unknown() -> None:
    made = fleet(2)
    engines = made.engines()
    controller = Controller(Rules(engine=made.profile, capacity_tokens=made.capacity_tokens))
    scrapes = Scrapes(engines)
    scrapes.read(controller, 0.0, [])
    assert controller.snapshot(0.0).backpressure == 0.0
    for engine in engines:
        for _ in range(3):
            engine.submit(0.0, prompt_tokens=4_000, output_tokens=10)
    cached = call(0.0, 4_000, cached_tokens=1_000)
    scrapes.sent(cached)
    scrapes.read(controller, 5.0, [cached])
    batch = (sum(engine.blocks.used for engine in engines) * 16 + 1_000) / made.capacity_tokens
    waiting = sum(engine.waiting for engine in engines)
    assert waiting == 4  # a step of 2,048 prompt tokens lets in one prompt of 4,000
    wanted = 0.4 * batch + 0.3 * waiting / Rules().queue_capacity + 0.3 * 0.75
    assert controller.snapshot(5.0).backpressure == pytest.approx(wanted, abs=1e-6)


def test_every_run_begins_with_idle_engines() -> None:
    made = replace(fleet(3))
    first = made.engines()
    first[0].submit(0.0, prompt_tokens=10, output_tokens=2)
    assert [(one.running, one.waiting, one.next_s) for one in made.engines()] == [(0, 0, None)] * 3
