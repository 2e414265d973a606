"""The command that shows a burst at two gates."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.terminal import console


def run_demo_gateway(
    seconds: Annotated[int, typer.Option(help="Length of the play.", min=10)] = 300,
    out: Annotated[Path, typer.Option(help="Folder for everything that it writes, logs too.")] = Path(
        "var/demo-gateway"
    ),
    lead_s: Annotated[
        int, typer.Option(help="Time that both gates have to take in the history.", min=20)
    ] = 150,
    seed: Annotated[int, typer.Option(help="Of the synthetic day.")] = 0,
    reuse: Annotated[
        bool, typer.Option("--reuse", help="Take the day and the bundle of the run before; no training.")
    ] = False,
) -> None:
    """Play a burst to two gates in real time: Envoy, Tidegate and a simulated engine each.

    One decides by the rules alone, the other by rules and forecast. Both meet
    the same calls at the same time; a table tells what their clients saw.
    """
    import signal
    import sys

    from pipeline.demo_gateway import Demo, demo_gateway

    # Whatever ends the demo, its processes end with it.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    demo_gateway(Demo(seconds=seconds, lead_s=lead_s, seed=seed, reuse=reuse), out, console)
