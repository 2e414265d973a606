import asyncio
import secrets
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Literal

import pytest

from serving.clock import SystemClock
from serving.controller.decide import Controller
from serving.controller.decision import Decision, RequestFacts
from serving.controller.quota import Quota
from serving.controller.rules import Rules
from serving.controller.tenants import TenantLimits
from serving.shared.settings import SharedSettings
from serving.shared.sharing import Sharing

LIMIT = 1_000
ONE = RequestFacts(1, "acme", lane="standard", max_tokens=1)
QUOTA = Rules(
    capacity_tokens=10_000_000,
    tenants={"acme": TenantLimits(daily=Quota(2 * LIMIT))},  # each request is 2 tokens: 1 in, 1 out
)


class Replica:
    def __init__(
        self, url: str, rules: Rules, mode: Literal["leased", "exact"] = "leased", **told: Any
    ) -> None:
        self.clock = SystemClock()
        self.controller = Controller(
            rules,
            random=Random(1),
            id_prefix=secrets.token_hex(2),
            wall_offset_s=self.clock.wall_us() / 1e6 - self.clock.monotonic_s(),
        )
        # A test on a busy machine may not lose its leases, nor miss a deadline, for want of a turn.
        told = {"replicas": 4, "deadline_ms": 5_000.0, "lease_s": 30.0} | told
        self.sharing = Sharing(self.controller, SharedSettings(url, mode, **told), self.clock)
        self.mode = mode

    async def admit(self, facts: RequestFacts = ONE) -> Decision:
        await self.sharing.make_room(facts)
        return self.controller.admit(facts, self.clock.monotonic_s())

    def settle(self, decision: Decision, output_tokens: int) -> None:
        assert decision.reservation_id is not None
        assert self.controller.settle(decision.reservation_id, output_tokens, self.clock.monotonic_s())

    def held_tokens(self) -> int:
        return self.controller.snapshot(self.clock.monotonic_s()).held_tokens


async def settled_store(*replicas: Replica) -> None:
    """A store that has long been there: what it grants at its start is not what is tested."""
    for replica in replicas:
        await replica.sharing.exchange()
    client = replicas[0].sharing._store._redis
    await client.hset("{tidegate}:members", "@born", "0")  # type: ignore[misc]
    for replica in replicas:
        await replica.sharing.exchange()


async def offer(replicas: list[Replica], to: Callable[[int], int], offered: int) -> int:
    """Offer requests over a while, each replica exchanging by itself; how many were admitted."""
    await settled_store(*replicas)
    runs = [asyncio.create_task(replica.sharing.run()) for replica in replicas]
    admitted = 0
    for number in range(offered):
        admitted += (await replicas[to(number)].admit()).admitted
        if number % 10 == 9:
            await asyncio.sleep(0.002)
    for run in runs:
        run.cancel()
    await asyncio.gather(*runs, return_exceptions=True)
    return admitted


def run(test: Awaitable[None]) -> None:
    async def main() -> None:
        await test

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["leased", "exact"])
@pytest.mark.parametrize("to", [lambda n: n % 4, lambda n: 0], ids=["evenly", "to one"])
@pytest.mark.parametrize("limit", ["quota", "capacity"])
def test_four_replicas_hold_one_limit(store_url, mode, to, limit):
    """Four times the limit is offered: all of it is admitted within 1 %, wherever that comes in."""
    capacity = Rules(capacity_tokens=round(2 * LIMIT / 0.6))  # standard may hold 60 % of it

    async def test() -> None:
        replicas = [Replica(store_url, QUOTA if limit == "quota" else capacity, mode) for _ in range(4)]
        admitted = await offer(replicas, to, 4_000)
        assert 990 <= admitted <= LIMIT
        for replica in replicas:
            await replica.sharing.close()

    run(test())
