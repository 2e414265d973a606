"""Retry advice in a simulated overload, against a first-come-first-served line with the same arrivals."""

from heapq import heappop, heappush
from random import Random

import numpy as np
import pytest

from serving.controller.decide import Controller
from serving.controller.decision import RequestFacts
from serving.controller.rules import Rules

ROOM_TOKENS = 120_000
"""What the standard lane may hold of the capacity below."""
Arrival = tuple[float, int, float]


def arrivals(random: Random, overload: float, until_s: float = 200.0) -> list[Arrival]:
    """Time, tokens and seconds of service; from 60 s on more than the lane can take, for a minute."""
    made, now_s, per_s = [], 0.0, ROOM_TOKENS / 10.0 / 1_000
    while now_s < until_s:
        now_s += random.expovariate(per_s * (overload if 60 < now_s < 120 else 0.6))
        made.append((now_s, random.randrange(500, 1_500), random.uniform(8, 12)))
    return made


def in_line(requests: list[Arrival]) -> list[float]:
    """When each gets in if all stand in one line."""
    running: list[tuple[float, int]] = []
    held, now_s, starts_s = 0, 0.0, []
    for at_s, tokens, service_s in requests:
        now_s = max(now_s, at_s)
        while running and (running[0][0] <= now_s or held + tokens > ROOM_TOKENS):
            end_s, freed = heappop(running)
            now_s, held = max(now_s, end_s), held - freed
        held += tokens
        heappush(running, (now_s + service_s, tokens))
        starts_s.append(now_s)
    return starts_s


def promised(requests: list[Arrival], seed: int) -> dict[int, float]:
    """When each that was refused was first told to come back; clients obey, 20 times at most."""
    rules = Rules(capacity_tokens=200_000, hard_reject_above=1.0, hard_reject_cut=0.0)
    controller, told = Controller(rules, random=Random(seed)), {}
    events = [(at_s, number, "", 0) for number, (at_s, _, _) in enumerate(requests)]
    while events:
        now_s, number, reservation_id, tries = heappop(events)
        if reservation_id:
            controller.settle(reservation_id, 1, now_s)
            continue
        decision = controller.admit(RequestFacts(requests[number][1] - 1, max_tokens=1), now_s)
        if decision.reservation_id is not None:
            heappush(events, (now_s + requests[number][2], number, decision.reservation_id, 0))
        elif tries < 20:
            back_s = now_s + (decision.retry_after_ms or 0) / 1e3
            told.setdefault(number, back_s)
            heappush(events, (back_s, number, "", tries + 1))
    return told


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_advice_is_the_clients_turn_within_a_second_and_seldom_too_early(seed):
    requests = arrivals(Random(seed), overload=1.1)
    turns_s = in_line(requests)
    errors_s = np.array([back_s - turns_s[number] for number, back_s in promised(requests, seed).items()])

    assert len(errors_s) > 100
    assert np.median(np.abs(errors_s)) <= 1.0
    assert np.mean(errors_s < -1.0) <= 0.1
