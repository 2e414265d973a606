from hypothesis import given
from hypothesis import strategies as st

from serving.engine_sim.blocks import KvBlocks


def test_a_freed_prefix_loses_its_tail_first():
    blocks = KvBlocks(4)
    blocks.take(3)
    blocks.share("abc")
    blocks.release("abc", 0)
    blocks.take(2)
    assert blocks.match("abc") == 2
    blocks.take(1)
    assert blocks.match("abc") == 1


def test_one_block_serves_two_that_computed_it_at_once():
    blocks = KvBlocks(6)
    blocks.take(4)
    blocks.share("ab")
    blocks.share("ab")
    assert blocks.used == 2
    blocks.release("ab", 0)
    assert (blocks.used, blocks.needed("ab", 1)) == (2, 1)
    blocks.release("ab", 0)
    assert (blocks.used, blocks.needed("ab", 1)) == (0, 3)


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 4), st.integers(0, 2)), max_size=30))
def test_a_prefix_never_leaves_while_a_child_stays(steps):
    """Requests come, the oldest go for the room; whatever is evicted, each key's parent is still there."""
    blocks, open_ = KvBlocks(10), []
    for chain, length, private in steps:
        keys = [(chain, place) for place in range(length)]
        while blocks.needed(keys[: blocks.match(keys)], length - blocks.match(keys) + private) > blocks.free:
            blocks.release(*open_.pop(0))
        matched = keys[: blocks.match(keys)]
        blocks.reference(matched)
        blocks.take(length - len(matched) + private)
        blocks.share(keys[len(matched) :])
        open_.append((keys, private))
        there = set(blocks._idle) | set(blocks._references)
        assert all(place == 0 or (name, place - 1) in there for name, place in there)
        assert blocks.used + len(blocks._idle) <= blocks.total
