"""The command that plays a trace as live load."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.terminal import console, say


def play_trace(
    trace: Annotated[Path, typer.Argument(help="Trace file of any known format.")],
    url: Annotated[str, typer.Option(help="Base address of the endpoint.")] = "http://127.0.0.1:8000/v1",
    model: Annotated[str, typer.Option(help="Model to ask for.")] = "sim",
    speed: Annotated[float, typer.Option(help="Times the trace's own pace.")] = 1.0,
    start_s: Annotated[float, typer.Option(help="Where in the trace to start, in its seconds.", min=0)] = 0.0,
    span_s: Annotated[
        float | None, typer.Option(help="How much of it to play; by default to its end.", min=0)
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            help="Header 'name: value' for each call, with {tenant}, {lane}, {session} and {request_id} "
            "filled in; repeatable."
        ),
    ] = None,
    timeout_s: Annotated[float, typer.Option(help="Longest silence that a client bears.", min=0.001)] = 600.0,
    seed: Annotated[int, typer.Option(help="Of the jitter of clients' own back-off.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Parquet file for a row a call.")] = None,
) -> None:
    """Send a trace's requests to an OpenAI endpoint at their times, and tell what clients saw, by lane.

    Calls go out on time, whether or not the endpoint keeps up. Clients retry as
    the OpenAI SDK does, and as they are told to by Retry-After.

    Prompts are text of the wanted length, at four characters a token; turns of a
    session begin alike. The header x-sim-output-tokens tells `tidegate engine-sim`
    how long answers are; another engine ends them as it likes. Play at a pace
    other than 1 only to an engine-sim at the same --speed, with no gate between:
    a gate's own times don't scale.
    """
    import asyncio

    from rich.progress import Progress
    from rich.table import Table

    from data.errors import InputError
    from data.readers import load_trace
    from data.schema import LANES
    from pipeline.play.player import play
    from pipeline.play.score import frame, lateness_s, score
    from pipeline.play.shots import shots
    from serving.clock import SystemClock
    from serving.controller.rules import Rules

    headers = {}
    for line in header or []:
        name, colon, value = line.partition(":")
        if not (name.strip() and colon):
            raise InputError(f"--header must be 'name: value'; got '{line}'.")
        headers[name.strip().lower()] = value.strip()
    planned = shots(load_trace(trace).requests, speed=speed, start_s=start_s, span_s=span_s, headers=headers)
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("calls", total=len(planned))
        seen = asyncio.run(
            play(
                planned,
                url,
                model,
                SystemClock(),
                timeout_s=timeout_s,
                seed=seed,
                progress=lambda: bar.advance(task),
            )
        )
    calls, rules = frame(seen), Rules()
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        calls.write_parquet(out)
    told = score(calls, {lane: rules.lane(lane).ttft_target_ms / 1e3 for lane in LANES}, speed)
    table = Table("", *told["lane"])
    for number in told.drop("lane"):
        cells = ("–" if v is None else f"{v:.3g}" if isinstance(v, float) else str(v) for v in number)
        table.add_row(number.name.replace("_", " "), *cells)
    console.print(table)
    say(f"Calls went out up to {lateness_s(calls) * 1e3:.0f} ms late (99 % of them).")
