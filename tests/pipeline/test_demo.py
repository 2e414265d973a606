import io
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from pipeline.demo import APART_S, TRIES, Moments, decisions_table, moments, story
from pipeline.gate_watch import Asked

START_S = 50_000
ADMITTED = Asked("before", -100.0, 0.01, 0.5, False, 0.0, "premium", None, False, None)
REFUSED = Asked("alarm", -41.0, 0.9, 0.5, True, 0.6, "standard", "backpressure", True, 27)


def ticks(onsets: list[int], alarms: list[tuple[int, int]], seconds: int = 20_000) -> pl.DataFrame:
    """Test ticks with onsets and spans of alarm, seconds from the start of the span."""
    t_s = np.arange(START_S, START_S + seconds, 5)
    at = np.append(START_S + np.array(onsets, dtype=np.int64), -1)
    following = at[np.searchsorted(at[:-1], t_s, side="right")]
    alarm = np.zeros(len(t_s), dtype=np.int8)
    for first, last in alarms:
        alarm |= ((t_s >= START_S + first) & (t_s <= START_S + last)).astype(np.int8)
    return pl.DataFrame(
        {
            "t_s": t_s,
            "alarm": alarm,
            "eligible": np.ones(len(t_s), dtype=np.bool_),
            "next_onset_s": pl.Series(following).replace(-1, None),
            "load": np.where(t_s == START_S + 700, 9.0, 1.0),
        }
    )


def test_watched_are_anticipated_onsets_out_of_a_quiet_gate() -> None:
    table = ticks([1_000, 3_000, 5_000], [(945, 1_000), (2_850, 3_000), (4_945, 5_000)])
    assert moments(table) == Moments((START_S + 1_000, START_S + 5_000), "onset", foreseen=True)


def test_watched_are_any_anticipated_onsets_when_no_gate_was_quiet() -> None:
    assert moments(ticks([1_000, 3_000], [(2_850, 3_000)])).at_s == (START_S + 3_000,)


def test_watched_are_few_and_apart() -> None:
    onsets = list(range(1_000, 19_000, 600))
    found = moments(ticks(onsets, [(onset - 55, onset) for onset in onsets])).at_s
    assert len(found) == TRIES
    assert np.diff(found).min() >= APART_S


def test_without_anticipation_the_first_onset_is_watched_and_without_onsets_the_busiest_moment() -> None:
    assert moments(ticks([1_000, 3_000], [])) == Moments((START_S + 1_000,), "onset", foreseen=False)
    assert moments(ticks([], [])) == Moments((START_S + 700,), "busiest moment", foreseen=False)


def test_the_story_counts_what_the_forecast_refused() -> None:
    by_rules = replace(REFUSED, by_forecast=False)
    found = Moments((1, 2), "onset", foreseen=True)
    (sentence,) = story([ADMITTED, REFUSED, by_rules], found, 2)
    assert "onset 2 (1 anticipated before it went without a live alarm)" in sentence
    assert "2 requests asked: 1 that the rules alone would have admitted met a 429" in sentence


@pytest.mark.parametrize(("foreseen", "where"), [(True, " at none of 2 onsets"), (False, ": these")])
def test_the_story_says_plainly_that_no_alarm_came(foreseen: bool, where: str) -> None:
    (sentence,) = story([ADMITTED], Moments((1, 2), "onset", foreseen), 2)
    assert sentence.startswith(f"The live forecast raised no alarm{where}")
    assert "rules alone" in sentence


def test_the_table_fits_a_terminal_of_80_columns() -> None:
    unknown = replace(ADMITTED, p_onset=None, threshold=None, lane="standard", to_onset_s=-1_000.0)
    text = io.StringIO()
    Console(file=text, width=80).print(decisions_table([unknown, REFUSED], "busiest moment"))
    assert "…" not in text.getvalue()
    rows = [line.split() for line in text.getvalue().splitlines()]
    assert ["-1000", "–", "–", "0.00", "no", "standard", "200", "admitted"] in rows
    assert ["-41", "0.900", "0.500", "0.60", "yes", "standard", "429", "backpressure*", "27", "s"] in rows
