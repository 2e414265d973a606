"""What waiting costs: memory of 28,000 waiting requests, and the time to let one wait and give one its turn.

python tests/bench/bench_waiting.py

A turn is a settlement and an advance. Its time is the CPU's: what others on the machine do is not ours.
"""

import time
import tracemalloc
from random import Random

import numpy as np
from harness import Check, report

from data.schema import LANES
from serving.controller.decide import Controller
from serving.controller.decision import RequestFacts
from serving.controller.rules import Rules
from serving.controller.waiting import Ticket

WAITING, TENANTS, TURNS = 28_000, 10_000, 3_000
MEMORY_TARGET_MB = 100.0
TURN_P50_TARGET_US, TURN_P99_TARGET_US = 250.0, 1_000.0


def main() -> None:
    """Fill the queue, then settle one by one, and report."""
    random = Random(1)
    rules = Rules(
        capacity_tokens=4_000_000,
        max_waiting=WAITING,
        hard_reject_above=1.0,
        hard_reject_cut=0.0,
        max_wait_ms=1e6,
    )
    controller = Controller(rules, random=random)
    running = []
    while (decision := controller.admit(RequestFacts(999, lane="premium", max_tokens=1), 0.0)).admitted:
        running.append(decision.reservation_id or "")
    tracemalloc.start()
    wait_ns = []
    for number in range(WAITING):
        request = RequestFacts(
            random.randrange(50, 4_000), f"tenant-{number % TENANTS}", "llama2-70b", random.choice(LANES)
        )
        start = time.perf_counter_ns()
        answer = controller.enqueue(request, 0.0, max_wait_ms=1e6)
        wait_ns.append(time.perf_counter_ns() - start)
        if not isinstance(answer, Ticket):
            raise RuntimeError("every request was meant to wait")
    memory_mb = tracemalloc.get_traced_memory()[0] / 1e6
    tracemalloc.stop()
    turn_ns = []
    for number in range(TURNS):
        start = time.thread_time_ns()
        controller.settle(running[number], 1, 0.001 * number)
        controller.advance(0.001 * number)
        turn_ns.append(time.thread_time_ns() - start)
    turn_us = np.percentile(turn_ns, [50, 99]) / 1e3
    checks = [Check("28,000 waiting, MB", memory_mb, None, memory_mb, MEMORY_TARGET_MB, at_least=False)]
    for name, us, target_us in zip(
        ("p50", "p99"), turn_us.tolist(), (TURN_P50_TARGET_US, TURN_P99_TARGET_US), strict=True
    ):
        checks.append(Check(f"turn, {name} µs", us, None, us, target_us, at_least=False))
    facts = {"waiting": WAITING, "tenants": TENANTS, "turn_us": turn_us.tolist()}
    facts["wait_us_traced"] = (np.percentile(wait_ns, [50, 99]) / 1e3).tolist()
    path = report("waiting", checks, facts, ("numpy",))
    print(f"Written to {path}")


if __name__ == "__main__":
    main()
