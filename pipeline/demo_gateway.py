"""The gateway demo: a burst that an alarm foresaw, played in real time to two gates before two engines."""

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
from rich.console import Console

from data.errors import InputError
from data.schema import LANES
from models.forecaster import Settings as ForecasterSettings
from pipeline.gateway_demo.live import Outcome, perform
from pipeline.gateway_demo.rehearsal import (
    RULES_BUNDLE,
    Rehearsal,
    hand_over,
    recall,
    rehearse,
    without_forecast,
    workload,
)
from pipeline.gateway_demo.serve import TraceClock
from pipeline.gateway_demo.stack import GUARD_FILE, find_envoy, key_of, read_example, running, wait_for
from pipeline.gateway_demo.tables import gates_table, lanes_table, sparklines, strain, verdict
from pipeline.gateway_demo.window import ROOM, Window, choose, kv_blocks
from pipeline.play.shots import Shot, shots
from pipeline.progress import steps
from pipeline.replay import US, events
from serving.clock import SystemClock
from serving.controller.engine_model import H100
from serving.controller.rules import Rules

RULES, FORECAST = "rules", "forecast"
"""Names of the two stacks: what decides in them."""


@dataclass(frozen=True, slots=True)
class Demo:
    """How the demo runs.

    Attributes:
        seconds: length of the play.
        history_s: traffic told to both stacks beforehand, at most: features look back on all of it.
        lead_s: time that they have to take it in; the history's end is told as it happens.
        days: length of the synthetic workload; one at this rate has too few bursts for skill to show.
        requests_per_s: its mean rate: low, as two engines and two gates share one machine with their clients.
        seed: of the workload.
        reuse: take workload and bundle from the run before.
        training: settings of the forecaster.

    """

    seconds: int = 300
    history_s: int = 2 * 86_400
    lead_s: int = 150
    days: float = 2.0
    requests_per_s: float = 4.0
    seed: int = 0
    reuse: bool = False
    training: ForecasterSettings = field(default_factory=ForecasterSettings)

    def __post_init__(self) -> None:
        if self.seconds < 10:
            raise InputError(f"--seconds must be 10 or more; got {self.seconds}.")
        if self.history_s < 3600:
            raise InputError(
                f"History must be an hour or more, for features to be known; got {self.history_s} s."
            )


def demo_gateway(demo: Demo, out: Path, console: Console) -> list[Outcome]:
    """Run it all; every file goes under ``out``, and no process is left.

    Raises:
        InputError: when there is no Envoy, or a stack does not come up in time.

    """

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False)

    find_envoy()
    read_example()
    out.mkdir(parents=True, exist_ok=True)
    say("\n[bold]1  Rehearsal:[/] trained on the past of a synthetic workload, guarded over the rest")
    with steps(console) as progress:
        if demo.reuse:
            played = recall(out)
        else:
            progress("make the workload", 0.0)
            requests = workload(demo.days, demo.requests_per_s, demo.seed)
            played = rehearse(requests, out, demo.training, progress)
    window = choose(played.ticks.filter("held_out"), demo.seconds)
    for sentence in window.story():
        say(f"   {sentence}")
    calls = planned(played, window)
    blocks = kv_blocks(calls)
    say("\n[bold]2  Stacks:[/] Envoy, Tidegate and a simulated engine, for rules alone and with forecast")
    say(
        f"   Engine: {H100.name}, but {blocks} KV blocks ({blocks * H100.block_tokens:,} tokens): {ROOM:.0%} "
        f"of what the play's {len(calls)} calls would hold at their peak without a bound. Gates: the default "
        "rules, with that capacity."
    )
    first_us = int(played.requests["arrived_at"].to_physical()[0])
    start_us = first_us + window.start_s * US
    # Forecasts know the hour and the day: the clocks of the play read the workload's time from here on.
    clock = TraceClock(start_us - demo.lead_s * US - SystemClock().wall_us())
    with ExitStack() as stacks, steps(console) as progress:
        progress("start both stacks", 0.0)
        for name in (RULES, FORECAST):
            (out / name / GUARD_FILE).unlink(missing_ok=True)  # of a run before
        state = out / FORECAST / GUARD_FILE
        hand_over(played, window.start_s - demo.lead_s, first_us // US, state)
        bundles = {RULES: without_forecast(played.bundle, out / RULES_BUNDLE), FORECAST: played.bundle}
        tenants = sorted(played.requests["tenant"].unique())
        both = [
            stacks.enter_context(
                running(
                    name,
                    out / name,
                    bundle,
                    kv_blocks=blocks,
                    tenants=tenants,
                    ahead_us=clock.ahead_us,
                )
            )
            for name, bundle in bundles.items()
        ]
        for stack in both:
            wait_for(stack)
        told = events(past(played.requests, first_us, window.start_s, demo.history_s))
        outcomes = asyncio.run(perform(both, told, calls, start_us, clock, progress))
    report(outcomes, window, out, console)
    return outcomes


def planned(played: Rehearsal, window: Window) -> list[Shot]:
    """The calls of the window, each with its tenant's API key."""
    headers = {"authorization": f"Bearer {key_of('{tenant}')}"}
    return shots(played.requests, start_s=window.start_s, span_s=window.seconds, headers=headers)


def past(requests: pl.DataFrame, first_us: int, start_s: int, history_s: int) -> pl.DataFrame:
    """Requests of the time before the window."""
    since_s = (pl.col("arrived_at").to_physical() - first_us) / US
    return requests.filter((since_s >= start_s - history_s) & (since_s < start_s))


def report(outcomes: list[Outcome], window: Window, out: Path, console: Console) -> None:
    """Print what both stacks did, and keep a row a call of each."""
    rules = Rules()
    targets_s = {lane: rules.lane(lane).ttft_target_ms / 1e3 for lane in LANES}
    console.print("\n[bold]3  The play[/]", highlight=False)
    for outcome in outcomes:
        outcome.calls.write_parquet(out / outcome.name / "calls.parquet")
        console.print(f"   {outcome.name}, at its start: {outcome.state}", soft_wrap=True, highlight=False)
    console.print(lanes_table(outcomes, targets_s))
    console.print(gates_table(outcomes))
    for line in sparklines(outcomes, window.seconds, window.at_s - window.start_s):
        console.print(line, soft_wrap=True, highlight=False)
    console.print(f"\n{verdict(outcomes, targets_s)}", soft_wrap=True, highlight=False)
    if sentence := strain(outcomes):
        console.print(f"[yellow]{sentence}[/]", soft_wrap=True, highlight=False)
    console.print(f"Both stacks are stopped. Logs and calls: {out}", soft_wrap=True, highlight=False)
