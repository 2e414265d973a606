"""The price of a decision: admit and settle, from 10 to 10,000 tenants, beside AdmitPerf.

    python tests/bench/bench_decide.py [--pairs N]

A pair is one admission and one settlement, with 256 other requests in flight; each is timed on its own.
AdmitPerf's pair is one call of its policy of two signals and one reported outcome, with its log switched
off. The two do different work: AdmitPerf reads five signals and makes a log record of every call, and keeps
no reservations, tenants or lanes. Its rule alone, without the record, is written down too: it compares two
numbers, and has no target. All contenders take turns in one process. With quotas, every tenant has one of
the hour and one of the day. A refusal, with its retry advice, is timed at an engine that is full and a gate
half tightened.
"""

import argparse
import gc
import time
from collections import deque
from collections.abc import Callable
from random import Random

import numpy as np
from admitperf.policies import DualGate
from harness import Check, report

from data.schema import LANES
from serving.controller.decide import Controller
from serving.controller.decision import RequestFacts
from serving.controller.quota import Quota
from serving.controller.rules import Rules
from serving.controller.tenants import TenantLimits

TENANTS = (10, 100, 1_000, 10_000)
IN_FLIGHT = 256
QUOTAS = TenantLimits(hourly=Quota(10**12), daily=Quota(10**13, burst_tokens=10**12))
P50_TARGET_US, P99_TARGET_US = 10.0, 50.0
PEER_TARGET, FLAT_TARGET = 1.0, 1.5
ROUNDS = 10

Pairs = Callable[[int], list[int]]


def requests(tenants: int, count: int, random: Random) -> list[RequestFacts]:
    """Random prompts of random tenants in all lanes."""
    return [
        RequestFacts(
            prompt_tokens=random.randrange(50, 4_000),
            tenant=f"tenant-{random.randrange(tenants)}",
            model="llama2-70b",
            lane=random.choice(LANES),
            max_tokens=random.choice([None, 256, 4_096]),
        )
        for _ in range(count)
    ]


def admitting(tenants: int, limits: TenantLimits | None = None) -> Pairs:
    """Pairs against one controller that lives on from round to round; every tenant has ``limits``."""
    random = Random(tenants)
    controller = Controller(Rules(default_tenant=limits or TenantLimits()), random=random)
    facts = requests(tenants, 20_000, random)
    open_ids: deque[str] = deque()
    now_s = 0.0

    def run(pairs: int) -> list[int]:
        nonlocal now_s
        taken_ns = []
        controller.observe_engine(now_s, queue_depth=3, batch_tokens=200_000, kv_miss_rate=0.6)
        for number in range(pairs):
            request = facts[number % len(facts)]
            now_s += 1e-4
            settled_id = open_ids.popleft() if len(open_ids) >= IN_FLIGHT else ""
            start = time.perf_counter_ns()
            decision = controller.admit(request, now_s)
            controller.settle(settled_id, 180, now_s)
            taken_ns.append(time.perf_counter_ns() - start)
            if decision.reservation_id is not None:
                open_ids.append(decision.reservation_id)
        return taken_ns

    return run


def refusing() -> Pairs:
    """Refusals by a controller whose engine is full."""
    random = Random(0)
    controller = Controller(Rules(capacity_tokens=400_000), random=random)
    facts = requests(1_000, 20_000, random)
    while controller.admit(RequestFacts(500, lane="premium", max_tokens=500), 0.0).admitted:
        pass

    def run(pairs: int) -> list[int]:
        taken_ns = []
        controller.set_tightening(0.5, 5.0)
        for number in range(pairs):
            request = facts[number % len(facts)]
            start = time.perf_counter_ns()
            decision = controller.admit(request, 10.0)
            taken_ns.append(time.perf_counter_ns() - start)
            if decision.admitted:
                raise RuntimeError("the engine was meant to be full")
        return taken_ns

    return run


METRICS = {
    "vllm:kv_cache_usage_perc": 0.5,
    "vllm:num_requests_waiting": 3.0,
    "vllm:num_requests_running": 64.0,
    "vllm:prefix_cache_hits_total": 4e6,
    "vllm:prefix_cache_queries_total": 1e7,
}


def peer() -> Pairs:
    """Pairs of AdmitPerf."""
    policy = DualGate(threshold=0.9, min_hit_rate=0.3)

    def run(pairs: int) -> list[int]:
        taken_ns = []
        for number in range(pairs):
            request_id = f"r{number}"
            start = time.perf_counter_ns()
            policy(METRICS, request_id=request_id)
            policy.outcome(request_id, ttft_ms=180, ok=True)
            taken_ns.append(time.perf_counter_ns() - start)
        return taken_ns

    return run


def peer_rule() -> Pairs:
    """AdmitPerf's rule without its record."""
    policy = DualGate(threshold=0.9, min_hit_rate=0.3)

    def run(pairs: int) -> list[int]:
        taken_ns = []
        for _ in range(pairs):
            start = time.perf_counter_ns()
            policy.decide(METRICS)
            taken_ns.append(time.perf_counter_ns() - start)
        return taken_ns

    return run


def main(pairs: int) -> None:
    """Run all contenders in turns and report."""
    contenders: dict[str, Pairs] = {f"{tenants:,} tenants": admitting(tenants) for tenants in TENANTS}
    contenders["1,000 tenants, quotas"] = admitting(1_000, QUOTAS)
    contenders |= {"refusal": refusing(), "AdmitPerf": peer(), "AdmitPerf, rule alone": peer_rule()}
    taken_ns: dict[str, list[int]] = {name: [] for name in contenders}
    for run in contenders.values():
        run(2_000)
    gc.collect()
    gc.freeze()  # what others imported is not scanned; garbage of the pairs still is
    for _ in range(ROUNDS):
        for name, run in contenders.items():
            taken_ns[name] += run(pairs // ROUNDS)

    us = {name: np.percentile(taken, [50, 99, 99.9]) / 1e3 for name, taken in taken_ns.items()}
    percentiles = {
        name: dict(zip(("p50_us", "p99_us", "p99.9_us"), row.tolist(), strict=True))
        for name, row in us.items()
    }
    peer_us = percentiles["AdmitPerf"]["p50_us"]
    checks = []
    for name in (*(f"{tenants:,} tenants" for tenants in TENANTS), "1,000 tenants, quotas", "refusal"):
        p50_us, p99_us = percentiles[name]["p50_us"], percentiles[name]["p99_us"]
        checks += [
            Check(f"{name}, p50 µs", p50_us, None, p50_us, P50_TARGET_US, at_least=False),
            Check(f"{name}, p99 µs", p99_us, None, p99_us, P99_TARGET_US, at_least=False),
        ]
    # It knows no tenants and no quotas, so it is compared where they weigh least; the file has all figures.
    name = f"{TENANTS[0]:,} tenants"
    p50_us = percentiles[name]["p50_us"]
    checks.append(
        Check(f"{name} / AdmitPerf, p50", p50_us, peer_us, p50_us / peer_us, PEER_TARGET, at_least=False)
    )
    few, many = (percentiles[f"{tenants:,} tenants"]["p50_us"] for tenants in (TENANTS[0], TENANTS[-1]))
    checks.append(Check("10,000 tenants / 10, p50", many, few, many / few, FLAT_TARGET, at_least=False))
    facts = {"pairs": pairs, "in_flight": IN_FLIGHT, "percentiles": percentiles}
    path = report("decide", checks, facts, ("admitperf", "numpy"))
    print(f"Written to {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--pairs", type=int, default=50_000, help="pairs a contender makes, all rounds together"
    )
    main(parser.parse_args().pairs)
