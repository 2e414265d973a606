"""The script on a real server: in any order of events no limit is granted twice and no count is below 0."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.errors import InputError
from serving.controller.pool import Ask
from serving.shared.settings import SharedSettings
from serving.shared.store import Store

LIMIT = 100
ASK = Ask("held", 0, False, LIMIT, 0, 0, 0, 0, 0, 0)
DAY_S = 86_400
QUOTA = replace(ASK, name="quota", length_s=DAY_S)

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "ask", "admit", "admit", "settle", "leave", "kill", "again"]),
        st.integers(0, 3),
        st.integers(0, 60),
        st.integers(0, 60),
    ),
    max_size=40,
)


class Model:
    """What each replica uses and may use, by plain sums; its asks are as a replica's are."""

    def __init__(self, used_stays: bool) -> None:
        self.used_stays = used_stays
        self.used = [0] * 4
        self.room = [0] * 4
        self.told: list[tuple[int, int] | None] = [None] * 4  # use and room, as the store has it
        self.spent = 0  # used by replicas that are gone, of a quota

    def gone(self, number: int) -> None:
        told = self.told[number]
        if told is not None and self.used_stays:
            self.spent += told[0]
        self.used[number] = self.room[number] = 0
        self.told[number] = None


@pytest.mark.parametrize("ask", [ASK, QUOTA], ids=["held", "quota"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, exact=st.booleans())
def test_any_order_of_join_admit_settle_leave_and_rejoin_keeps_the_limit(server, ask, steps, exact):
    async def test() -> None:
        server.client.flushall()
        server.client.hset("{tidegate}:members", "@born", 0)
        told = SharedSettings(server.url, "exact" if exact else "leased", replicas=4, lease_s=60.0)
        incarnations = 0
        period = int(time.time() // DAY_S) if ask.length_s else 0
        model = Model(used_stays=ask.length_s > 0)
        names = [f"r{number}" for number in range(4)]
        stores = [Store(told, name) for name in names]
        everyone = list(stores)
        for event, number, need, keep in steps:
            if event == "admit":
                taken = min(need, model.room[number])
                model.used[number] += taken
                model.room[number] -= taken
            elif event == "settle" and ask.length_s == 0:
                freed = min(need, model.used[number])
                model.used[number] -= freed
                model.room[number] += freed
            elif event in ("ask", "again"):
                kept = min(keep, model.room[number])
                asked = replace(
                    ask,
                    period=period,
                    used_tokens=model.used[number],
                    keep_tokens=kept,
                    need_tokens=need,
                    want_tokens=max(need, kept),
                )
                answer = await stores[number].exchange([asked])
                if event == "again":  # the answer was lost: told once more
                    answer = await stores[number].exchange([asked])
                (grant,) = answer.grants
                others = [told for other, told in enumerate(model.told) if told and other != number]
                free = LIMIT - model.spent - model.used[number] - sum(sum(told) for told in others)
                assert 0 <= grant.room_tokens <= max(0, free)
                assert grant.room_tokens >= min(kept, free)
                assert grant.elsewhere_tokens == model.spent + sum(told[0] for told in others)
                assert answer.live_replicas == len(others) + 1
                if exact:
                    assert grant.room_tokens in (min(kept, free), max(need, kept))
                    assert (grant.room_tokens >= need) == (free >= need)
                model.room[number] = grant.room_tokens
                model.told[number] = (model.used[number], grant.room_tokens)
            elif event in ("leave", "kill") and model.told[number] is not None:
                if event == "leave":
                    await stores[number].exchange(
                        [replace(ask, period=period, used_tokens=model.used[number])], leaving=True
                    )
                    model.told[number] = (model.used[number], 0)
                else:  # as if its lease had passed
                    server.client.hdel("{tidegate}:members", names[number])
                model.gone(number)
                incarnations += 1
                names[number] = f"r{number}-{incarnations}"
                stores[number] = Store(told, names[number])
                everyone.append(stores[number])
            assert sum(model.used) + sum(model.room) + model.spent <= LIMIT
        for store in everyone:
            await store.close()

    asyncio.run(test())


async def granted(url: str, name: str, *asks: Ask, mode: Any = "exact") -> list[int]:
    """Room granted to a replica that is connected for one exchange."""
    store = Store(SharedSettings(url, mode, replicas=4), name)
    store._calls = time.monotonic_ns()  # later than those of its life before
    answer = await store.exchange(asks)
    await store.close()
    return [grant.room_tokens for grant in answer.grants]


def test_a_store_that_has_just_begun_grants_shares_alone(store_url):
    wants_all = replace(ASK, need_tokens=1, want_tokens=LIMIT)
    assert asyncio.run(granted(store_url, "a", wants_all)) == [LIMIT // 4]


def test_what_a_day_left_is_credit_of_the_next_up_to_the_burst(server, store_url):
    server.client.hset("{tidegate}:members", "@born", 0)
    today = int(time.time() // DAY_S)
    key = "{tidegate}:pool:quota"
    server.client.hset(key, mapping={"@period": today - 1, "@credit": 10, "a": f"70 0 {today - 1} 0 0"})
    ask = replace(QUOTA, burst_tokens=50, period=today, need_tokens=1, want_tokens=1_000)

    assert asyncio.run(granted(store_url, "b", ask)) == [LIMIT + 10 + (LIMIT - 70)]
    assert server.client.hget(key, "@credit") == "40"


def test_an_idle_pool_spares_little_and_a_short_one_gets_it(server, store_url):
    server.client.hset("{tidegate}:members", "@born", 0)
    idle = replace(ASK, want_tokens=50)
    short = replace(ASK, need_tokens=95, want_tokens=95)

    async def test() -> None:
        one, other = (Store(SharedSettings(store_url), name) for name in "ab")
        assert (await one.exchange([idle])).grants[0].room_tokens == LIMIT // 4
        assert (await other.exchange([short])).grants[0].room_tokens == 0  # all or nothing
        recalled = await one.exchange([replace(idle, keep_tokens=0, want_tokens=0)])
        assert recalled.recalled == ("held",)
        assert recalled.grants[0].contended
        assert (await other.exchange([short])).grants[0].room_tokens == 95
        await one.close()
        await other.close()

    asyncio.run(test())


def test_a_call_that_was_overtaken_changes_nothing(server, store_url):
    async def test() -> None:
        store = Store(SharedSettings(store_url), "a")
        await store.exchange([replace(ASK, used_tokens=30)])
        store._calls -= 1  # the same number again, late
        assert (await store.exchange([replace(ASK, used_tokens=99)])).overtaken
        assert server.client.hget("{tidegate}:pool:held", "a").startswith("30 ")
        await store.close()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"url": "http://tide:geheim@store"}, "shared.url must start with redis://"),
        ({"mode": "quorum"}, "shared.mode must be one of leased, exact; got 'quorum'"),
        ({"replicas": 0}, "shared.replicas must be over 0"),
        ({"lease_s": 0.1}, "shared.lease_s must be at least 3 times"),
        ({"prefix": "{a}"}, "shared.prefix must be text without braces"),
    ],
)
def test_settings_that_can_not_work_are_refused(told, message):
    with pytest.raises(InputError, match=message.replace(".", r"\.")) as refused:
        SharedSettings(**{"url": "redis://store", **told})
    assert "geheim" not in str(refused.value)
