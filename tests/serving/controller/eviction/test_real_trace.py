"""A public trace: at no size does the policy fall behind LRU."""

import json
from functools import cache

import pytest

from serving.controller.eviction.policy import EvictionPolicy
from serving.controller.eviction.settings import EvictionRules
from tests.bench.reference_caches import LRU, hits

BLOCK_TOKENS = 512


@cache
def read(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [(row["timestamp"] / 1e3, row["hash_ids"], row["input_length"] % BLOCK_TOKENS > 0) for row in rows]


def our_hits(requests, blocks):
    policy = EvictionPolicy(EvictionRules(block_tokens=BLOCK_TOKENS))
    total = 0
    for number, (now_s, keys, partly_filled) in enumerate(requests):
        name = str(number)
        total += policy.use(name, keys, now_s, partly_filled=partly_filled)
        policy.evict(policy.cached_blocks - blocks, now_s)
        policy.free(name)
        assert policy.cached_blocks <= blocks
    return total


@pytest.mark.parametrize(
    ("blocks", "lru", "optimum", "least_gap_closed"),
    [(1_000, 0.0445, 0.1907, 0.2), (10_000, 0.2112, 0.3664, 0.1), (30_000, 0.3257, 0.3664, 0.05)],
)
def test_never_behind_lru_at_any_size(real_trace, blocks, lru, optimum, least_gap_closed):
    requests = read(real_trace("mooncake_conversation.jsonl"))
    prompts = [keys for _, keys, _ in requests]
    total = sum(map(len, prompts))

    assert hits(LRU(blocks), prompts) / total == pytest.approx(lru, abs=1e-4)
    assert our_hits(requests, blocks) / total >= lru + least_gap_closed * (optimum - lru)
