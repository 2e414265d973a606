from dataclasses import replace

import numpy as np
import polars as pl

from pipeline.gateway_demo.window import ROOM, UNBOUNDED_BLOCKS, choose, kv_blocks
from pipeline.play.shots import Shot
from serving.controller.engine_model import H100
from serving.engine_sim.core import EngineSim

START_S = 50_000


def ticks(onsets: list[int], alarms: list[tuple[int, int]], seconds: int = 9_000) -> pl.DataFrame:
    """Held-out ticks with onsets and spans of alarm, seconds from the start of the span."""
    t_s = np.arange(START_S, START_S + seconds, 5)
    at = np.append(START_S + np.array(onsets, dtype=np.int64), -1)
    alarm = np.zeros(len(t_s), dtype=np.bool_)
    for first, last in alarms:
        alarm |= (t_s >= START_S + first) & (t_s <= START_S + last)
    following = at[np.searchsorted(at[:-1], t_s, side="right")]
    return pl.DataFrame(
        {
            "t_s": t_s,
            "alarm": alarm,
            "eligible": np.ones(len(t_s), dtype=np.bool_),
            "next_onset_s": pl.Series(following).replace(-1, None),
            "load": np.ones(len(t_s)),
        }
    )


def test_the_first_onset_that_an_alarm_anticipated_is_in_the_middle() -> None:
    window = choose(ticks([1_000, 3_000, 5_000], [(2_945, 3_000), (4_945, 5_000)]), 300)
    assert (window.at_s, window.start_s, window.seconds) == (START_S + 3_000, START_S + 2_850, 300)
    assert (window.foreseen, window.anticipated, window.onsets) == (True, 2, 3)


def test_a_short_window_still_begins_before_the_alarm_may() -> None:
    table = ticks([3_000], [(2_945, 3_000)])
    assert START_S + 3_000 - choose(table, 100).start_s == 70
    assert START_S + 3_000 - choose(table, 20).start_s == 15


def test_the_story_says_how_often_alarms_cover_onsets_and_that_one_burst_proves_nothing() -> None:
    told = " ".join(choose(ticks([1_000, 3_000], [(100, 105), (2_945, 3_000)]), 300).story())
    assert "the first that its alarm anticipated out of a quiet gate" in told
    assert "anticipated 1 of 2 onsets, with false alarms in 0.2% of calm ticks" in told  # 3 of 1,776
    assert "no measure of the forecast" in told


def test_the_story_says_so_when_no_alarm_anticipated_anything() -> None:
    window = choose(ticks([1_000, 3_000], []), 300)
    assert not window.foreseen
    assert "its alarm anticipated none" in window.story()[0]
    assert "unknown" in replace(window, false_alarm_rate=None).story()[1]


def shot(at_s: float, prompt_tokens: int, output_tokens: int) -> Shot:
    headers = {"x-sim-output-tokens": str(output_tokens)}
    return Shot(at_s, "batch", headers, prompt_tokens, None, f"{at_s}")


def test_the_engine_is_too_small_for_the_burst_and_large_enough_for_any_call() -> None:
    calm = [shot(float(at), 400, 20) for at in range(0, 60, 2)]
    burst = [shot(60.0 + at / 10, 1_600, 100) for at in range(40)]
    blocks = kv_blocks([*calm, *burst])
    engine = EngineSim(replace(H100, kv_blocks=UNBOUNDED_BLOCKS), chunk_tokens=2_048)
    most = 0
    for one in [*calm, *burst]:
        engine.submit(one.at_s, prompt_tokens=one.prompt_tokens, output_tokens=100)
        most = max(most, engine.blocks.used)
    assert 0.3 * most < blocks < 0.9 * most
    assert ROOM < 1
    assert kv_blocks([shot(0.0, 3_200, 100)]) > 3_300 / H100.block_tokens
