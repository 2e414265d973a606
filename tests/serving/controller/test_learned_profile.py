import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.controller.engine_model import A100, H100, EngineProfile, saturation_concurrency
from serving.controller.learned_profile import ENOUGH_READINGS, FARTHEST, STEP, LearnedProfile

IMPOSSIBLE = [float("nan"), float("inf"), float("-inf"), -1.0]
NAMES = (
    "running",
    "waiting",
    "output_tokens_per_s",
    "tpot_mean_s",
    "ttft_mean_s",
    "queue_time_mean_s",
    "prompt_tokens_per_s",
    "requests_per_s",
    "prefix_hit_rate",
)
readings = st.none() | st.sampled_from([0.0, 5e-324, *IMPOSSIBLE]) | st.floats(0, 1e9)
samples = st.fixed_dictionaries(dict.fromkeys(NAMES, readings))


def serve(learned: LearnedProfile, engine: EngineProfile, samples: int, noise: float = 0.1) -> None:
    """Samples of an engine under a load that comes and goes."""
    random = Random(5)
    for _ in range(samples):
        batch, tokens = random.randrange(1, 200), random.randrange(100, 8_000)
        learned.observe(
            running=batch,
            tpot_mean_s=engine.decode_step_s(batch) * random.lognormvariate(0.0, noise),
            ttft_mean_s=0.3 + engine.prefill_s(tokens) * random.lognormvariate(0.0, noise),
            queue_time_mean_s=0.3,
            prompt_tokens_per_s=2.0 * tokens / 0.8,
            requests_per_s=2.0,
            prefix_hit_rate=0.2,
        )


def test_another_engine_than_said_is_learned():
    learned = LearnedProfile(H100)
    serve(learned, A100, 2_000)
    profile = learned.profile

    assert learned.decode.enough
    assert learned.prefill.enough
    for batch in (1, 64, 200):
        assert profile.decode_step_s(batch) == pytest.approx(A100.decode_step_s(batch), rel=0.1)
    for tokens in (2_000, 4_000, 8_000):
        assert profile.prefill_s(tokens) == pytest.approx(A100.prefill_s(tokens), rel=0.2)


def test_the_saturation_point_follows():
    learned = LearnedProfile(H100)
    serve(learned, A100, 2_000)
    bounds = [
        saturation_concurrency(profile, 4_000, 256, ttft_target_s=2.0, tpot_target_s=0.1)
        for profile in (H100, learned.profile, A100)
    ]

    assert bounds[0] / bounds[2] > 2
    assert bounds[1] == pytest.approx(bounds[2], rel=0.3)


def test_until_enough_is_known_the_profile_is_the_one_to_start_from():
    learned = LearnedProfile(H100)
    serve(learned, A100, ENOUGH_READINGS - 1)
    assert learned.profile is H100
    assert not learned.decode.enough

    serve(learned, A100, 1)
    assert learned.profile is not H100


def test_readings_that_follow_no_line_teach_nothing():
    learned, random = LearnedProfile(H100), Random(2)
    for _ in range(1_000):
        learned.observe(running=random.randrange(1, 200), tpot_mean_s=random.choice([1e-4, 10.0]))

    assert learned.decode.readings == 1_000
    assert not learned.decode.enough
    assert learned.profile is H100


@given(st.floats(1e-9, 1e9), st.integers(1, 1_000_000))
def test_no_single_reading_moves_a_line_by_more_than_a_step(step_s, batch):
    learned = LearnedProfile(H100)
    serve(learned, H100, 200)
    before = learned.profile
    learned.observe(running=batch, tpot_mean_s=step_s)
    after = learned.profile

    for here in (1, 64, 1_000):
        moved = math.log(after.decode_step_s(here) / before.decode_step_s(here))
        assert abs(moved) <= STEP * (1 + 1e-9)


@given(st.lists(samples, max_size=60))
def test_what_is_learned_stays_within_its_bounds_whatever_is_read(stream):
    learned = LearnedProfile(A100)
    for sample in stream * 5:
        learned.observe(**sample)
        profile = learned.profile
        for name in ("decode_base_s", "decode_s_per_request", "prefill_s_per_token", "prefill_floor_s"):
            ratio = getattr(profile, name) / getattr(A100, name)
            assert 1 / FARTHEST - 1e-9 <= ratio <= FARTHEST + 1e-9
        assert profile.kv_blocks == A100.kv_blocks


@given(st.sampled_from(NAMES), st.sampled_from([None, *IMPOSSIBLE]))
def test_impossible_and_unknown_readings_change_nothing(name, value):
    clean, told = LearnedProfile(H100), LearnedProfile(H100)
    for learned in (clean, told):
        serve(learned, A100, 300)
    told.observe(**{name: value})

    assert told.profile == clean.profile
    assert (told.decode, told.prefill) == (clean.decode, clean.prefill)
    assert told.dropped == (value is not None)


def test_the_step_follows_from_tokens_made_where_nobody_times_it():
    learned = LearnedProfile(H100)
    for _ in range(ENOUGH_READINGS):
        learned.observe(running=64, output_tokens_per_s=64 / 0.06)

    assert learned.profile.decode_step_s(64) == pytest.approx(0.06, rel=0.02)


@pytest.mark.parametrize(
    ("readings", "learns"),
    [
        ({"queue_time_mean_s": 0.1}, True),
        ({"waiting": 0}, True),
        ({"waiting": 3}, False),
        ({}, False),
        ({"queue_time_mean_s": 0.1, "prefix_hit_rate": None}, False),
        ({"queue_time_mean_s": 0.1, "requests_per_s": 0.0}, False),
        ({"queue_time_mean_s": 9.0}, False),
    ],
)
def test_time_in_the_queue_is_no_prefill_and_unknown_is_not_zero(readings, learns):
    learned = LearnedProfile(H100)
    known = {"ttft_mean_s": 0.5, "prompt_tokens_per_s": 900.0, "requests_per_s": 1.0, "prefix_hit_rate": 0.0}
    learned.observe(**{**known, **readings})

    assert learned.prefill.readings == int(learns)


def test_an_idle_engine_teaches_nothing():
    learned = LearnedProfile(H100)
    learned.observe(running=0, output_tokens_per_s=0.0, tpot_mean_s=0.04)
    learned.observe(running=5, output_tokens_per_s=0.0)

    assert (learned.decode.readings, learned.decode.error) == (0, None)
