from collections import defaultdict

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import features.flows
import features.online
from data.schema import LANES
from features.batch import batch_features
from features.flows import MAX_SIZE, PROMPT_CLASSES, flow_seconds, prompt_class
from tests.features.frames import frame, random_frame
from tests.features.test_online import replay

Key = tuple[str | None, str, str | None, str | None, int]


def known_us(row: dict) -> int:
    if row["finished_us"] is not None:
        return row["finished_us"]
    seconds = 0.010 + 0.000091 * row["prompt_tokens"] + 0.0333 * (row["output_tokens"] or 0)
    return row["arrived_us"] + int(seconds * 1e6)


def plain(requests: pl.DataFrame) -> dict[tuple[int, Key], tuple[int, int, int]]:
    """Requests, prompt and expected work by (second, flow), one request after the other."""
    rows = requests.with_columns(
        arrived_us=pl.col("arrived_at").to_physical(), finished_us=pl.col("finished_at").to_physical()
    ).to_dicts()
    origin_us = rows[0]["arrived_us"]
    arrived, finished = defaultdict(list), []
    for row in rows:
        size = next((i for i, bound in enumerate(PROMPT_CLASSES) if row["prompt_tokens"] <= bound), 4)
        key = (row["tenant"], row["lane"] or "standard", row["model"], row["log_type"], size)
        arrived[(row["arrived_us"] - origin_us) // 1_000_000, key].append(row["prompt_tokens"])
        if row["outcome"] not in ("shed", "failed"):  # refused: no output of its own to learn from
            finished.append(((known_us(row) - origin_us) // 1_000_000, key, row))
    found = {}
    for (second, key), prompts in arrived.items():
        before = [(of, row) for at, of, row in finished if at < second]
        own = [row for of, row in before if of == key] or [row for _, row in before]
        known_prompt = max(sum(row["prompt_tokens"] for row in own), 1)
        cached_share = sum(row["cached_tokens"] or 0 for row in own) / known_prompt
        output = sum(row["output_tokens"] or 0 for row in own) / max(len(own), 1)
        uncached = sum(prompts) - sum(prompts) * cached_share
        work = int(np.floor(uncached + len(prompts) * output + 0.5))
        found[second, key] = (len(prompts), sum(prompts), work)
    return found


@given(st.integers(0, 10**6), st.integers(20, 200), st.integers(1, 80))
@settings(max_examples=25, deadline=None)
def test_expected_work_equals_the_plain_loop(seed: int, seconds: int, count: int) -> None:
    requests = random_frame(seed, seconds, count)
    flows = flow_seconds(requests)
    expected = plain(requests)
    numbers: dict[Key, int] = {}  # flows are numbered as they appear
    for row in requests.with_columns(size=prompt_class()).iter_rows(named=True):
        key = (row["tenant"], row["lane"] or "standard", row["model"], row["log_type"], row["size"])
        numbers.setdefault(key, len(numbers))
    rows = sorted((second, numbers[key], *sums) for (second, key), sums in expected.items())
    columns = (flows.second, flows.flow, flows.requests, flows.prompt, flows.work)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == rows
    by_number = sorted(numbers, key=numbers.__getitem__)
    assert flows.lane.tolist() == [LANES.index(key[1]) for key in by_number]
    assert flows.long_prompt.tolist() == [key[4] >= 3 for key in by_number]
    assert (flows.tenant == -1).tolist() == [key[0] is None for key in by_number]


def test_a_finish_that_the_source_does_not_give_is_estimated():
    # 5,000 prompt tokens and 100 out take 0.01 + 0.455 + 3.33 s: known in second 3, of use from second 4 on.
    requests = frame([0, 3.5, 4.5], {"prompt_tokens": [5_000] * 3, "output_tokens": [100, 200, None]})
    assert flow_seconds(requests).work.tolist() == [5_000, 5_000, 5_100]


def test_unknown_tenants_and_models_keep_their_own_flows():
    requests = frame(
        [0, 0.1, 0.2, 0.3],
        {"prompt_tokens": [10] * 4, "tenant": [None, "a", None, "a"], "model": [None, None, "m", None]},
    )
    flows = flow_seconds(requests)
    assert flows.flow.tolist() == [0, 1, 2]
    assert flows.requests.tolist() == [1, 2, 1]
    assert flows.tenant.tolist() == [-1, 0, -1]
    assert flows.caller.tolist() == [0, 1, 2]


def test_size_classes_split_flows_and_not_callers():
    prompts = [512, 513, 2_048, 8_192, 8_193, 16_384, 16_385]
    flows = flow_seconds(frame([0.0] * 7, {"prompt_tokens": prompts, "tenant": ["a"] * 7}))
    assert flows.flow.tolist() == [0, 1, 2, 3, 4]
    assert flows.requests.tolist() == [1, 2, 1, 2, 1]
    assert flows.caller.tolist() == [0] * 5
    assert flows.long_prompt.tolist() == [False, False, False, True, True]


def test_refusals_count_in_the_second_they_were_known():
    requests = frame(
        [0, 1, 2, 9],
        {
            "prompt_tokens": [1] * 4,
            "finished_s": [0.2, 3.5, 30.0, None],
            "outcome": ["shed", "failed", "failed", "served"],
        },
    )
    assert flow_seconds(requests).refusals.tolist() == [1, 0, 0, 1, 0, 0, 0, 0, 0, 0]


def test_flows_beyond_the_limit_share_one_entry(monkeypatch: pytest.MonkeyPatch):
    requests = frame(
        [0.1 * i for i in range(6)], {"prompt_tokens": [10] * 6, "tenant": ["a", "b", "c", "d", "e", "a"]}
    )
    monkeypatch.setattr(features.flows, "MAX_FLOWS", 2)
    flows = flow_seconds(requests)
    assert flows.flow.tolist() == [0, 1, 2]
    assert flows.requests.tolist() == [2, 1, 3]
    assert flows.prompt.tolist() == [20, 10, 30]
    assert [len(column) for column in (flows.tenant, flows.caller, flows.lane, flows.long_prompt)] == [3] * 4


def test_online_shares_the_same_entry(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(features.flows, "MAX_FLOWS", 3)
    monkeypatch.setattr(features.online, "MAX_FLOWS", 3)
    requests = random_frame(5, 300, 200)
    batch = batch_features(requests)
    online = np.stack(list(replay(requests, range(0, 5 * len(batch), 5))))
    np.testing.assert_array_equal(batch, online)


def test_ends_tell_how_heavy_requests_were_in_the_second_they_were_known():
    requests = frame(
        [0, 1, 2, 4, 5],
        {
            "prompt_tokens": [100, 100, 100, 10_000_000, 9],
            "cached_tokens": [None, 40, None, None, None],
            "output_tokens": [10, 20, None, 0, 9],
            "finished_s": [3.5, 3.9, 3.0, 4.0, 60.0],
            "outcome": ["served", "served", "failed", "served", "served"],
        },
    )
    ended = flow_seconds(requests).ended
    assert ended[:, 3].tolist() == [2, 110 + 80, 110**2 + 80**2]  # what failed is no answer
    assert ended[:, 4].tolist() == [1, MAX_SIZE, MAX_SIZE**2]
    assert not ended[:, [0, 1, 2, 5]].any()


def test_flows_are_numbered_by_first_arrival_and_by_name_at_the_same_time() -> None:
    tenants = ["c", "b", None, "a", "b"]
    flows = flow_seconds(frame([0.0, 1.0, 1.0, 1.0, 2.0], {"prompt_tokens": [1] * 5, "tenant": tenants}))
    # Tenants are numbered as they come up in that order: c, unknown, a, b.
    assert flows.tenant.tolist() == [0, -1, 1, 2]
    assert flows.flow.tolist() == [0, 1, 2, 3, 3]
