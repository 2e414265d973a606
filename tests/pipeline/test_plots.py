import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.errors import InputError
from pipeline import plots
from tests.pipeline.sample_report import sample

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def made():
    return sample(hours=8)


def texts(svg: str) -> list[str]:
    """Words that a reader sees; fails where the SVG is not well formed."""
    return ["".join(found.itertext()).strip() for found in ET.fromstring(svg).iter(f"{SVG}text")]


def drawn(made) -> dict[str, str]:
    report = made["report"]
    return {
        "load": plots.load_plot(made["ticks"], made["onsets"]),
        "recall": plots.recall_plot(report["contenders"], 0.05),
        "lead": plots.lead_plot(made["lead_times"]),
        "causes": plots.cause_plot(report["recall_by_cause"]),
        "reliability": plots.reliability_plot(report["reliability"]),
    }


def test_same_numbers_give_the_same_bytes(made):
    first = drawn(made)
    assert first == drawn(made)
    for svg in first.values():
        assert svg.startswith("<svg role=")
        assert "date" not in svg.lower()
    ids = [found for svg in first.values() for found in re.findall(r' id="([^"]+)"', svg)]
    referred = [found for svg in first.values() for found in re.findall(r'(?:url\(|href=")#([^)"]+)', svg)]
    assert len(ids) == len(set(ids))
    assert set(referred) == set(ids)


def test_every_colour_is_a_role_of_the_page(made):
    for svg in drawn(made).values():
        bare = re.sub(r"var\(--[a-z]+, #[0-9a-f]{6}\)", "", svg)
        assert set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{3,6})", bare)) == set()


def test_a_long_span_is_drawn_whole_and_near(made):
    ticks, onsets = made["ticks"], made["onsets"]
    long = plots.load_plot(ticks, onsets)
    assert "Its two hours with the most onsets" in texts(long)
    short = plots.load_plot(ticks.head(720), onsets)
    assert "Time since the first request, min" in texts(short)
    assert not any("two hours" in text for text in texts(short))
    assert {"baseline", "onsets", "alarms"} <= set(texts(short))


def test_load_that_is_unknown_is_left_out(made):
    ticks = made["ticks"].head(720)
    blank = ticks.with_columns(load=pl.lit(None, dtype=pl.Float64), baseline=pl.lit(float("nan")))
    assert "baseline" not in texts(plots.load_plot(blank, []))


def test_ticks_without_a_column_are_refused(made):
    with pytest.raises(InputError, match=r"missing: \['alarm'\]"):
        plots.load_plot(made["ticks"].drop("alarm"), made["onsets"])


def test_names_are_shown_as_they_are():
    rows = [
        {"cause": "<b>$x$</b> & 夜间批处理", "onsets": 3, "recall": 0.5},
        {"cause": "never seen", "onsets": 0, "recall": None},
    ]
    svg = plots.cause_plot(rows)
    assert {"<b>$x$</b> & 夜间批处理", "0.50 of 3", "unknown of 0"} <= set(texts(svg))
    assert "<b>" not in svg


def test_every_contender_is_named_and_the_best_baseline_stands_out(made):
    contenders = made["report"]["contenders"]
    assert plots.best_baseline(contenders)["name"] == "lightgbm"
    assert {one["title"] for one in contenders} <= set(texts(plots.recall_plot(contenders, 0.05)))
    quiet = [one for one in contenders if one["name"] == "quiet"]
    assert plots.best_baseline(quiet) is None
    assert "Always quiet" in texts(plots.recall_plot(quiet, 0.05))


def test_lead_times_over_two_minutes_share_the_last_bar():
    words = texts(plots.lead_plot([40, 50, 60, 4000]))
    assert "Median 55 s over 4 anticipated onsets" in words
    assert "≥ 120" in words


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_labels_spread_in_order_and_stay_under_the_top(values):
    places = plots.spread(sorted(values), gap=0.06, high=1.0)
    assert all(b - a >= 0.06 - 1e-9 for a, b in pairwise(places))
    assert places[-1] <= 1.0


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.integers(1, 50))
def test_columns_lose_no_peak_and_no_trough(values, columns):
    position, low, high = plots.extremes(np.array(values), columns)
    assert len(position) <= columns
    assert (low.min(), high.max()) == (min(values), max(values))
    assert (low <= high).all()
    assert position[0] == 0
    assert position[-1] < len(values)


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=30, unique=True))
def test_busiest_window_holds_as_many_onsets_as_any_that_starts_ten_minutes_before_one(found):
    onsets = np.array(sorted(found))
    start, end = plots.busiest(onsets, (0.0, 100_000.0))
    assert end - start == 7200
    assert start >= 0
    assert end <= 100_000
    most = max(sum(x <= y < x + 6600 for y in found) for x in found)
    assert sum(start <= x <= end for x in found) >= most
