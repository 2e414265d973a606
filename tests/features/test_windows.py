import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.batch import batch_features, half_peaks, known_before, season_peaks
from features.bursts import burst_line
from features.flows import flow_seconds
from features.ticks import TICK_S
from features.windows import (
    CHANNELS,
    CYCLES,
    HALVES,
    NAMES,
    SEASONS_S,
    SPEC_HASH,
    WINDOWS_S,
    assemble,
    baseline_of,
    cycle_ticks,
    day_before,
    line_of,
    over_line,
    usual_of,
)
from tests.features.frames import frame, random_frame

WAVES = [name for name in NAMES if name.startswith(("sin_", "cos_"))]


def column(features: np.ndarray, name: str) -> np.ndarray:
    return features[:, NAMES.index(name)]


def steady(seconds: int, per_s: int = 2, prompt_tokens: int = 1_000) -> np.ndarray:
    """Features of an even stream of prompts that answer nothing."""
    arrived_s = (np.arange(seconds * per_s) / per_s).tolist()
    return batch_features(frame(arrived_s, {"prompt_tokens": [prompt_tokens] * len(arrived_s)}))


def test_names_are_unique_and_one_a_column():
    assert len(set(NAMES)) == len(NAMES)
    assert steady(100).shape == (20, len(NAMES))
    assert all(re.fullmatch(r"[a-z]+(_-?[a-z0-9]+)*", name) for name in NAMES)


def test_the_hash_names_the_list():
    assert re.fullmatch(r"[0-9a-f]{16}", SPEC_HASH)


def test_features_are_unknown_before_a_minute_of_history_and_finite_after():
    features = batch_features(random_frame(0, 400, 60))
    early = np.arange(len(features)) * TICK_S < 70
    assert np.isnan(features[early]).all()
    assert np.isfinite(features[~early]).all()


def test_an_even_stream_reads_as_itself():
    last = steady(4_000)[-1:]
    # 2,000 tokens/s over a baseline of as much + 1, in every window.
    for name in ("load_lag_0_s", "load_lag_110_s", "load_5_s", "load_1800_s"):
        assert column(last, name) == pytest.approx(np.log(2_000 / 2_001 + 0.02), abs=1e-6)
    assert column(last, "baseline") == pytest.approx(np.log(2_001), abs=1e-6)
    assert column(last, "rate_hour") == pytest.approx(np.log(2.01), abs=1e-6)
    assert column(last, "density_60_s") == pytest.approx(0.0, abs=1e-3)
    assert column(last, "standard_share_600_s") == pytest.approx(1.0, abs=1e-4)
    assert column(last, "premium_share_600_s") == pytest.approx(0.0, abs=1e-4)
    assert column(last, "long_prompts_120_s") == 0.0
    assert column(last, "dispersion_300_s") == pytest.approx(np.log(0.1 / 2.1 + 0.02), abs=1e-4)


def test_the_scale_of_the_traffic_shows_in_the_levels_alone():
    small, large = steady(1_000, prompt_tokens=1_000), steady(1_000, prompt_tokens=2_000)
    moved = [
        NAMES[i]
        for i in np.flatnonzero(~np.isclose(small[-1], large[-1], rtol=1e-3, atol=1e-3, equal_nan=True))
    ]
    assert moved == ["baseline"]
    assert column(large, "baseline")[-1] - column(small, "baseline")[-1] == pytest.approx(np.log(2), abs=1e-3)


def test_longer_prompts_show_in_density_while_the_rate_stays():
    arrived_s = np.arange(2_000) / 2
    prompts = np.where(arrived_s < 940, 1_000, 20_000)
    last = batch_features(frame(arrived_s.tolist(), {"prompt_tokens": prompts.tolist()}))[-1:]
    assert column(last, "rate_60_s") == pytest.approx(column(last, "rate_300_s"), abs=0.01)
    assert column(last, "density_10_s") > 2.0
    assert column(last, "long_prompts_30_s") == pytest.approx(np.log1p(60))


def test_baseline_is_the_higher_of_median_and_mean():
    level = baseline_of(np.array([np.nan, 5.0, 80.0]), np.array([0, 900, 900]), np.array([5, 100, 100]))
    np.testing.assert_allclose(level, [[1.0, 11.0, 81.0], [1.0, 6.0, 81.0]])


@given(
    st.integers(0, 10**6), st.integers(1, 40), st.sampled_from([0, 61, 1_000, 17_270]), st.floats(0.0, 0.2)
)
@settings(max_examples=15, deadline=None)
def test_season_peaks_equal_the_plain_loop(seed: int, some: int, later: int, unknown: float):
    ticks = later + some
    random = np.random.default_rng(seed)
    ratio = np.where(random.random(ticks) < unknown, np.nan, random.lognormal(0.0, 1.0, ticks))
    peaks = season_peaks(half_peaks(ratio), np.arange(ticks))
    cycles = [
        season * cycle // TICK_S
        for season, count in zip(SEASONS_S, CYCLES, strict=True)
        for cycle in range(1, count + 1)
    ]
    assert cycle_ticks().tolist() == cycles
    assert peaks.shape == (len(cycles), HALVES, ticks)
    for tick in range(later, ticks):
        for row, ago in enumerate(cycles):
            for half in range(HALVES):
                # Tick t's own ratio covers the 5 s before it: the minute after a tick is its next 12.
                minute = [tick - ago + 1 + 6 * half + i for i in range(6)]
                values = [ratio[at] if 0 <= at < ticks else np.nan for at in minute]
                np.testing.assert_equal(peaks[row, half, tick], max_or_nan(values))


def max_or_nan(values: list[float]) -> float:
    return float("nan") if any(np.isnan(value) for value in values) else max(values)


def test_season_columns_equal_the_plain_loop():
    (known,) = known_before(flow_seconds(random_frame(3, 2_500, 900)))
    features = assemble(known)
    tick = len(features) - 1
    row = 0
    for season, count in zip(SEASONS_S, CYCLES, strict=True):
        for half in range(HALVES):
            peaks = [p for p in known.seasons[row : row + count, half, tick].tolist() if not np.isnan(p)]
            logs = sum(np.log(peak + 0.1) for peak in peaks) / max(len(peaks), 1)
            bursts = sum(peak > 2.0 for peak in peaks) / max(len(peaks), 1)
            at = column(features, f"season_{season}_s_peak_{half}")[tick]
            assert at == pytest.approx(logs, rel=1e-5)
            assert column(features, f"season_{season}_s_bursts_{half}")[tick] == pytest.approx(bursts)
            assert (len(peaks) == 0) == (season > 2_400)
        row += count


def test_waves_follow_the_clock():
    features = steady(4_000)
    ticks = np.arange(len(features)) * TICK_S
    unix_s = 1_700_000_000 + ticks  # where the frames of these tests begin
    for wave, function in (("sin", np.sin), ("cos", np.cos)):
        hour = function(2 * np.pi * 3 * (unix_s % 3_600) / 3_600)
        day = function(2 * np.pi * (unix_s % 86_400) / 86_400)
        known = ticks >= 70
        np.testing.assert_allclose(column(features, f"{wave}_hour_3")[known], hour[known], atol=1e-5)
        np.testing.assert_allclose(column(features, f"{wave}_day_1")[known], day[known], atol=1e-5)
    assert len(WAVES) == 24


def test_the_day_that_tells_how_heavy_requests_are():
    assert [day_before(t) for t in (0, 86_399, 86_400, 90_000 - 1, 90_000)] == [0, 0, 0, 0, 3_600]


def test_the_line_is_that_of_bursts_and_twice_the_baseline_before_any_end():
    base = np.array([1_000.0, 1_000.0])
    line = line_of(base, np.array([[0, 4], [0, 2_000], [0, 4_000_000]]))
    assert line[0] == 2_000.0
    assert line[1] == burst_line(base, 500.0, 1_000_000.0)[1] > 2_000.0


def test_the_usual_load_is_the_median_or_the_last_two_minutes():
    sums = np.zeros((len(CHANNELS), len(WINDOWS_S), 2), dtype=np.int64)
    sums[CHANNELS.index("work"), WINDOWS_S.index(120)] = [60_000, 6_000]
    level = np.array([[900.0, 900.0], [400.0, 400.0]])
    assert usual_of(level, sums, np.array([3_600, 60])).tolist() == [500.0, 400.0]


def test_a_load_is_over_the_line_while_it_is_a_bursts_and_not_where_it_is_unknown():
    prompts = {"prompt_tokens": [100] * 1_000 + [3_000]}
    over = over_line(batch_features(frame([*range(1_000), 800.5], prompts)))
    assert set(np.flatnonzero(over) * TICK_S) == {805, 810}
