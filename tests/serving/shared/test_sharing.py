import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from serving.controller.decision import RequestFacts
from serving.controller.quota import Quota
from serving.controller.rules import Rules
from serving.controller.tenants import TenantLimits
from serving.shared.settings import SharedSettings
from tests.serving.shared.replicas import LIMIT, ONE, QUOTA, Replica, holding, run, settled_store


async def offer(replicas: list[Replica], to: Callable[[int], int], offered: int) -> int:
    """Offer requests over a while, each replica exchanging by itself; how many were admitted."""
    await settled_store(*replicas)
    runs = [asyncio.create_task(replica.sharing.run()) for replica in replicas]
    admitted = 0
    for number in range(offered):
        admitted += (await replicas[to(number)].admit()).admitted
        if number % 10 == 9:
            await asyncio.sleep(0.002)
    for task in runs:
        task.cancel()
    await asyncio.gather(*runs, return_exceptions=True)
    return admitted


async def fill(
    replica: Replica, offered: int, other: Replica | None = None, facts: RequestFacts = ONE
) -> int:
    """Offer to one replica alone, which exchanges every ten requests, as does the other; how many came in."""
    admitted = 0
    for number in range(2 * offered):
        admitted += (await replica.admit(facts)).admitted
        if number % 10 == 9:
            await replica.sharing.exchange()
            if other is not None:
                await other.sharing.exchange()
        if admitted == offered:
            break
    return admitted


def used_by_replica(server: Any, pattern: str) -> list[int]:
    """Tokens that each replica told as used of the pools of that name."""
    rows = [server.client.hgetall(key) for key in server.client.keys("{tidegate}:" + pattern)]
    return [int(told.split()[0]) for row in rows for id_, told in row.items() if id_[0] != "@"]


@pytest.mark.parametrize("to", [lambda n: n % 4, lambda n: 0], ids=["evenly", "to one"])
@pytest.mark.parametrize(
    ("mode", "limit", "rules"),
    [
        ("leased", 1_000, QUOTA),
        ("leased", 1_000, holding(1_000)),
        ("exact", 200, holding(200)),
    ],
    ids=["quota", "capacity", "capacity, exact"],
)
def test_four_replicas_hold_one_limit(store_url, mode, limit, rules, to):
    """Four times the limit is offered: all of it is admitted within 1 %, wherever that comes in."""

    async def test() -> None:
        replicas = [Replica(store_url, rules, mode) for _ in range(4)]
        admitted = await offer(replicas, to, 4 * limit)
        assert 0.99 * limit <= admitted <= limit

    run(test())


def test_a_store_that_never_answers_leaves_each_its_share():
    """Of 4,000 offered to one limit of 1,000 each of four replicas admits 250."""

    async def test() -> None:
        for rules in (QUOTA, holding(LIMIT)):
            replica = Replica("redis://127.0.0.1:1/0", rules, "exact")
            assert not await replica.sharing.exchange()
            assert replica.sharing.lost
            assert sum([(await replica.admit()).admitted for _ in range(LIMIT)]) == LIMIT // 4
            await replica.sharing.close()

    run(test())


def test_a_lost_store_leaves_what_was_left_and_is_told_all_when_it_is_back(server):
    async def test() -> None:
        server.client.flushall()
        replicas = [Replica(server.url, QUOTA, lease_s=0.3) for _ in range(4)]
        await settled_store(*replicas)
        before = [0] * 4
        for number in range(1_200):
            before[number % 2] += (await replicas[number % 2].admit()).admitted
            if number % 20 == 19:
                await asyncio.gather(*(replica.sharing.exchange() for replica in replicas))
            if sum(before) == 600:
                break
        assert sum(before) == 600
        for _ in range(2):
            await asyncio.gather(*(replica.sharing.exchange() for replica in replicas))

        server.stop()
        while not all(replica.sharing.lost for replica in replicas):
            await asyncio.gather(*(replica.sharing.exchange() for replica in replicas))
        alone = [sum([(await replica.admit()).admitted for _ in range(LIMIT)]) for replica in replicas]
        assert all(95 <= admitted <= 101 for admitted in alone)  # a fourth of the 400 that were left

        server.start()  # it has forgotten everything
        for _ in range(3):
            for replica in replicas:
                await replica.sharing.exchange()
        assert not any(replica.sharing.lost for replica in replicas)
        assert sum(used_by_replica(server, "pool:*:86400:c")) == 2 * (600 + sum(alone))
        assert not any([(await replica.admit()).admitted for replica in replicas for _ in range(20)])
        for replica in replicas:
            await replica.sharing.close()

    run(test())


def test_room_of_a_killed_replica_comes_back_after_its_lease(store_url):
    async def test() -> None:
        killed, other = Replica(store_url, holding(100), lease_s=0.5), Replica(store_url, holding(100))
        await settled_store(killed, other)
        assert await fill(killed, 100, other) >= 99
        assert not (await other.admit()).admitted
        await asyncio.sleep(0.5)  # it says no word any more
        await other.sharing.exchange()
        assert await fill(other, 100) >= 99
        await other.sharing.close()

    run(test())


def test_a_replica_that_parts_leaves_its_room_at_once(store_url):
    async def test() -> None:
        parting, other = Replica(store_url, holding(100)), Replica(store_url, holding(100))
        await settled_store(parting, other)
        assert await fill(parting, 100, other) >= 99
        await parting.sharing.close()
        assert await fill(other, 100) >= 99
        await other.sharing.close()

    run(test())


def test_batch_on_one_replica_leaves_premium_its_share_on_another(store_url):
    async def test() -> None:
        one, other = Replica(store_url, holding(600)), Replica(store_url, holding(600))  # 2,000 tokens
        await settled_store(one, other)
        assert await fill(one, 1_000, other, replace(ONE, lane="batch")) >= 590
        assert await fill(other, 1_000, one, replace(ONE, lane="premium")) >= 390
        assert one.held_tokens() + other.held_tokens() <= 2_000
        assert one.held_tokens() <= 1_200

    run(test())


def test_backpressure_counts_what_others_hold(store_url):
    async def test() -> None:
        one, other = Replica(store_url, holding(600)), Replica(store_url, holding(600))
        await settled_store(one, other)
        await fill(one, 500)
        await one.sharing.exchange()
        await other.sharing.exchange()
        assert other.held_tokens() == 0
        pressure = other.controller.snapshot(other.clock.monotonic_s()).backpressure
        assert pressure == pytest.approx(one.held_tokens() / 2_000)

    run(test())


def test_a_tenant_is_asked_about_once_before_its_first_request(store_url):
    """A quota of which the store was not asked has next to no room; a request waits for the answer."""

    async def test() -> None:
        rules = Rules(default_tenant=TenantLimits(hourly=Quota(1_000)))
        one, other = Replica(store_url, rules), Replica(store_url, rules)
        await settled_store(one, other)
        for tenant in ("a", "b"):
            large = RequestFacts(400, tenant, max_tokens=100)
            assert (await one.admit(large)).admitted
            assert (await other.admit(large)).admitted
            refused = await one.admit(large)
            assert (refused.admitted, refused.reason) == (False, "tenant_quota")

    run(test())


def test_settled_tokens_are_free_for_other_replicas(store_url):
    async def test() -> None:
        one, other = Replica(store_url, holding(100), "exact"), Replica(store_url, holding(100), "exact")
        await settled_store(one, other)
        given = [await one.admit() for _ in range(100)]
        assert all(decision.admitted for decision in given)
        assert not (await other.admit()).admitted
        one.settle(given[0], 1)
        await one.sharing.exchange()
        assert (await other.admit()).admitted

    run(test())


def test_hours_are_those_of_the_store_whatever_a_replicas_clock_says(store_url):
    async def test() -> None:
        replica = Replica(store_url, QUOTA)
        gate_s = replica.clock.monotonic_s
        replica.controller.on_gate(lambda gate, _: setattr(gate, "wall_offset_s", 0.0), gate_s())
        await replica.sharing.exchange()
        offset_s = replica.controller.on_gate(lambda gate, _: gate.wall_offset_s, gate_s())
        now_s = offset_s + replica.clock.monotonic_s()
        assert now_s == pytest.approx(replica.clock.wall_us() / 1e6, abs=1.0)
        await replica.sharing.close()

    run(test())


def test_names_of_tenants_and_passwords_stay_out_of_the_store_and_of_messages(server, caplog):
    async def test() -> None:
        server.client.flushall()
        rules = Rules(tenants={"{acme}:secret": TenantLimits(daily=Quota(1_000))})
        replica = Replica(server.url, rules)
        await replica.sharing.exchange()
        keys = server.client.keys()
        assert all(key.startswith("{tidegate}:") for key in keys)
        assert not any("acme" in key for key in keys)
        await replica.sharing.close()
        wrong = Replica(server.url.replace("//", "//tide:geheim@"), rules)
        assert not await wrong.sharing.exchange()
        await wrong.sharing.close()
        assert "geheim" not in caplog.text + str([record.__dict__ for record in caplog.records])
        assert "geheim" not in repr(SharedSettings("redis://tide:geheim@store"))

    run(test())


def test_the_loop_of_exchanges_ends_whenever_it_is_cancelled(store_url):
    async def test() -> None:
        for moment in range(60):
            replica = Replica(store_url, QUOTA)
            loop = asyncio.create_task(replica.sharing.run())
            await asyncio.sleep(moment * 1e-4)
            loop.cancel()
            done, _ = await asyncio.wait([loop], timeout=10)
            assert done

    run(test())
