"""Writers killed at random points: nothing acknowledged is lost, nothing is half there, the lake is sound."""

import os
import random
import signal
import subprocess
import sys
import time
import traceback
from datetime import UTC, datetime, timedelta

import polars as pl

from data.lake import Lake
from data.lake.check import check
from data.lake.compaction import compact

START = datetime(2024, 3, 1, tzinfo=UTC)
KILLS = {"sqlite": 50, "postgres": 12}
AT_ONCE = 4


def batch(writer: str, number: int) -> pl.DataFrame:
    """Rows of one commit: few stay in the catalog, many become a Parquet file."""
    size = 3 if number % 2 else 40
    return pl.DataFrame(
        {
            "source": [writer] * size,
            "request_id": [f"{number}-{n}" for n in range(size)],
            "arrived_at": [START + timedelta(seconds=number)] * size,
            "prompt_tokens": [number] * size,
        }
    )


def tell(*words: object) -> None:
    """A line in one piece, however many writers share the pipe and whenever they die."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def write_until_killed(location: str, writer: str) -> None:
    tell(writer, os.getpid())
    with Lake(location) as lake:
        for number in range(1_000_000):
            if number % 3:
                lake.append("requests", batch(writer, number))
            else:  # as ingest does
                full = lake.query("FROM lake.requests LIMIT 0")
                paths = lake.stage(
                    "requests", pl.concat([full, batch(writer, number)], how="diagonal_relaxed")
                )
                lake.transact(lambda paths=paths: lake.add_files("requests", paths))  # type: ignore[misc]
            tell(writer, "wrote")


def acknowledged(location: str, kills: int) -> dict[str, int]:
    """Commits that each writer acknowledged before it was killed."""
    rng = random.Random(7)
    told: dict[str, int] = {}
    pids: dict[str, int] = {}
    writers: list[subprocess.Popen[bytes]] = []
    heard, pipe = os.pipe()

    def start() -> None:
        # A process of its own for each: a fork of one that has threads may start with their locks held.
        name = f"w{len(told)}"
        told[name] = 0
        writers.append(subprocess.Popen([sys.executable, __file__, location, name], stdout=pipe))

    for _ in range(AT_ONCE):  # most die while others commit
        start()
    with open(heard) as lines:
        for line in lines:
            name, what = line.split()
            assert what != "failed"
            if what == "wrote":
                told[name] += 1
            else:
                pids[name] = int(what)
            if name in pids and rng.random() < 0.25:
                time.sleep(rng.uniform(0, 0.03))
                os.kill(pids.pop(name), signal.SIGKILL)
                if len(told) < kills:
                    start()
                elif pipe >= 0:  # the last ones hold the pipe open for as long as they live
                    os.close(pipe)
                    pipe = -1
    for writer in writers:
        writer.wait()
    return told


def test_kill_9_loses_nothing_acknowledged_and_shows_no_half_batch(location: str) -> None:
    kills = KILLS["postgres" if "://" in location else "sqlite"]
    with Lake(location):
        pass
    told = acknowledged(location, kills)
    assert len(told) == kills
    with Lake(location) as lake:
        seen = lake.requests().group_by("source", pl.col("prompt_tokens").alias("batch")).len()
        sizes = pl.when(pl.col("batch") % 2 == 1).then(3).otherwise(40)
        assert seen.filter(pl.col("len") != sizes).is_empty()  # no half batch
        stored = seen.group_by("source").agg(pl.len(), last=pl.col("batch").max())
        for source, count, last in stored.rows():
            assert count == last + 1  # none left out
            assert told[source] <= count <= told[source] + 1  # the last may be killed before it could tell
        assert {*stored["source"]} >= {name for name, count in told.items() if count}
        assert sum(told.values()) >= kills
        assert [finding.sentence for finding in check(lake) if finding.problem] == []
        before = lake.requests()
        compact(lake, history=timedelta(0), grace=timedelta(0), now=datetime.now(UTC) + timedelta(seconds=5))
        assert lake.requests().equals(before)
        assert check(lake) == []  # what cut-off writes left is gone


if __name__ == "__main__":
    try:
        write_until_killed(*sys.argv[1:])
    except BaseException:
        traceback.print_exc()
        tell(sys.argv[2], "failed")
        raise
