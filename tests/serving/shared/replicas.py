"""Replicas as services run them, in one process: each with controller, connection and id of its own."""

import asyncio
import secrets
from collections.abc import Awaitable
from random import Random
from typing import Any, Literal

from serving.clock import SystemClock
from serving.controller.decide import Controller
from serving.controller.decision import Decision, RequestFacts
from serving.controller.quota import Quota
from serving.controller.rules import Rules
from serving.controller.tenants import TenantLimits
from serving.shared.settings import SharedSettings
from serving.shared.sharing import Sharing
from serving.shared.store import Store

LIMIT = 1_000
ONE = RequestFacts(1, "acme", lane="standard", max_tokens=1)
QUOTA = Rules(
    capacity_tokens=10_000_000,
    tenants={"acme": TenantLimits(daily=Quota(2 * LIMIT))},  # each request is 2 tokens: 1 in, 1 out
)

OPEN: list[Store] = []


def holding(requests: int) -> Rules:
    """Capacity of which the lanes without protection, 60 %, hold so many requests of 2 tokens."""
    return Rules(capacity_tokens=round(2 * requests / 0.6), hard_reject_above=1.0)


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
        OPEN.append(self.sharing._store)

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


def run(test: Awaitable[None]) -> None:
    async def main() -> None:
        try:
            await test
        finally:  # also those that parted without a word
            while OPEN:
                await OPEN.pop()._redis.aclose()

    asyncio.run(main())
