"""A gate watched through a burst: requests ask for admission before, during and after the alarm."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp
from typing import Any, Literal

import httpx

from features.ticks import TICK_S
from pipeline.replay import US, Player
from serving.controller.rules import Rules

CAPACITY_TOKENS = 10_000
"""A small replica: its own clients must not be a burst beside the traffic that the forecaster watches."""
RULES = Rules(capacity_tokens=CAPACITY_TOKENS, tightening_spares_s=0.0)
"""What is asked here is brief, and would be spared."""
PROMPT_TOKENS, OUTPUT_TOKENS = 200, 50
HELD_REQUESTS = {"premium": 12, "standard": 3, "batch": 18}
"""Running requests that fill the replica to 82.5 %: the rules alone still admit (B up to 0.85, and 87.5 % of
what standard and batch share); tightening of 0.3, the least that an alarm asks for, does not (B to 0.805)."""
RUN_S = 60.0
"""Running requests end after this time and new ones take their place; in an alarm, which seldom stands
longer, they run on, so that the gate is as full in it as before it and the answers differ by the forecast."""
STARTS_A_STEP = 3
ASKED = ("standard", "premium", "batch", "standard")
EACH = 4
"""Requests that are shown of each phase."""
START_S, FIRST_S, PASSED_S, END_S = -240, -150, 30, 420
"""Seconds from the onset: the replica fills up; requests begin to ask; an alarm comes no more; the end."""

Phase = Literal["before", "alarm", "after"]
SPACING_S: dict[Phase, int] = {"before": 15, "alarm": 5, "after": 10}


@dataclass(frozen=True, slots=True)
class Asked:
    """One request to POST /v1/admit, what the gate stood at, and what it answered; None is unknown.

    Attributes:
        phase: before, while or after the forecast tightened the gate.
        to_onset_s: seconds from the onset.
        p_onset: probability of an onset within 60 s, at the last tick.
        threshold: what it must exceed, as a probability.
        alarm: the forecast tightens the gate.
        tightening: level in [0, 1] as the gate stands.
        lane: SLO class asked for.
        reason: why it was refused; None when it was admitted.
        by_forecast: the rules alone would have admitted it.
        retry_after_s: advice with the refusal, whole seconds.

    """

    phase: Phase
    to_onset_s: float
    p_onset: float | None
    threshold: float | None
    alarm: bool
    tightening: float
    lane: str
    reason: str | None
    by_forecast: bool
    retry_after_s: int | None


class Load:
    """Running requests that keep the replica at a steady level; all of them asked the gate."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self._running: deque[tuple[str, str, float]] = deque()  # lane, reservation, start; oldest first

    @property
    def full(self) -> bool:
        """Every place is taken."""
        return len(self._running) == sum(HELD_REQUESTS.values())

    def running(self) -> list[str]:
        """Reservations of what runs now."""
        return [reservation_id for _, reservation_id, _ in self._running]

    def turn_over(self, now_s: float) -> None:
        """End what has run its time and let a few new requests ask for the places that are free."""
        while self._running and now_s - self._running[0][2] >= RUN_S:
            settle(self._client, self._running.popleft()[1])
        lanes = [lane for lane, _, _ in self._running]
        missing = [lane for lane, most in HELD_REQUESTS.items() for _ in range(most - lanes.count(lane))]
        for lane in missing[:STARTS_A_STEP]:
            answer = admit(self._client, lane, "background")
            if answer.status_code == httpx.codes.OK:
                self._running.append((lane, answer.json()["reservation_id"], now_s))


def admit(client: httpx.Client, lane: str, tenant: str) -> httpx.Response:
    """Ask for admission of one request; 200 or 429."""
    body = {
        "prompt_tokens": PROMPT_TOKENS,
        "max_tokens": OUTPUT_TOKENS,
        "lane": lane,
        "tenant": f"demo-{tenant}-{lane}",
    }
    answer = client.post("/v1/admit", json=body)
    return answer if answer.status_code == httpx.codes.TOO_MANY_REQUESTS else answer.raise_for_status()


def settle(client: httpx.Client, reservation_id: str) -> None:
    """Report that a request was answered in full."""
    body = {"reservation_id": reservation_id, "output_tokens": OUTPUT_TOKENS, "outcome": "served"}
    client.post("/v1/settle", json=body).raise_for_status()


def watch(player: Player, onset_us: int) -> list[Asked]:
    """Play the trace through an onset while requests ask for admission; the clock stands before the onset.

    They ask every 15 s until the forecast raises an alarm; then four times while it stands, and four times
    once the gate is open and as full as before. Without an alarm they ask until the onset has passed: all of
    them fall in "before", and the rules alone decided.
    """
    load = Load(player.client)
    asked: list[Asked] = []
    while (to_onset_s := (player.clock.wall_us() - onset_us) / US) < END_S:
        player.step(TICK_S - 1.0)  # the gate moves for a while after a tick
        phase = _phase(player.forecast, asked)
        if phase in ("before", "after"):
            load.turn_over(player.clock.monotonic_s())
        ready = phase == "alarm" or (phase is not None and load.full)
        if phase and ready and to_onset_s >= FIRST_S and _due(asked, phase, to_onset_s):
            lane = ASKED[count(asked, phase) % EACH]
            asked.append(_ask(player, lane, phase, onset_us))
        player.step(1.0)
        unforeseen = to_onset_s > PASSED_S and not count(asked, "alarm")
        if unforeseen or count(asked, "after") == EACH:
            break
    for reservation_id in load.running():
        settle(player.client, reservation_id)
    return asked


def count(asked: Sequence[Asked], phase: Phase) -> int:
    """How many requests asked in a phase."""
    return sum(one.phase == phase for one in asked)


def shown(asked: Sequence[Asked]) -> list[Asked]:
    """What tells the story: the last four before the alarm and all from then on; all where none came."""
    before = [one for one in asked if one.phase == "before"]
    alarmed = [one for one in asked if one.phase != "before"]
    return [*before[-EACH:], *alarmed] if alarmed else before


def _phase(forecast: Mapping[str, Any], asked: Sequence[Asked]) -> Phase | None:
    """The phase that the gate is in; None while it opens again."""
    if forecast["alarm"]:
        return "alarm"
    if forecast["tightening"] > 0.0:
        return None
    return "after" if count(asked, "alarm") else "before"


def _due(asked: Sequence[Asked], phase: Phase, to_onset_s: float) -> bool:
    if phase != "before" and count(asked, phase) >= EACH:
        return False
    return not asked or to_onset_s >= asked[-1].to_onset_s + SPACING_S[phase] - TICK_S


def _ask(player: Player, lane: str, phase: Phase, onset_us: int) -> Asked:
    answer = admit(player.client, lane, "asks")
    if answer.status_code == httpx.codes.OK:
        settle(player.client, answer.json()["reservation_id"])
    # The clock stands still between the two calls: this is the gate as it decided.
    seen, headers = player.client.get("/v1/forecast").raise_for_status().json(), answer.headers
    return Asked(
        phase=phase,
        to_onset_s=(player.clock.wall_us() - onset_us) / US,
        p_onset=seen["p_onset"],
        threshold=None if seen["threshold"] is None else 1.0 / (1.0 + exp(-seen["threshold"])),
        alarm=seen["alarm"],
        tightening=seen["tightening"],
        lane=lane,
        reason=headers.get("x-tidegate-reason"),
        by_forecast=headers.get("x-tidegate-tightened") == "true",
        retry_after_s=int(headers["retry-after"]) if "retry-after" in headers else None,
    )
