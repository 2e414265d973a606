"""The comparison: a test span played to each arm on the same fleet, and what users got of it."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import polars as pl

from data.schema import LANES
from features.ticks import TICK_S
from pipeline.simulate.arms import arms
from pipeline.simulate.calls import calls_of
from pipeline.simulate.fleet import Fleet, sized
from pipeline.simulate.outcomes import by_lane, differences, outcomes
from pipeline.simulate.run import Play
from serving.controller.rules import Rules

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """How the fleet is sized and what clients and gate do.

    Attributes:
        load: offered work over what the fleet can do, on average; without effect where ``replicas`` is given.
        kv_room: KV room of a replica over what the calls would hold at their peak; None goes by the profile.
        replicas: number of them; None as ``load`` asks.
        waits: refused requests wait at the gate first, as long as their lane's target.
        seed: of everything random.

    """

    load: float = 0.6
    kv_room: float | None = 0.6
    replicas: int | None = None
    waits: bool = False
    seed: int = 0


def study(
    requests: pl.DataFrame,
    ticks: pl.DataFrame,
    rules: Rules,
    settings: Settings,
    progress: Progress = lambda what, share: None,
) -> dict[str, Any]:
    """Play the span of the ticks to every arm, and compare.

    Args:
        requests: of the whole trace, sorted by arrival: seconds count from its first.
        ticks: of a backtest's test span: t_s, alarm, tightening, eligible, next_onset_s.
        rules: of the gate. Their engine is that of one replica; their capacity, where they leave it to the
            engine, becomes the fleet's.
        settings: of the fleet and the clients.
        progress: told what is being done and how far it is, 0 to 1.

    Returns:
        What was played and, for each arm and lane, what `outcomes.by_lane` tells and how the arm differs from
        rules alone; in plain Python types.

    Raises:
        InputError: when the fleet can't be sized.

    """
    start_s, end_s = int(ticks["t_s"][0]), int(ticks["t_s"][-1]) + TICK_S
    progress("size the fleet", 0.0)
    played, unknown = calls_of(requests, start_s, end_s)
    fleet = sized(
        played, rules.engine, replicas=settings.replicas, load=settings.load, kv_room=settings.kv_room
    )
    rules = adapted(rules, fleet)
    targets_s = {lane: rules.lane(lane).ttft_target_ms / 1e3 for lane in LANES}
    rows, alone = [], None
    for arm in arms(ticks):
        calls = calls_of(requests, start_s, end_s).calls
        play = Play(calls, fleet, rules, arm.tightening, waits=settings.waits, seed=settings.seed)
        play.run(partial(progress, f"play to {arm.title}"))
        seen = outcomes(calls)
        alone = seen if alone is None else alone
        lanes = by_lane(seen, targets_s, ticks)
        apart = differences(seen, alone, targets_s, seed=settings.seed)
        rows.append(
            {
                "name": arm.name,
                "title": arm.title,
                "lanes": [lane | {"difference": asdict(apart[lane["lane"]])} for lane in lanes],
            }
        )
    return {
        "span": {"start_s": start_s, "end_s": end_s},
        "calls": len(played),
        "unknown_output": unknown,
        "fleet": {
            "engine": fleet.profile.name,
            "replicas": fleet.replicas,
            "load": fleet.load,
            "kv_tokens": fleet.capacity_tokens,
            "capacity_tokens": rules.capacity,
        },
        "targets_s": targets_s,
        "settings": asdict(settings),
        "arms": rows,
    }


def adapted(rules: Rules, fleet: Fleet) -> Rules:
    """The rules on this fleet; where it is slower than the profile, lanes' targets are as much longer."""
    stretch = max(1.0, fleet.slowed)
    premium, standard, batch = (
        replace(lane, ttft_target_ms=lane.ttft_target_ms * stretch)
        for lane in (rules.premium, rules.standard, rules.batch)
    )
    capacity = fleet.capacity_tokens if rules.capacity_tokens is None else rules.capacity_tokens
    return replace(
        rules,
        engine=fleet.profile,
        capacity_tokens=capacity,
        premium=premium,
        standard=standard,
        batch=batch,
    )
