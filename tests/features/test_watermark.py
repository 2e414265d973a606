from collections import Counter

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.batch import batch_features
from features.online import OnlineFeatures
from features.ticks import TICK_S
from features.watermark import SNAPSHOT_EVERY_S, WATERMARK_S, Watermark
from features.windows import NAMES
from tests.features.frames import ORIGIN_US, frame, in_us, random_frame

US = 1_000_000
ENDS_OF_A_ROW = ("arrived_at", "finished_at")
MARKS = ("tenant", "lane", "model", "log_type", "session")


class Log(list):
    """What was learned, in order."""

    def copy(self) -> "Log":
        return Log(self)


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 150)), max_size=40),
    st.lists(st.integers(0, 40), min_size=1, max_size=20),
)
def test_closing_anew_leaves_what_closing_in_order_would(rows, steps) -> None:
    past, log = Watermark(Log(), list), Log()
    told, in_time, now_s = sorted((at + delay, at) for at, delay in rows), [], 0
    for step in steps:
        now_s += step
        while told and told[0][0] < now_s:
            _, at = told.pop(0)
            if past.takes(at):
                past.rows[at].append(at)
                in_time.append(at)
        late = past.late
        log = past.rewound(log)
        while past.closed_s < now_s:
            log.extend(past.rows.get(past.closed_s, []))
            past.close(log)
        assert log == sorted(at for at in in_time if at < now_s)
        assert past.late == late
        assert len(past.rows) <= 2 * WATERMARK_S + SNAPSHOT_EVERY_S + max(steps)


def test_a_minute_is_in_time_and_a_second_more_is_late() -> None:
    past = Watermark(Counter(), int)
    learned = Counter()
    while past.closed_s < 1_000:
        past.close(learned)
    assert [past.takes(second) for second in (1_000, 940, 939, -1)] == [True, True, False, False]
    assert past.late == 2


class Teller:
    """Tells online features rows of a frame, and remembers what of them counts."""

    def __init__(self, rows: pl.DataFrame) -> None:
        self.online = OnlineFeatures()
        self.rows = rows.to_dicts()
        self.flows: dict[int, int] = {}
        self.ended: set[int] = set()
        self.late = 0
        self.tick_s = 0

    def in_time(self, at_us: int) -> bool:
        # The same rule, written differently.
        fits = at_us - ORIGIN_US >= max(self.tick_s - WATERMARK_S, 0) * US
        self.late += not fits
        return fits

    def arrive(self, number: int) -> None:
        row = self.rows[number]
        at_us = micros(row["arrived_at"])
        flow = self.online.arrive(at_us, row["prompt_tokens"], **{mark: row[mark] for mark in MARKS})
        if self.in_time(at_us):
            self.flows[number] = flow

    def finish(self, number: int) -> None:
        row = self.rows[number]
        at_us = micros(row["finished_at"])
        refused = row["outcome"] in ("shed", "failed")
        tokens = (row[name] or 0 for name in ("prompt_tokens", "cached_tokens", "output_tokens"))
        self.online.finish(at_us, self.flows[number], *tokens, refused=refused, session=row["session"])
        if self.in_time(at_us):
            self.ended.add(number)

    def tick(self, t_s: int) -> np.ndarray:
        self.tick_s = t_s
        return self.online.features(t_s)

    def batch(self, t_s: int) -> np.ndarray:
        """The tick of a trace of what was told in time; what hasn't ended yet ends in a day."""
        never = in_us([86_400.0])[0]
        told = [
            {**self.rows[number], **({} if number in self.ended else {"finished_at": never})}
            for number in sorted(self.flows)
        ]
        last = frame([t_s + 1.0], {"prompt_tokens": [1], "finished_s": [86_400.0]})
        rows = pl.concat([pl.DataFrame(told, schema=last.schema), last]).sort("arrived_at")
        return batch_features(rows)[t_s // TICK_S]


def micros(at) -> int:
    return pl.Series([at], dtype=pl.Datetime("us", "UTC")).to_physical()[0]


def differing(left: np.ndarray, right: np.ndarray) -> list[str]:
    return [NAMES[i] for i in np.flatnonzero(left.view("u4") != right.view("u4"))]


def traffic_in_any_order(seed: int, seconds: int, count: int, longest_delay_s: float):
    """A teller, and when each arrival and each end is told; no end before its arrival."""
    random = np.random.default_rng(seed)
    rows = random_frame(seed, seconds, count)
    first = frame([0.0], {"prompt_tokens": [100], "finished_s": [1.0]})
    rows = pl.concat([first, rows.with_columns(pl.col("finished_at").fill_null(strategy="backward"))])
    ends = pl.max_horizontal(pl.col("finished_at").fill_null(pl.col("arrived_at")), "arrived_at")
    rows = rows.with_columns(finished_at=ends)
    if seed % 3 == 0:
        rows = rows.with_columns(pl.col(ENDS_OF_A_ROW).dt.truncate("1s"))
    arrived, ended = ((rows[name].to_physical().to_numpy() - ORIGIN_US) / US for name in ENDS_OF_A_ROW)
    told = arrived + longest_delay_s * random.random(len(rows)) ** 2
    told[0] = 0.0
    told_end = np.maximum(ended + longest_delay_s * random.random(len(rows)) ** 2, told)
    tells = [(float(at), 0, number) for number, at in enumerate(told)]
    tells += [(float(at), 1, number) for number, at in enumerate(told_end)]
    return Teller(rows), sorted(tells)


@pytest.mark.parametrize("longest_delay_s", [60.0, 150.0])
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), seconds=st.integers(5, 300), count=st.integers(1, 80))
def test_every_tick_equals_a_batch_of_what_was_told_by_then_to_the_last_bit(
    longest_delay_s: float, seed: int, seconds: int, count: int
) -> None:
    teller, tells = traffic_in_any_order(seed, seconds, count, longest_delay_s)
    for t_s in range(0, seconds + 240, TICK_S):
        while tells and tells[0][0] < t_s:
            _, is_end, number = tells.pop(0)
            if not is_end:
                teller.arrive(number)
            elif number in teller.flows:
                teller.finish(number)
        tick = teller.tick(t_s)
        if t_s % 35 == 0 and teller.flows:
            assert differing(tick, teller.batch(t_s)) == []
    assert teller.online.late == teller.late
    if longest_delay_s <= WATERMARK_S:
        assert len(teller.flows) == len(teller.rows)
        # An end may wait for its arrival to be told, and be late by that; the others are all in time.
        assert teller.late == len(teller.rows) - len(teller.ended)


def planned(seconds: int) -> pl.DataFrame:
    """Planners that run every two minutes, half a minute later the calls they fan out to; and others."""
    others = [(float(second), "b", 300) for second in range(seconds)]
    starts = range(30, seconds, 120)
    plans = [(start + 0.1 * n, name, 3_000) for start in starts for n, name in enumerate("acddca")]
    calls = [
        (start + delay_s + 0.05 * n, name, 300)
        for start in starts
        for name, delay_s in (("a", 30), ("c", 36), ("d", 44))
        for n in range(delay_s)
    ]
    arrived_s, tenant, prompt = zip(*sorted(others + plans + calls), strict=True)
    columns = {"tenant": tenant, "prompt_tokens": prompt, "output_tokens": [90] * len(prompt)}
    return frame(arrived_s, {**columns, "finished_s": [at + 2.0 for at in arrived_s]})


def test_the_order_in_which_the_rows_of_a_tick_are_told_is_no_matter() -> None:
    rows = planned(700)
    in_order, backwards = Teller(rows), Teller(rows)
    first = 0
    for t_s in range(0, 700, TICK_S):
        end = rows["arrived_at"].to_physical().search_sorted(ORIGIN_US + t_s * US)
        numbers = range(first, int(end))
        for number in numbers:
            in_order.arrive(number)
        # What is told first sets the clock.
        for number in [*numbers[: 1 - min(first, 1)], *reversed(numbers[1 - min(first, 1) :])]:
            backwards.arrive(number)
        first = int(end)
        assert differing(in_order.tick(t_s), backwards.tick(t_s)) == []


@pytest.mark.parametrize(("behind_s", "counts"), [(40, True), (60, True), (90, False)])
def test_a_row_40_s_late_changes_batch_and_online_alike_and_one_90_s_late_changes_neither(
    behind_s: int, counts: bool
) -> None:
    """https://github.com/feast-dev/feast/issues/4133."""
    rows, at_s = planned(900), 740 - behind_s + 0.2
    columns = {"tenant": ["a"], "prompt_tokens": [9_000], "output_tokens": [500], "finished_s": [at_s + 0.5]}
    late = len(rows)
    with_it, without = Teller(pl.concat([rows, frame([at_s], columns)])), Teller(rows)
    told = [
        (micros(row[column]), is_end, number)
        for number, row in enumerate(without.rows)
        for is_end, column in enumerate(ENDS_OF_A_ROW)
    ]
    told.sort(reverse=True)
    changed, differs = [], set()
    for t_s in range(0, 900, TICK_S):
        while told and told[-1][0] < ORIGIN_US + t_s * US:
            _, is_end, number = told.pop()
            for teller in (with_it, without):
                (teller.finish if is_end else teller.arrive)(number)
        now, before = with_it.tick(t_s), without.tick(t_s)
        if names := differing(now, before):
            changed.append(t_s)
            differs.update(names)
        if t_s >= 740 and t_s % 20 == 0:
            assert differing(now, with_it.batch(t_s)) == []
        if t_s == 740:
            with_it.arrive(late)
            if counts:
                with_it.finish(late)
    assert with_it.online.late == (0 if counts else 1)
    assert changed == (list(range(745, 900, TICK_S)) if counts else [])
    # Sums, and what was learned in order of time.
    assert {"load_300_s", "baseline", "following_20_s"} <= differs or not counts
