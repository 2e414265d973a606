"""The demo: a trace, the lake, a backtest, then the service through a burst that it foresaw."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path

import numpy as np
import polars as pl
from rich import box
from rich.console import Console
from rich.table import Table

from data.ingest import ingest
from data.lake import Lake
from data.readers import Trace, load_trace
from data.workload import Settings as WorkloadSettings
from data.workload import generate, read_truth, write
from features.ticks import TICK_S
from models.bundle import Bundle
from models.guard.guard import Guard
from pipeline import scoring
from pipeline.backtest import BUNDLE_FOLDER, Result, backtest
from pipeline.gate_watch import PROMPT_TOKENS, RULES, START_S, Asked, count, shown, watch
from pipeline.progress import steps
from pipeline.replay import US, PlayedClock, Player, events, serving
from pipeline.report import summary_table
from pipeline.tracking import track
from serving.settings import Settings

HISTORY_S = 12 * 3600
"""History that is posted: schedules of up to a few hours show in it."""
LIVE_S = 2 * 3600
"""Time ticked through before the first onset: calm ticks earn the alarms that the gate may raise."""
TRIES = 6
APART_S = 900
QUIET_S = (-180, -95)
"""Seconds from an onset in which no alarm stood: the gate is seen before, during and after the alarm."""


def demo(trace: Path | None, out: Path, port: int, console: Console) -> None:
    """Run everything from a trace to decisions; all files go under ``out`` and nothing keeps running.

    Args:
        trace: trace file of any known format; None makes a synthetic day.
        out: folder, made where it isn't there.
        port: port of the service, on this machine only; 0 takes a free one.
        console: where it says what it does.

    Raises:
        InputError: when the trace can't be read or is too short, or the port can't be used.

    """
    started_s = time.monotonic()

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False)

    out.mkdir(parents=True, exist_ok=True)
    path = out / "day.parquet" if trace is None else trace
    if trace is None:
        say("\n[bold]1  Traffic:[/] a synthetic day of many tenants, whose bursts have known causes")
        write(generate(WorkloadSettings(days=1.0, seed=0)), path)
    else:
        say("\n[bold]1  Traffic:[/] your trace")
    say(f"   {path}, {path.stat().st_size / 1e6:.1f} MB" if path.is_file() else f"   {path}")

    say(f"\n[bold]2  Telemetry lake[/] in {out / 'lake'}")
    with Lake(out / "lake") as lake:
        done = ingest(path, lake)
    if done.stored:
        say(f"   {done.stored:,} of {done.rows:,} rows stored, {done.quarantined:,} quarantined")
    else:
        say(f"   nothing added: all {done.rows:,} rows are in the lake already")

    say("\n[bold]3  Backtest:[/] train on the past, calibrate, guard the rest")
    folder = out / "backtest"
    with steps(console) as progress:
        progress("read the trace", 0.0)
        loaded = load_trace(path)
        result = backtest(loaded, folder, causes=read_truth(path), progress=progress)
        progress("log the run", 0.0)
        track(result, folder, f"sqlite:///{out / 'mlflow.db'}")
    console.print(summary_table(result.report))
    for sentence in result.report["verdict"]["sentences"]:
        say(f"   {sentence}")

    say("\n[bold]4  Service:[/] the trace played to it over HTTP, on a clock that the demo moves")
    show_decisions(loaded, result, folder / BUNDLE_FOLDER, port, console)

    say(f"\nDone in {time.monotonic() - started_s:.0f} s; the service is stopped, nothing keeps running.")
    say(f"Report: {result.report_path}")
    say(f"Bundle: {folder / BUNDLE_FOLDER}")
    say(
        f"Next:   tidegate backtest YOUR_TRACE --out var/yours   or   "
        f"tidegate serve --bundle {folder / BUNDLE_FOLDER}"
    )


def show_decisions(trace: Trace, result: Result, bundle: Path, port: int, console: Console) -> None:
    """Play the trace up to onsets of the test span until an alarm is raised, and show the answers."""

    def say(text: str) -> None:
        console.print(f"   {text}", soft_wrap=True, highlight=False)

    state, found = Bundle.load(bundle).manifest.guard, moments(result.ticks)
    guard = Guard.start(state)
    if guard.advisory:
        say(
            "The predictor starts advisory, it reports and does not tighten: "
            f"{guard.reason or state.advisory_reason}"
        )
    if guard.threshold is None:  # a closed skill gate may open on the way, as it did in the backtest
        found = replace(found, at_s=found.at_s[:1])
    requests = trace.requests
    first_us = int(requests["arrived_at"].to_physical()[0])
    live_s = max(TICK_S, (found.at_s[0] + START_S - LIVE_S) // TICK_S * TICK_S)
    past_s = min(live_s, HISTORY_S)
    told = events(requests.filter(pl.col("arrived_at").to_physical() >= first_us + (live_s - past_s) * US))
    clock = PlayedClock(int(told.at_us[0]) + past_s * US)
    # The budget is kept in memory: a second run of the same hours must not find it spent by the first.
    with serving(bundle, Settings(rules=RULES), clock, port) as client, steps(console) as progress:
        player = Player(client, clock, told)
        progress("post the history", 0.0)
        player.history(partial(progress, "post the history"))
        asked: list[Asked] = []
        for number, at_s in enumerate(found.at_s, 1):
            moment_us = first_us + at_s * US
            play_until(
                player, moment_us + START_S * US, partial(progress, f"play up to {found.what} {number}")
            )
            progress(f"ask around {found.what} {number}", 0.0)
            asked = watch(player, moment_us)
            if count(asked, "alarm"):
                break
        ready = client.get("/readyz").raise_for_status().json()
        report = client.get("/v1/report").raise_for_status().json()
    ledger = report["ledger"]
    say(f"Service at {client.base_url}: took in {player.accepted:,} events, refused {player.refused:,}.")
    say(f"Predictor: {ready['predictor']}, {ready['reason']}; decisions by {ready['deciding_by']}.")
    say(f"False-alarm budget: {ledger['charges']} alarm ticks charged, {ledger['denials']} denied.")
    for sentence in story(asked, found, number):
        say(sentence)
    console.print(decisions_table(shown(asked), found.what))


@dataclass(frozen=True, slots=True)
class Moments:
    """What is worth watching, in order of time.

    Attributes:
        at_s: seconds from the first request, one or more.
        what: what they are.
        foreseen: the backtest's alarm anticipated them.

    """

    at_s: tuple[int, ...]
    what: str
    foreseen: bool


def moments(ticks: pl.DataFrame) -> Moments:
    """Onsets of the test span that the backtest anticipated out of a quiet gate, at most six.

    Failing those, any anticipated onsets; failing those, the first onset; failing that, the busiest tick.
    """
    table = scoring.Ticks(
        ticks["t_s"].to_numpy(),
        ticks["alarm"].cast(pl.Boolean).to_numpy(),
        ticks["eligible"].to_numpy(),
        ticks["next_onset_s"].fill_null(-1).cast(pl.Int64).to_numpy(),
    )
    onsets = scoring.scorable(table, ticks["next_onset_s"].drop_nulls().unique())
    if not len(onsets):
        busiest = ticks["load"].arg_max() or 0
        return Moments((int(ticks["t_s"][busiest]),), "busiest moment", foreseen=False)
    foreseen = onsets[scoring.anticipated(table, onsets)]
    if not len(foreseen):
        return Moments((int(onsets[0]),), "onset", foreseen=False)
    alarm_s = table.t_s[table.alarm]
    first, last = (np.searchsorted(alarm_s, foreseen + edge_s) for edge_s in QUIET_S)
    quiet = foreseen[first == last]
    chosen: list[int] = []
    for onset_s in (quiet if len(quiet) else foreseen).tolist():
        if len(chosen) < TRIES and (not chosen or onset_s >= chosen[-1] + APART_S):
            chosen.append(onset_s)
    return Moments(tuple(chosen), "onset", foreseen=True)


def play_until(player: Player, until_us: int, progress: Callable[[float], None]) -> None:
    """Tick the service through the trace up to a time."""
    start_us = player.clock.wall_us()
    while (now_us := player.clock.wall_us()) + TICK_S * US <= until_us:
        player.step(TICK_S)
        progress((now_us - start_us) / (until_us - start_us))


def story(asked: Sequence[Asked], found: Moments, tried: int) -> list[str]:
    """What happened, in sentences that hold whatever happened."""
    if not count(asked, "alarm"):
        many = f" at none of {tried} onsets that the backtest anticipated" if found.foreseen else ""
        return [f"The live forecast raised no alarm{many}: these are decisions of the rules alone."]
    alarm = [one for one in asked if one.phase == "alarm"]
    tightened = sum(one.by_forecast for one in alarm)
    passed_over = f" ({tried - 1} anticipated before it went without a live alarm)" if tried > 1 else ""
    return [
        f"Watched: {found.what} {tried}{passed_over}. While the alarm stood, {len(alarm)} requests asked: "
        f"{tightened} that the rules alone would have admitted met a 429."
    ]


def decisions_table(asked: Sequence[Asked], what: str) -> Table:
    """One row a request; a line between before, during and after the alarm. Fits 80 columns."""
    table = Table(
        title=f"POST /v1/admit, {PROMPT_TOKENS} prompt tokens each; s counts from the {what}",
        caption="* by the forecast: the rules alone would have admitted it",
        box=box.SIMPLE_HEAD,
        padding=(0, 0),
    )
    for column in ("s", "p_onset", "threshold", "tightening"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("alarm", "lane", "answer", "retry"):
        table.add_column(column, no_wrap=True)
    for one, following in zip_longest(asked, asked[1:]):
        table.add_row(
            f"{one.to_onset_s:+.0f}",
            "–" if one.p_onset is None else f"{one.p_onset:.3f}",
            "–" if one.threshold is None else f"{one.threshold:.3f}",
            f"{one.tightening:.2f}",
            "[yellow]yes[/]" if one.alarm else "no",
            one.lane,
            "[green]200[/] admitted"
            if one.reason is None
            else f"[red]429[/] {one.reason}{'*' * one.by_forecast}",
            "" if one.retry_after_s is None else f"{one.retry_after_s} s",
            end_section=following is not None and following.phase != one.phase,
        )
    return table
