"""Retry advice in a simulated overload: is it the client's turn, and is there room when it comes?"""

from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

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


class Told(NamedTuple):
    back_s: float
    in_line: bool
    let_in_s: float


def obeying(requests: list[Arrival], seed: int, *, whole_seconds: bool) -> dict[int, Told]:
    """What each that was refused was told first, and when it got in; clients obey, 20 times at most."""
    rules = Rules(capacity_tokens=200_000, hard_reject_above=1.0, hard_reject_cut=0.0)
    controller, told = Controller(rules, random=Random(seed)), {}
    returns = controller._gate.lanes.by_name["standard"].returns
    events = [(at_s, number, "", 0) for number, (at_s, _, _) in enumerate(requests)]
    while events:
        now_s, number, reservation_id, tries = heappop(events)
        if reservation_id:
            controller.settle(reservation_id, 1, now_s)
            continue
        decision = controller.admit(RequestFacts(requests[number][1] - 1, max_tokens=1), now_s)
        if decision.reservation_id is not None:
            heappush(events, (now_s + requests[number][2], number, decision.reservation_id, 0))
            if number in told:
                told[number] = told[number]._replace(let_in_s=now_s)
        elif tries < 20:
            delay_s = decision.retry_after_s if whole_seconds else (decision.retry_after_ms or 0) / 1e3
            assert delay_s is not None
            told.setdefault(number, Told(now_s + delay_s, returns.in_line, np.inf))
            heappush(events, (now_s + delay_s, number, "", tries + 1))
    return told


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("overload", "off_s"), [(1.1, 1.0), (1.3, 1.5)])
def test_advice_is_about_the_clients_turn_and_seldom_too_early(seed, overload, off_s):
    """Against a first-come-first-served line with the same arrivals that is never longer than 30 s."""
    requests = arrivals(Random(seed), overload)
    turns_s = in_line(requests)
    told = obeying(requests, seed, whole_seconds=False)
    errors_s = np.array([first.back_s - turns_s[number] for number, first in told.items()])

    assert len(errors_s) > 100
    assert np.median(np.abs(errors_s)) <= off_s
    assert np.mean(errors_s < -1.0) <= 0.1


@pytest.mark.parametrize("overload", [1.1, 1.3, 2.0, 6.0])
def test_who_comes_back_when_told_finds_room(overload):
    """By Retry-After, in whole seconds; of those given a turn, not told that the line is too long."""
    told = obeying(arrivals(Random(1), overload), 1, whole_seconds=True).values()
    late_s = np.array([first.let_in_s - first.back_s for first in told if first.in_line])

    assert len(late_s) > 500
    assert np.median(late_s) == 0.0
    assert np.mean(late_s > 1.0) <= 0.11


def test_clients_that_never_come_back_keep_nobody_out():
    rules = Rules(capacity_tokens=200_000, hard_reject_above=1.0, hard_reject_cut=0.0)
    controller, ends, held_tokens = Controller(rules, random=Random(1)), [], []
    for at_s, tokens, service_s in arrivals(Random(1), overload=2.0):
        while ends and ends[0][0] <= at_s:
            controller.settle(heappop(ends)[1], 1, at_s)
        decision = controller.admit(RequestFacts(tokens - 1, max_tokens=1), at_s)
        if decision.reservation_id is not None:
            heappush(ends, (at_s + service_s, decision.reservation_id))
        if 80 < at_s < 120:
            held_tokens.append(controller.snapshot(at_s).held_tokens)

    assert np.mean(held_tokens) > 0.97 * ROOM_TOKENS
