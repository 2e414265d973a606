"""The policy against a plain model: sets of cached blocks, checked after every step."""

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.controller.eviction.policy import EvictionPolicy
from serving.controller.eviction.settings import EvictionRules, Retention, TenantBlocks

PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=6)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["use", "use", "use", "evict", "free", "hold", "release"]),
        st.integers(0, 4),
        PROMPTS,
        st.sampled_from([0.0, 0.7, 3.0, 80.0, 5_000.0]),
        st.booleans(),
    ),
    max_size=40,
)


def chain(prompt):
    """Keys that name their whole prefix."""
    return [tuple(prompt[: end + 1]) for end in range(len(prompt))]


def plain_match(cached, keys):
    return next((index for index, key in enumerate(keys) if key not in cached), len(keys))


@settings(deadline=None, max_examples=300)
@given(STEPS, st.sampled_from([0, 3, 1_000]))
def test_counts_matches_and_holds_are_those_of_a_plain_model(steps, remembered_blocks):
    tenants = {"t1": TenantBlocks(floor=2, ceiling=5)}
    policy = EvictionPolicy(EvictionRules(tenants=tenants, remembered_blocks=remembered_blocks))
    cached: set[tuple[int, ...]] = set()
    tenant_of: dict[tuple[int, ...], str] = {}
    held: dict[str, list[tuple[int, ...]]] = {}
    running: set[str] = set()
    now_s = 0.0
    for action, number, prompt, wait_s, flag in steps:
        now_s += wait_s
        name, keys, tenant = f"r{number}", chain(prompt), f"t{number % 3}"
        gone = []
        if action == "use":
            expected = plain_match(cached, keys)
            hint = Retention(10 * number, 60.0) if flag else None
            assert (
                policy.use(name, keys, now_s, tenant=tenant, retention=hint, partly_filled=flag) == expected
            )
            cached |= set(keys)
            tenant_of |= dict.fromkeys(keys, tenant)
            held[name] = keys
            running.add(name)
        elif action == "hold" and name not in running:
            matched = policy.hold(name, keys, now_s)
            assert matched == plain_match(cached, keys)
            held[name] = keys[:matched]
        elif action == "free":
            policy.free(name)
            held.pop(name, None)
            running.discard(name)
        elif action == "evict":
            gone = policy.evict(number, now_s)
            assert len(gone) <= number
        elif action == "release":
            gone = policy.release(now_s, load=number / 4)
        for key in gone:
            assert key in cached
            cached.remove(key)
            assert not any(other[: len(key)] == key for other in cached), "a child stays"
            assert all(key not in keys for keys in held.values()), "held"
        assert policy.cached_blocks == len(cached)
        assert policy.blocks_of("t1") == sum(tenant_of[key] == "t1" for key in cached)
        assert policy.match(keys) == plain_match(cached, keys)

    for name in list(held):
        policy.free(name)
    left = cached - set(policy.evict(10_000, now_s))
    kept = [key for key in left if tenant_of[key] == "t1"]
    assert len(kept) <= 2
    assert all(any(key == other[: len(key)] for other in kept) for key in left), "only a floor keeps blocks"
