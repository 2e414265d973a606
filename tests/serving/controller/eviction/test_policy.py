import math

import pytest

from data.errors import InputError
from serving.controller.eviction.policy import EvictionPolicy
from serving.controller.eviction.settings import EvictionRules, Retention, TenantBlocks


def used(policy, name, keys, now_s, **facts):
    """A request that ran and ended at once."""
    hits = policy.use(name, keys, now_s, **facts)
    policy.free(name)
    return hits


class DictCache:
    """A plain dictionary cache that embeds the policy."""

    def __init__(self, blocks):
        self.blocks, self.store, self.policy = blocks, {}, EvictionPolicy()

    def serve(self, request, prompt, now_s):
        """Chunks of the prompt that need not be computed."""
        keys = ["".join(prompt[: end + 1]) for end in range(len(prompt))]
        hits = self.policy.use(request, keys, now_s)
        missing = keys[hits:]
        for key in self.policy.evict(len(self.store) + len(missing) - self.blocks, now_s):
            del self.store[key]
        for key in missing:
            self.store[key] = key.upper()  # stands for computing it
        self.policy.free(request)
        return hits


def test_one_policy_object_drives_a_plain_dictionary_cache():
    cache = DictCache(blocks=6)

    hits = [
        cache.serve(f"r{i}", prompt, float(i)) for i, prompt in enumerate(["abc", "abd", "xy", "abc", "pqrs"])
    ]

    assert hits == [0, 2, 0, 3, 0]
    assert len(cache.store) == cache.policy.cached_blocks == 6
    assert {"p", "pq", "pqr", "pqrs"} <= set(cache.store)
    assert all(key[:-1] in cache.store for key in cache.store if len(key) > 1)


def test_a_partly_filled_block_leaves_before_a_full_one_used_earlier():
    policy = EvictionPolicy()
    used(policy, "r1", ["A"], 0.0)
    used(policy, "r2", ["A"], 1.0)
    used(policy, "r3", ["P"], 2.0, partly_filled=True)
    policy.use("r4", ["C"], 3.0)

    assert policy.evict(1, 3.0) == ["P"]
    assert policy.match(["A"]) == 1


def test_a_partly_filled_block_leaves_even_when_its_request_asked_to_be_kept():
    policy = EvictionPolicy()
    used(policy, "r1", ["a", "b", "p"], 0.0, partly_filled=True, retention=Retention(100))
    used(policy, "r2", ["x"], 1.0, retention=Retention(0))

    assert policy.evict(2, 2.0) == ["p", "x"]


def test_a_freed_sequence_loses_its_tail_first():
    policy = EvictionPolicy()
    used(policy, "r1", ["a", "b", "c"], 0.0)

    assert policy.evict(3, 1.0) == ["c", "b", "a"]


def test_a_prefix_never_leaves_while_a_child_stays():
    policy = EvictionPolicy()
    used(policy, "old", ["s", "a", "b"], 0.0)
    used(policy, "new", ["s", "c"], 1.0)
    policy.hold("wait", ["s", "a"], 1.0)

    assert policy.evict(9, 2.0) == ["b", "c"]
    policy.free("wait")
    assert policy.evict(9, 2.0) == ["a", "s"]


def test_blocks_in_use_never_leave():
    policy = EvictionPolicy()
    policy.use("r1", ["a", "b"], 0.0)

    assert policy.evict(2, 10_000.0) == []
    policy.free("r1")
    assert policy.evict(2, 10_000.0) == ["b", "a"]


def test_what_waiting_requests_will_need_is_held_until_they_ran_or_were_cancelled():
    policy = EvictionPolicy()
    used(policy, "r1", ["X"], 0.0)
    used(policy, "r2", ["Y"], 100.0)
    for waiter in ("w1", "w2", "w3"):
        assert policy.hold(waiter, ["X", waiter], 100.0) == 1

    assert policy.evict(1, 101.0) == ["Y"]
    assert used(policy, "w1", ["X", "w1"], 102.0) == 1
    assert used(policy, "w2", ["X", "w2"], 102.0) == 1
    assert "X" not in policy.evict(9, 103.0)
    policy.free("w3")  # cancelled
    assert policy.evict(9, 103.0) == ["X"]


def test_a_pinned_prefix_stays_until_it_is_unpinned():
    policy = EvictionPolicy()
    used(policy, "r1", ["system", "a"], 0.0)
    policy.hold("pin", ["system"], 0.0)

    assert policy.evict(2, 4_000.0) == ["a"]
    assert policy.match(["system"]) == 1


def test_a_waiter_whose_blocks_are_not_cached_holds_nothing():
    policy = EvictionPolicy()

    assert policy.hold("w1", ["a"], 0.0) == 0
    policy.free("w1")
    policy.free("never heard of")


def test_a_running_request_grows_by_using_its_longer_chain():
    policy = EvictionPolicy()
    policy.use("r1", ["a", "b"], 0.0)

    assert policy.use("r1", ["a", "b", "c"], 1.0) == 2
    assert policy.evict(3, 2.0) == []
    policy.free("r1")
    assert policy.evict(3, 2.0) == ["c", "b", "a"]


def test_a_partly_filled_block_that_fills_up_under_another_key_leaves_first():
    policy = EvictionPolicy()
    keys = ["a", "p"]
    policy.use("r1", keys, 0.0, partly_filled=True)
    keys[1:] = ["b", "q"]

    assert policy.use("r1", keys, 1.0, partly_filled=True) == 1
    assert policy.evict(4, 2.0) == ["p"]
    policy.free("r1")
    assert policy.evict(4, 2.0) == ["q", "b", "a"]


def test_blocks_of_lower_priority_leave_wholly_before_those_of_a_higher_one():
    policy = EvictionPolicy()
    used(policy, "high", ["h1", "h2"], 0.0, retention=Retention(80))
    used(policy, "none", ["n1", "n2"], 1.0)
    used(policy, "low", ["l1", "l2"], 2.0, retention=Retention(10))

    assert policy.evict(6, 3.0) == ["l2", "l1", "n2", "n1", "h2", "h1"]


def test_a_priority_ends_with_its_duration():
    def order(now_s):
        policy = EvictionPolicy()
        used(policy, "high", ["h"], 0.0, retention=Retention(80, duration_s=30.0))
        used(policy, "none", ["n"], 20.0)
        return policy.evict(2, now_s)

    assert order(29.9) == ["n", "h"]
    assert order(30.0) == ["h", "n"]


def test_shared_blocks_keep_the_last_explicit_priority():
    policy = EvictionPolicy()
    used(policy, "r1", ["s", "a"], 0.0, retention=Retention(90))
    used(policy, "r2", ["s", "b"], 1.0)
    used(policy, "r3", ["t"], 2.0, retention=Retention(50))

    assert policy.evict(4, 3.0) == ["b", "t", "a", "s"]


def test_a_hint_stays_with_the_blocks_that_it_was_given_for():
    policy = EvictionPolicy()
    used(policy, "r1", ["s", "a"], 0.0, retention=Retention(10))
    used(policy, "r2", ["s"], 1.0, retention=Retention(35))
    used(policy, "r3", ["s", "a"], 2.0)
    used(policy, "r4", ["t"], 3.0, retention=Retention(20))

    assert policy.evict(3, 4.0) == ["a", "t", "s"]


def test_a_tenant_keeps_its_floor_against_others():
    policy = EvictionPolicy(EvictionRules(tenants={"small": TenantBlocks(floor=2)}))
    used(policy, "r1", ["a", "b", "c"], 0.0, tenant="small")
    used(policy, "r2", ["x", "y"], 1.0, tenant="big")

    assert set(policy.evict(9, 2.0)) == {"c", "x", "y"}
    assert policy.blocks_of("small") == 2


def test_a_tenant_over_its_ceiling_loses_blocks_first_and_ahead_of_need():
    rules = EvictionRules(tenants={"big": TenantBlocks(ceiling=2)})
    policy = EvictionPolicy(rules)
    used(policy, "r1", ["x"], 0.0, tenant="other")
    used(policy, "r2", ["a", "b", "c", "d"], 100.0, tenant="big")

    assert policy.evict(1, 101.0) == ["d"]
    assert policy.release(101.0, load=0.0) == ["c"]
    assert policy.release(101.0, load=0.0) == []


def hours_without_reuse(policy):
    for number in range(200):
        used(policy, f"n{number}", [(number, block) for block in range(10)], number * 40.0)
    return 200 * 40.0


def hours_with_some_reuse(policy):
    """Of 20 prompts 3 come back after 100 s, and 2 after 1,000 s; the others never do."""
    arrivals = [(number * 10.0, number) for number in range(600)]
    arrivals += [(number * 10.0 + 100.0, number) for number in range(600) if number % 20 < 3]
    arrivals += [(number * 10.0 + 1_000.0, number) for number in range(600) if number % 20 in (3, 4)]
    for place, (now_s, number) in enumerate(sorted(arrival for arrival in arrivals if arrival[0] < 6_000.0)):
        used(policy, f"n{place}", [(number, block) for block in range(10)], now_s)
    return 6_000.0


def test_what_may_leave_ahead_of_need_grows_with_load_and_with_tightening():
    def released(load, tightening=0.0):
        policy = EvictionPolicy(EvictionRules(block_tokens=512))
        now_s = hours_with_some_reuse(policy)
        return len(policy.release(now_s, load, tightening))

    calm, busy, full = released(0.2), released(0.5), released(0.85)
    assert 0 < calm < busy < full
    assert released(0.2, tightening=0.01) == busy
    assert released(0.5, tightening=1.0) == full
    assert released(0.9, tightening=1.0) == full
    assert released(math.nan) == calm


def test_blocks_under_the_reuse_floor_may_leave_at_any_load_and_hinted_ones_stay():
    policy = EvictionPolicy()
    used(policy, "kept", ["k"], 0.0, retention=Retention(60))
    now_s = hours_without_reuse(policy)

    gone = policy.release(now_s, load=0.0)

    assert (0, 0) in gone
    assert policy.match(["k"]) == 1


def test_of_equal_chances_what_is_dear_to_rebuild_stays():
    policy = EvictionPolicy(EvictionRules(rebuild_cost=float, short_tokens=1))
    used(policy, "deep", [("d", block) for block in range(8)], 0.0)
    used(policy, "flat", ["f"], 0.0)

    assert policy.evict(1, 1.0) == ["f"]


def test_conversations_that_come_back_are_kept_longer_than_single_requests():
    policy = EvictionPolicy(EvictionRules(block_tokens=512))
    now_s = 0.0
    for number in range(300):
        now_s += 10.0
        used(policy, f"s{number}", [("single", number, block) for block in range(8)], now_s)
        chat = [("chat", number % 6, block) for block in range(8 + number // 6)]
        used(policy, f"c{number}", chat, now_s)

    leaving = policy.evict(100, now_s)

    assert {key[0] for key in leaving} == {"single"}


def test_advice_to_engines_that_take_hints():
    policy = EvictionPolicy()
    used(policy, "r1", ["a", "p"], 0.0, partly_filled=True)

    advice = policy.advise(["a", "p"])

    assert advice is not None
    assert 35 < advice.priority <= 100
    assert advice.duration_s is not None
    assert advice.duration_s > 0
    assert policy.advise(["unknown"]) is None


def test_a_key_must_stand_after_the_same_block():
    policy = EvictionPolicy()
    used(policy, "r1", ["a", "b"], 0.0)

    with pytest.raises(InputError, match="'b' must always stand after the same block"):
        policy.use("r2", ["x", "b"], 1.0)
    with pytest.raises(InputError, match="must differ"):
        policy.use("r2", ["x", "x"], 1.0)
    assert used(policy, "r3", ["a", "b"], 1.0) == 2


def test_a_running_request_cannot_be_held_and_time_must_be_finite():
    policy = EvictionPolicy()
    policy.use("r1", ["a"], 0.0)

    with pytest.raises(InputError, match="'r1' must not be running"):
        policy.hold("r1", ["a"], 0.0)
    with pytest.raises(InputError, match="now_s must be a finite number"):
        policy.evict(1, math.nan)


def test_a_clock_that_steps_back_stands_still():
    policy = EvictionPolicy()
    used(policy, "r1", ["a"], 100.0)
    used(policy, "r2", ["b"], 50.0)

    assert set(policy.evict(2, 0.0)) == {"a", "b"}


def test_a_broken_rebuild_cost_is_refused_before_anything_changes():
    policy = EvictionPolicy(EvictionRules(rebuild_cost=lambda depth: 2.0 - depth))
    used(policy, "r1", ["a"], 0.0)

    with pytest.raises(InputError, match="Rebuild cost must be over 0 and finite"):
        policy.use("r2", ["a", "b"], 1.0)
    assert policy.cached_blocks == 1
    assert used(policy, "r3", ["a"], 2.0) == 1


def test_memory_of_evicted_blocks_is_bounded():
    policy = EvictionPolicy(EvictionRules(remembered_blocks=50))
    for number in range(1_000):
        used(policy, f"r{number}", [(number, block) for block in range(5)], float(number))
        policy.evict(policy.cached_blocks - 20, float(number))

    assert len(policy._tree._owner) <= 20 + 50 + 5
