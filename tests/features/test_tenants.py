from collections import Counter

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from features.bins import bin_work
from features.flows import flow_seconds
from features.tenants import MOST, NEW_S, WINDOW_S, TenantLoad, tenants_before
from features.ticks import TICK_S
from tests.features.frames import frame, random_frame

Sent = list[tuple[int, int, int]]


def plain(sent: Sent, t_s: int) -> list[int]:
    """What is known before a tick, from every (second, tenant, tokens), read anew."""
    by_tenant: Counter[int] = Counter()
    for second, tenant, tokens in sent:
        if t_s - WINDOW_S <= second < t_s:
            by_tenant[tenant] += tokens
    ordered = sorted(by_tenant.values(), reverse=True)
    firsts = {tenant: min(s for s, who, _ in sent if who == tenant) for _, tenant, _ in sent}
    new = sum(t_s - NEW_S <= first < t_s for first in firsts.values())
    squares = sum(tokens * tokens for tokens in ordered)
    return [sum(ordered), max(ordered, default=0), sum(ordered[:3]), squares, new]


@given(
    st.lists(
        st.tuples(st.integers(0, 900), st.integers(0, 6), st.integers(0, 9_000)),
        max_size=30,
        unique_by=lambda row: row[:2],
    )
)
def test_what_is_told_equals_a_plain_count(sent: Sent) -> None:
    load, told = TenantLoad(), []
    for second in range(900):
        load.close(second, {tenant: tokens for at, tenant, tokens in sent if at == second})
        if (second + 1) % 100 == 0:
            told.append((second + 1, load.tell(second + 1).tolist()))
    assert told == [(t_s, plain([row for row in sent if row[0] < 900], t_s)) for t_s, _ in told]


def test_batch_equals_a_plain_count(traffic) -> None:
    flows = flow_seconds(random_frame(5, 1_500, 900))
    who = flows.tenant[flows.flow]
    sent = [
        row
        for row in zip(flows.second.tolist(), who.tolist(), flows.work.tolist(), strict=True)
        if row[1] >= 0
    ]
    t_s = np.arange(0, flows.seconds, TICK_S)
    told = tenants_before(flows, t_s)
    for tick in range(0, len(t_s), 17):
        assert told[:, tick].tolist() == plain(sent, int(t_s[tick]))


def test_unknown_tenants_are_no_tenant() -> None:
    requests = frame([0.0, 30.0], {"prompt_tokens": [100, 100]})
    assert not tenants_before(flow_seconds(requests), np.arange(0, 31, 5)).any()
    load = TenantLoad()
    load.close(0, {-1: 500})
    assert not load.tell(1).any()


def test_many_tenants_are_counted_a_stretch_at_a_time(monkeypatch) -> None:
    monkeypatch.setattr("features.tenants._CELLS", 1)
    requests = random_frame(2, 4_000, 300)
    flows = flow_seconds(requests)
    t_s = np.arange(0, len(bin_work(requests).work), TICK_S)
    few = tenants_before(flows, t_s)
    monkeypatch.undo()
    np.testing.assert_array_equal(few, tenants_before(flows, t_s))


def test_a_second_past_belief_counts_up_to_a_bound() -> None:
    load = TenantLoad()
    load.close(0, {1: 10**15})
    assert load.tell(1).tolist() == [MOST, MOST, MOST, MOST * MOST, 1]
    requests = frame(
        [0.0, 0.1, 0.2, 1.0, 6.0],
        {
            "prompt_tokens": [MOST, MOST, 7, 5, 1],
            "tenant": ["a", "a", "b", "a", "b"],
            "model": ["m", "n", "m", "m", "m"],
        },
    )
    told = tenants_before(flow_seconds(requests), np.array([0, 5]))
    both, squares = MOST + 5 + 7, (MOST + 5) ** 2 + 7**2
    assert told.tolist() == [[0, both], [0, MOST + 5], [0, both], [0, squares], [0, 2]]


def test_a_copy_goes_on_by_itself() -> None:
    load = TenantLoad()
    load.close(0, {1: 5})
    twin = load.copy()
    twin.close(1, {2: 7})
    assert load.tell(1).tolist() == [5, 5, 5, 25, 1]
    assert twin.tell(2).tolist() == [12, 7, 12, 74, 2]


def test_nothing_of_a_silent_minute_stays(traffic) -> None:
    requests = pl.concat(
        [frame([0.0], {"prompt_tokens": [9], "tenant": ["a"]}), frame([200.0], {"prompt_tokens": [9]})]
    )
    told = tenants_before(flow_seconds(requests), np.arange(0, 201, 5))
    assert told[0, 1:13].tolist() == [9] * 12
    assert not told[0, 13:].any()
