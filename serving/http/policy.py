"""The policy: what the gate would answer now, for gateways that enforce it by themselves and ask nobody.

A gateway that can't afford a call for each request reads the policy, or keeps its stream open, and lets in
what fits its lane's room; it goes on as if there were no gate once the policy is older than ``valid_s``.
Rooms are of one moment and not reserved, and the gate holds nothing of what was let in by them: a gateway
takes off what it has let in and not seen end, and several share a room between them. What they let in is told
to POST /v1/telemetry, and counts as offered load. Tenants' quotas stay here: they need a request.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, get_args

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from serving.controller.degradation import CLAMP
from serving.controller.gate import Gate
from serving.controller.lanes import REFERENCE_OUTPUT_TOKENS, REFERENCE_PROMPT_TOKENS, Lane
from serving.controller.retry_after import wait_s
from serving.http.messages import Lane as LaneName
from serving.service import Service

VALID_S = 15.0
"""As long as an alarm holds without being renewed: a gateway that hears nothing must not stay tightened."""
EVERY_S = 1.0
"""Between two looks of a stream; what has not changed is sent every `STILL_S`, so that it stays valid."""
STILL_S = 5.0
FRESH = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""A proxy that stores answers, or holds a stream back until a buffer is full, tells an old policy."""

Share = Annotated[float, Field(ge=0.0, le=1.0)]


class LanePolicy(BaseModel):
    """What one lane lets in, and how."""

    model_config = ConfigDict(frozen=True)

    room_tokens: int = Field(
        ge=0,
        description="Prompt and expected output of the largest that gets in; take off what you let in by "
        "the policy and have not seen end.",
    )
    brief_room_tokens: int = Field(
        ge=0, description="The same for a request that should have ended within spares_s: it isn't tightened."
    )
    retry_after_s: float = Field(
        ge=0, description="Until a usual request gets in, 0 where it does now; jitter it before you tell it."
    )
    degradation: int = Field(
        ge=0, le=3, description="Step of the ladder; from 1 on answers are clamped, 0 is none."
    )
    clamp_output_tokens: int | None = Field(description="Longest answer while answers are clamped.")


class Policy(BaseModel):
    """What the gate would answer now."""

    model_config = ConfigDict(frozen=True)

    valid_s: float = Field(default=VALID_S, description="How long it may be gone by after it came.")
    tightening: Share = Field(description="Level that the forecast applies to the rules; 0 is rules alone.")
    spares_s: float = Field(description="A request that should have ended within it has the brief room.")
    backpressure: Share = Field(description="B, over its known terms.")
    lanes: dict[LaneName, LanePolicy]


def policy(gate: Gate, now_s: float) -> Policy:
    """Read the policy off a gate at a time that it has reached."""
    tau, pressure = gate.tightening.level(now_s), gate.pressure(now_s)
    return Policy(
        tightening=tau,
        spares_s=gate.rules.tightening_spares_s,
        backpressure=pressure,
        lanes={
            name: _lane(gate, gate.lanes.by_name[name], tau, pressure, now_s) for name in get_args(LaneName)
        },
    )


def _lane(gate: Gate, lane: Lane, tau: float, pressure: float, now_s: float) -> LanePolicy:
    step = 0
    if gate.overload.degraded:
        step = gate.overload.step(now_s, tau, protected=lane.rule.protected)
    room, brief_room = (_room_tokens(gate, lane, level, pressure, now_s) for level in (tau, 0.0))
    if step and not lane.rule.protected:
        room, brief_room = (min(it, gate.rules.degradation.most_request_tokens) for it in (room, brief_room))
    if lane.breach.until_s > now_s:
        step = max(step, CLAMP)
    usual = REFERENCE_PROMPT_TOKENS + REFERENCE_OUTPUT_TOKENS
    drain_tokens_per_s = lane.drain.rate(lane.held_tokens, now_s)
    return LanePolicy(
        room_tokens=room,
        brief_room_tokens=brief_room,
        retry_after_s=wait_s(usual - room, drain_tokens_per_s) if room < usual else 0.0,
        degradation=step,
        clamp_output_tokens=gate.rules.degradation.clamp_output_tokens if step >= CLAMP else None,
    )


def _room_tokens(gate: Gate, lane: Lane, tau: float, pressure: float, now_s: float) -> int:
    """Tokens of the largest request that there is room for: by halving, as the rules only get stricter."""
    if gate.waiting.by_lane[lane.name]:
        return 0  # whoever comes now stands behind those who wait
    most = min(max(gate.ledger.capacity_tokens - gate.ledger.held_tokens, 0), lane.most_tokens)
    if lane.rule.protected:
        return most
    if pressure > gate.rules.hard_reject_threshold(tau):
        return 0
    kept = round(lane.claims.kept_tokens(now_s)) if lane.claims.count else 0
    least = 0
    while least < most:
        middle = (least + most + 1) // 2
        if gate.lanes.overflow_tokens(lane, middle + kept, tau, now_s) > 0:
            most = middle - 1
        else:
            least = middle
    return least


def router(service: Service) -> APIRouter:
    """Routes that tell the policy of ``service``."""
    routes = APIRouter()

    def current() -> Policy:
        return service.controller.on_gate(policy, service.clock.monotonic_s())

    async def events() -> AsyncIterator[str]:
        last, still_s = "", 0.0
        while not service.draining:  # a stop waits for no stream
            said = current().model_dump_json()
            if said != last or still_s >= STILL_S:
                yield f"event: policy\ndata: {said}\n\n"
                last, still_s = said, 0.0
            await asyncio.sleep(EVERY_S)
            still_s += EVERY_S

    @routes.get("/v1/policy")
    async def now(response: Response) -> Policy:
        """What the gate would answer now, for gateways that enforce it by themselves."""
        response.headers.update(FRESH)
        return current()

    @routes.get(
        "/v1/policy/stream",
        response_class=StreamingResponse,
        responses={200: {"content": {"text/event-stream": {}}, "description": "Events named policy."}},
    )
    async def stream() -> StreamingResponse:
        """The policy as server-sent events: at once, then whenever it changes, at most once a second."""
        return StreamingResponse(events(), media_type="text/event-stream", headers=FRESH)

    return routes
