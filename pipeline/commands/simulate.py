"""The command that plays a backtest's test span to simulated engines."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.terminal import console, say


def simulate_users(
    trace: Annotated[Path, typer.Argument(help="Trace file that was backtested.")],
    backtest: Annotated[
        Path, typer.Option(help="Folder that `tidegate backtest` wrote; its report gets the result.")
    ],
    config: Annotated[
        Path | None, typer.Option(help="tidegate.yaml with the gate's rules; by default the built-in ones.")
    ] = None,
    load: Annotated[
        float, typer.Option(help="Offered work over what the fleet can do, on average; not with --replicas.")
    ] = 0.6,
    kv_room: Annotated[
        float,
        typer.Option(help="KV room of a replica over what calls would hold at their peak; 0: the profile's."),
    ] = 0.6,
    replicas: Annotated[
        int | None, typer.Option(help="Number of them, as the profile says; by default as --load asks.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Requests wait at the gate for their lane's target first.")
    ] = False,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.", min=0)] = 0,
) -> None:
    """Play a backtest's test span to rules alone, with the forecast and with an oracle: what users get.

    Every arm gets the same calls on the same simulated fleet. Writes the result into
    the backtest's report.json and report.html.
    """
    from data.readers import load_trace, sha256_of, sniff

    sniff(trace)  # what can't be read is told at once, not after seconds of imports

    from pipeline.progress import steps
    from pipeline.simulate.folder import add_to_report, read_folder
    from pipeline.simulate.report import sentences, table
    from pipeline.simulate.study import Settings, study
    from serving.config.mapping import read_settings
    from serving.controller.rules import Rules

    rules = Rules() if config is None else read_settings(config).rules
    folder = read_folder(backtest, sha256_of(trace))
    settings = Settings(load, None if kv_room == 0 else kv_room, replicas, wait, seed)
    with steps(console) as progress:
        progress("read the trace", 0.0)
        requests = load_trace(trace).requests
        result = study(requests, folder.ticks, rules, settings, progress)
        result["config_sha256"] = None if config is None else sha256_of(config)
        page = add_to_report(folder, result)
    console.print(table(result))
    for sentence in sentences(result):
        say(sentence)
    say(f"Report: {page}")
