"""The store fails in every way that it can: no request fails for it, and limits hold within a bound."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis

from serving.controller.decision import Decision
from serving.controller.rules import Rules
from tests.serving.shared.replicas import LIMIT, QUOTA, Replica, holding, run, settled_store

DEADLINE_MS = 20.0
PATIENCE_S = 20.0
SHORT: dict[str, Any] = {"lease_s": 0.3, "exchange_s": 0.05, "deadline_ms": DEADLINE_MS}


@asynccontextmanager
async def running(*replicas: Replica) -> AsyncIterator[None]:
    """Each exchanges by itself, as in the service."""
    runs = [asyncio.create_task(replica.sharing.run()) for replica in replicas]
    try:
        yield
    finally:
        assert not any(task.done() for task in runs), "an exchange ended the loop that makes them"
        for task in runs:
            task.cancel()
        await asyncio.gather(*runs, return_exceptions=True)


async def until(true: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < ends_s
        await asyncio.sleep(0.01)


async def offered(replicas: list[Replica], each: int, pause_s: float = 0.0) -> list[int]:
    """Offer so many to each in turn, with a pause after each turn; how many each admitted."""
    admitted = [0] * len(replicas)
    for number in range(each):
        for place, replica in enumerate(replicas):
            admitted[place] += (await replica.admit()).admitted
        if pause_s or number % 10 == 9:
            await asyncio.sleep(pause_s)
    return admitted


async def lost(replicas: list[Replica]) -> None:
    await until(lambda: all(replica.sharing.lost for replica in replicas))


async def found(replicas: list[Replica]) -> None:
    await until(lambda: not any(replica.sharing.lost for replica in replicas))


@pytest.mark.parametrize("comes_back", ["empty", "with its data of before"])
def test_killed_amid_traffic_a_quota_is_overshot_by_a_bound_and_held_again(own, tmp_path, comes_back):
    """400 of 1,000 are used: each of four may use a fourth of the rest; nothing is lost or told twice."""
    keeps = ["--dir", str(tmp_path), "--appendonly", "yes", "--appendfsync", "always"]
    kept = keeps if comes_back != "empty" else []

    async def test() -> None:
        own.start(*kept)
        replicas = [Replica(own.url, QUOTA, **SHORT) for _ in range(4)]
        await settled_store(*replicas)
        async with running(*replicas):
            before = await offered(replicas, 100, pause_s=0.005)
            own.stop()
            before += await offered(
                replicas, 10, pause_s=0.005
            )  # what was granted holds until the lease ends
            await lost(replicas)
            alone = await offered(replicas, LIMIT)
            total = sum(before) + sum(alone)
            # Each reckons its fourth from what was left when it last heard of the store, up to 50 ms before.
            assert 0.95 * LIMIT <= total <= 1.05 * LIMIT
            own.start(*kept)
            await found(replicas)
            await asyncio.sleep(0.5)  # a store that has just begun has heard of everybody by now
            after = await offered(replicas, 100)
            assert total + sum(after) <= max(total, LIMIT)
            used = [
                int(row.split()[0])
                for key in own.client.keys("{tidegate}:pool:*:86400:c")
                for name, row in own.client.hgetall(key).items()
                if name[0] != "@"
            ]
            assert sum(used) == 2 * (total + sum(after))

    run(test())


def test_killed_amid_traffic_what_is_held_falls_to_the_shares_and_comes_back(own):
    """One holds all of the capacity when the store is lost: the others take their shares, and no more."""

    async def test() -> None:
        own.start()
        replicas = [Replica(own.url, holding(400), **SHORT) for _ in range(4)]
        await settled_store(*replicas)
        async with running(*replicas):
            held: list[Decision] = []
            while len(held) < 390:
                decision = await replicas[0].admit()
                held += [decision] if decision.admitted else []
                await asyncio.sleep(0.001)
            own.stop()
            await lost(replicas)
            alone = await offered(replicas, 400)
            assert alone[0] == 0
            assert all(
                95 <= admitted <= 100 for admitted in alone[1:]
            )  # 400 / 4; in all 1.75 times the limit
            own.start()
            await found(replicas)
            assert sum(await offered(replicas, 10)) == 0  # nobody gets more while that much is held
            for decision in held:
                replicas[0].settle(decision, 1)
            await asyncio.sleep(0.5)
            more = await offered(replicas, 100, pause_s=0.005)
            assert 60 <= sum(more) <= 100  # 400 less the 300 of the others

    run(test())


async def within_its_time(replicas: list[Replica]) -> None:
    """Requests of one whose store does not answer are decided within the deadline, and its loop's slack."""
    slowest_s = 0.0
    for number in range(60):
        start_s = time.monotonic()
        await replicas[number % len(replicas)].admit()
        slowest_s = max(slowest_s, time.monotonic() - start_s)
    # The bound is ten times the deadline: a busy machine is late, a wait for the store's timeout is later.
    assert slowest_s < 10 * DEADLINE_MS / 1e3


async def by_share(replicas: list[Replica]) -> None:
    """Lost, each admits its share and nothing is refused for the store's sake."""
    await lost(replicas)
    assert await offered(replicas, LIMIT) == [LIMIT // 4] * len(replicas)


def broken_by(own: Any, name: str) -> Callable[[], None]:
    """What breaks the store for the replicas; the client of the test goes on."""
    client: redis.Redis = own.client

    def replica_of_nobody() -> None:
        client.config_set("replica-serve-stale-data", "no")
        client.replicaof("127.0.0.1", "1")

    return {
        "hung": lambda: own.signal(signal.SIGSTOP),
        "other password": lambda: [
            client.config_set("requirepass", "n" * 8),
            client.client_kill_filter(_type="normal"),
        ],
        "memory is full": lambda: client.config_set("maxmemory", "1"),
        "read only": lambda: client.replicaof("127.0.0.1", "1"),
        "stale replica": replica_of_nobody,
        "other types": lambda: [
            client.delete("{tidegate}:members"),
            client.set("{tidegate}:members", "text"),
        ],
    }[name]  # type: ignore[return-value]


def mended(own: Any, name: str) -> None:
    if name == "hung":
        own.signal(signal.SIGCONT)
    elif name == "other password":
        client = redis.Redis.from_url(own.url, password="n" * 8)
        client.config_set("requirepass", "")
        client.close()
    elif name == "memory is full":
        own.client.config_set("maxmemory", "0")
    elif name == "other types":
        own.client.delete("{tidegate}:members")
    else:
        own.client.replicaof("NO", "ONE")


@pytest.mark.parametrize(
    "name", ["hung", "other password", "memory is full", "read only", "stale replica", "other types"]
)
def test_a_store_that_answers_nothing_of_use_is_lost_and_found_again(own, name, caplog):
    async def test() -> None:
        own.start()
        replicas = [Replica(own.url, QUOTA, **SHORT) for _ in range(2)]
        await settled_store(*replicas)
        async with running(*replicas):
            await offered(replicas, 5)
            broken_by(own, name)()
            await within_its_time(replicas)
            await lost(replicas)
            assert all(replica.sharing.failures for replica in replicas)
            assert sum(await offered(replicas, 10)) == 20  # far from its share: all of it is let in
            mended(own, name)
            await found(replicas)
            assert sum(await offered(replicas, 10)) == 20

    run(test())
    assert any("lost" in record.message for record in caplog.records)
    assert "n" * 8 not in str([record.__dict__ for record in caplog.records])


def test_scripts_that_the_server_forgot_are_told_again(own):
    async def test() -> None:
        own.start()
        replica = Replica(own.url, QUOTA, **SHORT)
        await settled_store(replica)
        own.client.script_flush()
        assert await replica.sharing.exchange()
        assert replica.sharing.failures == 0
        await replica.sharing.close()

    run(test())


@asynccontextmanager
async def slow(port: int, delay_s: float) -> AsyncIterator[int]:
    """A way to the server that takes so long."""
    writers: list[asyncio.StreamWriter] = []

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while told := await reader.read(65_536):
                await asyncio.sleep(delay_s)
                writer.write(told)
                await writer.drain()
        except ConnectionError:
            pass
        writer.close()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        writers.extend((writer, far_writer))
        await asyncio.gather(pass_on(reader, far_writer), pass_on(far_reader, writer))

    listening = await asyncio.start_server(meet, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        for writer in writers:
            writer.close()
        await asyncio.sleep(2 * delay_s)


@pytest.mark.parametrize("mode", ["leased", "exact"])
def test_a_slow_store_delays_a_request_by_its_deadline_at_most(own, mode):
    async def test() -> None:
        own.start()
        async with slow(own.port, 0.06) as port:
            told = SHORT | {"lease_s": 5.0, "deadline_ms": 5.0}
            replicas = [Replica(f"redis://127.0.0.1:{port}/0", QUOTA, mode, **told) for _ in range(2)]
            await settled_store(*replicas)
            async with running(*replicas):
                await within_its_time(replicas)
                assert not any(replica.sharing.lost for replica in replicas)  # slow is not lost
                late = sum(replica.sharing.late for replica in replicas)
                waited = sum(replica.sharing.waited for replica in replicas)
                assert (late, waited) == (0, 0) if mode == "leased" else 0 < late <= waited

    run(test())


def test_an_answer_that_is_not_our_scripts_is_a_failed_exchange(own):
    async def test() -> None:
        own.start()
        replica = Replica(own.url, Rules(), **SHORT)
        replica.sharing._store._script = replica.sharing._store._redis.register_script("return {1, 'x'}")
        assert not await replica.sharing.exchange()
        assert replica.sharing.failures == 1
        await replica.sharing.close()

    run(test())
