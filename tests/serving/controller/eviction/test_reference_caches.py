"""The caches that eviction is measured against, tested against each other and against exhaustive search."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.reference_caches import ARC, LFU, LRU, S3FIFO, hits, lru_tails_first_hits, optimal_hits

CACHES = [LRU, LFU, ARC, S3FIFO]
KEYS = st.lists(st.integers(0, 7), max_size=60)
PROMPTS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=3), max_size=7)


def chains(prompts):
    return [[tuple(prompt[: end + 1]) for end in range(len(prompt))] for prompt in prompts]


@pytest.mark.parametrize("cache", CACHES)
@given(KEYS, st.integers(1, 8))
def test_a_cache_never_holds_more_than_its_size_and_holds_what_was_touched_last(cache, keys, blocks):
    held = cache(blocks)
    for key in keys:
        held.touch(key)
        assert key in held
        assert sum(other in held for other in range(8)) <= blocks


@pytest.mark.parametrize("cache", CACHES)
@given(PROMPTS, st.integers(1, 8))
def test_no_cache_beats_the_optimum_and_all_are_equal_where_everything_fits(cache, prompts, blocks):
    prompts = chains(prompts)

    assert hits(cache(blocks), prompts) <= optimal_hits(prompts, blocks)
    assert hits(cache(100), prompts) == optimal_hits(prompts, 100) == lru_tails_first_hits(prompts, 100)


def most_hits(prompts, blocks):
    """By trying every set of blocks that could be kept after every prompt."""
    best = {frozenset(): 0}
    for keys in prompts:
        after = {}
        for cached, count in best.items():
            count += next((index for index, key in enumerate(keys) if key not in cached), len(keys))
            offered = cached | set(keys)
            for kept in combinations(sorted(offered), min(blocks, len(offered))):
                after[frozenset(kept)] = max(after.get(frozenset(kept), 0), count)
        best = after
    return max(best.values())


@settings(deadline=None)
@given(PROMPTS, st.integers(1, 3))
def test_the_optimum_is_what_exhaustive_search_finds(prompts, blocks):
    assert optimal_hits(chains(prompts), blocks) == most_hits(chains(prompts), blocks)


def test_textbook_examples():
    assert hits(LRU(2), [["a"], ["b"], ["a"], ["c"], ["a"], ["b"]]) == 2
    assert hits(LFU(2), [["a"], ["a"], ["b"], ["c"], ["a"], ["b"]]) == 2
    scan = [["a"], ["a"], ["b"], ["b"], *([key] for key in "cdefgh"), ["a"], ["b"]]
    assert hits(LRU(3), scan) == 2
    assert hits(ARC(3), scan) == 4
    assert hits(S3FIFO(10), [["a"], ["a"], ["a"], *([n] for n in range(30)), ["a"]]) == 3
