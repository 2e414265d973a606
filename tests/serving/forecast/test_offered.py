from datetime import timedelta

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from data.schema import LANES, OUTCOMES, POLARS_REQUESTS
from serving.forecast.offered import REFUSED, US, Offer, OfferedLoad

NOW_US = 1_700_000_000_000_000

whole = st.fixed_dictionaries(
    {
        "arrived_at": st.integers(-30 * US, 200 * US).map(lambda us: NOW_US + us),
        "took": st.integers(0, 100 * US),
        "prompt_tokens": st.integers(100, 9_000),
        "cached_tokens": st.none() | st.integers(0, 100),
        "output_tokens": st.integers(0, 900),
        "tenant": st.sampled_from([None, "a", "b"]),
        "lane": st.sampled_from([None, *LANES]),
        "session": st.sampled_from([None, "s", "t"]),
        "outcome": st.sampled_from(OUTCOMES),
    }
)


def frame(rows: list[dict]) -> pl.DataFrame:
    full = [{**row, "finished_at": row["arrived_at"] + row["took"]} for row in rows]
    for row in full:
        del row["took"]
    return pl.DataFrame(full, schema=POLARS_REQUESTS)


def one_by_one(offered: OfferedLoad, rows: list[dict]) -> None:
    for row in rows:
        finish(offered, arrive(offered, row), row)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(whole, max_size=12), min_size=1, max_size=4), st.booleans())
def test_whole_requests_at_once_count_like_their_parts_to_the_last_bit(
    batches: list[list[dict]], ticking: bool
) -> None:
    at_once, parts = OfferedLoad(), OfferedLoad()
    for number, rows in enumerate(batches):
        at_once.completed(frame(rows), 1.0)
        one_by_one(parts, rows)
        if ticking and parts.origin_us is not None:
            t_s = 60 * (number + 1)
            assert at_once.features(t_s).tobytes() == parts.features(t_s).tobytes()
    assert at_once.origin_us == parts.origin_us
    assert at_once.live.late == parts.live.late
    if parts.origin_us is not None:
        assert at_once.features(400).tobytes() == parts.features(400).tobytes()
    assert at_once.replaying(NOW_US + 300 * US, 2.0) == parts.replaying(NOW_US + 300 * US, 2.0)
    left, right = at_once.work.bins(0, 401), parts.work.bins(0, 401)
    assert left.work.tolist() == right.work.tolist()
    assert repr((left.mean_work, left.mean_square_work)) == repr((right.mean_work, right.mean_square_work))
    assert at_once.work.arrive(401, 0, 10) == parts.work.arrive(401, 0, 10)


def test_requests_without_an_output_expect_what_the_others_of_their_batch_had() -> None:
    offered = OfferedLoad()
    row = {"arrived_at": NOW_US, "prompt_tokens": 100, "took": US, "outcome": "served"}
    offered.completed(frame([{**row, "outcome": "shed"}, {**row, "output_tokens": 40}]), 1.0)
    assert offered.work.bins(0, 1).work.tolist() == [140 + 140]


def test_seconds_that_are_long_past_are_out_of_reach() -> None:
    offered = OfferedLoad()
    row = {"arrived_at": NOW_US, "prompt_tokens": 100, "took": US, "outcome": "served", "output_tokens": 40}
    later = {**row, "arrived_at": NOW_US + round(timedelta(hours=3).total_seconds()) * US}
    offered.completed(frame([row, later]), 1.0)
    assert offered.work.bins(10_800 - 7_000, 10_801).work.sum() == 140


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(whole, st.integers(0, 59), st.integers(0, 59)), max_size=15))
def test_what_is_told_up_to_a_minute_late_counts_as_if_it_had_come_in_time(
    rows: list[tuple[dict, int, int]],
) -> None:
    in_time, late = OfferedLoad(), OfferedLoad()
    first = {"prompt_tokens": 10, "output_tokens": 5, "took": US, "outcome": "served"}
    rows = [(row, *delays) for row, *delays in rows if row["arrived_at"] >= NOW_US]
    for offered in (in_time, late):
        offered.completed(frame([{**first, "arrived_at": NOW_US}]), 1.0)
    tells = [(row["arrived_at"] + delay_s * US, number, row) for number, (row, delay_s, _) in enumerate(rows)]
    ends = [
        (max(row["arrived_at"] + row["took"] + delay_s * US, tells[number][0]), number)
        for number, (row, _, delay_s) in enumerate(rows)
        if tells[number][0] <= row["arrived_at"] + row["took"] + 59 * US
    ]
    offers = {}
    for t_s in range(0, 425, 5):
        now_us = NOW_US + t_s * US
        for _, number, row in [told for told in tells if now_us - 5 * US <= told[0] < now_us]:
            offers[number] = arrive(late, row)
        for _, number in [end for end in ends if now_us - 5 * US <= end[0] < now_us]:
            finish(late, offers[number], rows[number][0])
        late.features(t_s)
    assert late.live.late == 0
    done = {number for _, number in ends}
    for _, number, row in sorted(tells, key=lambda told: (told[2]["arrived_at"], told[1])):
        offer = arrive(in_time, row)
        if number in done:
            finish(in_time, offer, row)
    assert in_time.features(425).tobytes() == late.features(425).tobytes()


def arrive(offered: OfferedLoad, row: dict) -> Offer:
    facts = {name: row[name] for name in ("tenant", "lane", "session")}
    return offered.arrive(row["arrived_at"], 1.0, row["prompt_tokens"], model=None, log_type=None, **facts)


def finish(offered: OfferedLoad, offer: Offer, row: dict) -> None:
    refused = row["outcome"] in REFUSED
    end_us = row["arrived_at"] + row["took"]
    offered.finish(offer, end_us, row["output_tokens"], row["cached_tokens"], refused=refused)
