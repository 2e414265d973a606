"""Eviction against textbook caches and the offline optimum, as share of prompt blocks found cached.

    make bench-eviction [TRACE=path]

A request hits the longest cached prefix of its block hashes, then all its blocks are used; the last block is
partly filled where the prompt says so. Every contender sees the same requests in one run. Ours runs each
request to its end before the next one arrives and holds its blocks meanwhile; it learns from the requests
before, in this run alone; `untold` is ours without knowing which blocks are partly filled. The optimum knows
the future; `gap` is how much ours closes of that between LRU and the optimum.

Without TRACE: the Mooncake conversation trace (TIDEGATE_TRACES says where public traces are), and an hour
of synthetic sessions, which share their tenant's system prompt. With it: any trace with block hashes.
"""

import argparse
import os
import time
from pathlib import Path
from typing import NamedTuple

import polars as pl
from harness import ROOT, Check, report
from reference_caches import ARC, LFU, LRU, S3FIFO, hits, lru_tails_first_hits, optimal_hits
from rich.console import Console
from rich.table import Table

from data.errors import InputError
from data.readers import load_trace
from data.workload.generate import generate
from data.workload.settings import Settings
from serving.controller.eviction.policy import EvictionPolicy
from serving.controller.eviction.settings import EvictionRules

TRACES = Path(os.environ.get("TIDEGATE_TRACES", ROOT / ".." / "shared" / "traces"))
BLOCKS = (500, 1_000, 2_000, 5_000, 10_000, 20_000, 30_000, 50_000)
GAP_BLOCKS, GAP_TARGET = (1_000, 2_000, 5_000), 0.20
LOSS_TARGET = -0.005
SYSTEM_TOKENS = 512
SYNTHETIC_BLOCK_TOKENS = 256
SYNTHETIC_BLOCKS = (500, 2_000, 5_000, 20_000)


class Request(NamedTuple):
    """One prompt as a cache sees it."""

    at_s: float
    keys: list[int]
    partly_filled: bool


def traced(path: Path) -> tuple[list[Request], int]:
    """Requests of a trace with block hashes, and the tokens of a block."""
    rows = load_trace(path).requests.filter(pl.col("block_hashes").list.len() > 0)
    if rows.is_empty():
        raise InputError(f"{path} must have block hashes (hash_ids) to measure eviction; it has none.")
    at_s = (rows["arrived_at"] - rows["arrived_at"][0]).dt.total_microseconds() / 1e6
    columns = (at_s, rows["block_hashes"], rows["prompt_tokens"], rows["block_tokens"])
    requests = [
        Request(now_s, keys.to_list(), tokens < len(keys) * block_tokens)
        for now_s, keys, tokens, block_tokens in zip(*columns, strict=True)
    ]
    return requests, int(rows["block_tokens"][0])


def synthetic() -> list[Request]:
    """An hour of the project's workload: a session's prompts extend one another."""
    rows = generate(Settings(days=1 / 24, seed=0)).requests
    at_s = (rows["arrived_at"] - rows["arrived_at"][0]).dt.total_microseconds() / 1e6
    shared = SYSTEM_TOKENS // SYNTHETIC_BLOCK_TOKENS
    numbers: dict[object, int] = {}
    requests = []
    for number, (now_s, tenant, session, tokens) in enumerate(
        zip(at_s, rows["tenant"], rows["session"], rows["prompt_tokens"], strict=True)
    ):
        full, rest = divmod(SYSTEM_TOKENS + tokens, SYNTHETIC_BLOCK_TOKENS)
        owner = number if session is None else session
        names: list[object] = [(tenant if block < shared else owner, block) for block in range(full)]
        if rest:
            names.append((number, "partly filled"))  # the next turn fills it, under another hash
        keys = [numbers.setdefault(name, len(numbers)) for name in names]
        requests.append(Request(now_s, keys, rest > 0))
    return requests


def our_hits(requests: list[Request], blocks: int, block_tokens: int, told_partial: bool = True) -> int:
    """The policy in a cache of this size."""
    policy = EvictionPolicy(EvictionRules(block_tokens=block_tokens))
    total = 0
    for number, (now_s, keys, partly_filled) in enumerate(requests):
        name = str(number)
        total += policy.use(name, keys, now_s, partly_filled=told_partial and partly_filled)
        policy.evict(policy.cached_blocks - blocks, now_s)
        policy.free(name)
    return total


def measure(
    title: str, requests: list[Request], block_tokens: int, sizes: tuple[int, ...]
) -> tuple[list[dict[str, float]], float]:
    """Hit shares of every contender at every size, printed as a table, and our µs a block."""
    prompts = [request.keys for request in requests]
    total = sum(map(len, prompts))
    rows, us_per_block = [], []
    for blocks in sizes:
        start = time.perf_counter()
        ours = our_hits(requests, blocks, block_tokens)
        us_per_block.append((time.perf_counter() - start) / total * 1e6)
        counted = {
            "LRU": hits(LRU(blocks), prompts),
            "LRU tail first": lru_tails_first_hits(prompts, blocks),
            "LFU": hits(LFU(blocks), prompts),
            "ARC": hits(ARC(blocks), prompts),
            "S3-FIFO": hits(S3FIFO(blocks), prompts),
            "ours": ours,
            "untold": our_hits(requests, blocks, block_tokens, told_partial=False),
            "optimum": optimal_hits(prompts, blocks),
        }
        rows.append({"blocks": float(blocks)} | {name: count / total for name, count in counted.items()})
    names = [name for name in rows[0] if name != "blocks"]
    print(f"\n{title}: {len(prompts):,} prompts, {total:,} blocks; % of blocks found cached")
    table = Table("blocks", *names, "gap")
    for row in rows:
        shares = (f"{100 * row[name]:.1f}" for name in names)
        table.add_row(f"{row['blocks']:,.0f}", *shares, f"{100 * gap_closed(row):.0f}")
    Console().print(table)
    return rows, sum(us_per_block) / len(us_per_block)


def gap_closed(row: dict[str, float]) -> float:
    """Share of the way from LRU to the optimum; NaN where LRU is optimal."""
    gap = row["optimum"] - row["LRU"]
    return (row["ours"] - row["LRU"]) / gap if gap > 0 else float("nan")


def main(trace: Path | None) -> None:
    """Measure and report."""
    path = trace or TRACES / "mooncake_conversation.jsonl"
    requests, block_tokens = traced(path)
    rows, us_per_block = measure(path.stem, requests, block_tokens, BLOCKS)
    checks = [
        Check(f"gap closed at {row['blocks']:,.0f}", row["ours"], row["LRU"], gap_closed(row), GAP_TARGET)
        for row in rows
        if row["blocks"] in GAP_BLOCKS
    ]
    facts: dict[str, object] = {"trace": path.name, "hit_share": rows, "us_per_block": us_per_block}
    if trace is None:
        sessions, _ = measure("synthetic sessions", synthetic(), SYNTHETIC_BLOCK_TOKENS, SYNTHETIC_BLOCKS)
        facts["synthetic_hit_share"] = sessions
        rows = rows + sessions
    worst = min(rows, key=lambda row: row["ours"] - row["LRU"])
    loss = worst["ours"] - worst["LRU"]
    checks.append(Check("worst difference to LRU", worst["ours"], worst["LRU"], loss, LOSS_TARGET))
    print(f"{us_per_block:.1f} µs a block of prompt, use and eviction together")
    print(f"Written to {report('eviction', checks, facts, ('polars',))}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path, nargs="?", help="a trace with block hashes")
    try:
        main(parser.parse_args().trace)
    except InputError as error:
        parser.error(str(error))
