"""Spans of ticks with alarms and onsets, drawn or laid out by the hour."""

import numpy as np
from hypothesis import strategies as st

from pipeline.scoring import Ticks


def next_onset(t: int, onsets: list[int]) -> int:
    return min((x for x in onsets if x > t), default=-1)


@st.composite
def spans(draw: st.DrawFn, longest: int = 120) -> tuple[Ticks, list[int]]:
    """A span with alarms in runs, some ticks that don't count, and onsets in and around it."""
    n = draw(st.integers(1, longest))
    first = 5 * draw(st.integers(0, 50))
    t_s = np.arange(first, first + 5 * n, 5, dtype=np.int64)
    onsets = draw(st.lists(st.integers(first - 20, first + 5 * n + 80), max_size=6))
    flips = st.lists(st.integers(0, n), max_size=12)
    alarm, busy = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
    for flags, places in ((alarm, draw(flips)), (busy, draw(flips))):
        for place in places:
            flags[place:] = ~flags[place:]
    following = np.array([next_onset(t, onsets) for t in t_s.tolist()], dtype=np.int64)
    return Ticks(t_s, alarm, ~busy, following), onsets


def span_of_hours(hours: int, hit: list[bool]) -> tuple[Ticks, np.ndarray]:
    """One onset in the middle of each hour, anticipated by an alarm of a minute where told so."""
    t_s = np.arange(0, 3600 * hours, 5, dtype=np.int64)
    onsets = np.arange(hours) * 3600 + 1800
    alarm = np.zeros(len(t_s), dtype=bool)
    for x, anticipated in zip(onsets.tolist(), hit, strict=True):
        alarm |= anticipated & (t_s >= x - 60) & (t_s <= x)
    following = np.append(onsets, -1)[np.searchsorted(onsets, t_s, side="right")]
    return Ticks(t_s, alarm, np.ones(len(t_s), dtype=bool), following), onsets
