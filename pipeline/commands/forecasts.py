"""Commands about forecasts: prove them on the past, train for use, serve, show it all."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.terminal import console, say


def run_backtest(
    trace: Annotated[Path, typer.Argument(help="Trace file of any known format.")],
    out: Annotated[Path, typer.Option(help="Folder for the report, the ticks and the bundle.")],
    test_fraction: Annotated[
        float | None, typer.Option(help="Share of the trace, at its end, to test on in one piece; else 0.35.")
    ] = None,
    walk_forward: Annotated[
        bool | None,
        typer.Option(
            help="Test every day but the first, each trained on the days before it; by default where the "
            "trace has three days or more and no fraction is given."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same report.")] = 0,
    tracking: Annotated[
        str, typer.Option(help="MLflow tracking store that the run is logged to; '' logs none.")
    ] = "sqlite:///var/mlflow.db",
) -> None:
    """Train on a trace's past, guard the rest of it, and write report.json, report.html and ticks.parquet."""
    from data.readers import load_trace, sniff

    sniff(trace)  # what can't be read is told at once, not after seconds of imports

    from data.workload import read_truth
    from pipeline.backtest import backtest
    from pipeline.progress import steps
    from pipeline.report import summary_table
    from pipeline.tracking import track

    with steps(console) as progress:
        progress("read the trace", 0.0)
        loaded = load_trace(trace)
        result = backtest(
            loaded,
            out,
            test_fraction=test_fraction,
            walk=walk_forward,
            seed=seed,
            causes=read_truth(trace),
            progress=progress,
        )
        if tracking:
            progress("log the run", 0.0)
            track(result, out, tracking)
    console.print(summary_table(result.report))
    for sentence in result.report["verdict"]["sentences"]:
        say(sentence)
    say(f"Report: {result.report_path}")


def run_evaluation(
    suite: Annotated[bool, typer.Option("--suite", help="Run the fixed suite of traces.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the rows and reports; finished rows stay.")] = Path(
        "var/suite"
    ),
    only: Annotated[
        list[str] | None, typer.Option(help="Only this case, or those whose names start with it; repeatable.")
    ] = None,
    traces: Annotated[
        Path | None,
        typer.Option(envvar="TIDEGATE_TRACES", help="Folder of public traces; else none of them."),
    ] = None,
) -> None:
    """Judge the forecaster on the fixed suite: synthetic, unseen, real and empty traffic; takes an hour.

    What is finished is kept: stop it and run it again to go on.
    """
    from data.errors import InputError
    from pipeline.evaluate import evaluate, table
    from pipeline.progress import steps
    from pipeline.suite import chosen
    from pipeline.suite import suite as cases

    if not suite:
        raise InputError(
            "Give --suite; the fixed suite is what can be evaluated. For one trace use backtest."
        )
    if traces is None:
        say("Real traces and ServeGen are left out: give --traces or TIDEGATE_TRACES to run them.")
    elif not traces.is_dir():
        raise InputError(f"--traces must be a folder; got '{traces}'")
    with steps(console) as progress:
        rows = evaluate(
            chosen(cases(traces), only or []),
            out,
            progress=lambda name: lambda what, share: progress(f"{name}: {what}", share),
        )
    console.print(table(rows))
    say(f"Suite: {out / 'suite.md'}")


def train_bundle(
    trace: Annotated[Path, typer.Argument(help="Trace file of any known format.")],
    out: Annotated[Path, typer.Option(help="Folder for the bundle.")],
    seed: Annotated[int, typer.Option(help="The same seed gives the same bundle.")] = 0,
) -> None:
    """Train and calibrate on all of a trace, with nothing kept back for a test, and write a bundle."""
    from data.readers import load_trace, sniff

    sniff(trace)  # what can't be read is told at once, not after seconds of imports

    from models.guard.guard import Guard
    from pipeline.progress import steps
    from pipeline.train import train_on

    with steps(console) as progress:
        progress("read the trace", 0.0)
        fitted = train_on(load_trace(trace), out, seed=seed, progress=progress)
    guard = fitted.bundle.manifest.guard
    say(guard.advisory_reason or Guard.start(guard).reason or "Calibrated: forecasts may tighten.")
    say(f"Bundle: {out} ({fitted.bundle.version})")


def run_demo(
    trace: Annotated[
        Path | None, typer.Argument(help="Trace file of any known format; by default a synthetic day.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for everything that it writes.")] = Path("var/demo"),
    port: Annotated[int, typer.Option(help="Port of the service; 0 takes a free one.")] = 0,
) -> None:
    """See it all once: traffic, lake, backtest, then live decisions around a burst; a few minutes."""
    from pipeline.demo import demo

    demo(trace, out, port, console)


def serve(
    bundle: Annotated[Path, typer.Option(help="Folder of the bundle to serve.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8311,
    state: Annotated[Path, typer.Option(help="Where the false-alarm budget outlives a restart.")] = Path(
        "var/serve/guard.json"
    ),
    lake: Annotated[
        str | None,
        typer.Option(
            help="Lake that offered load, decisions, forecasts and outcomes are recorded in, by default the "
            "configuration's or var/lake; '' records nothing."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Configuration file; `tidegate config explain` tells what it may hold."),
    ] = None,
    ext_proc_port: Annotated[
        int | None, typer.Option(help="Settle for Envoy by gRPC (ext_proc) on this port; 0 takes a free one.")
    ] = None,
    bundles: Annotated[
        Path | None, typer.Option(help="Folder whose bundles POST /v1/bundle may load while it runs.")
    ] = None,
    watch_bundle: Annotated[
        bool, typer.Option("--watch-bundle", help="Load what --bundle points to whenever that changes.")
    ] = False,
    keys: Annotated[
        Path | None,
        typer.Option(
            help="File of keys, NAME SCOPES KEY a line, read again when it changes; TIDEGATE_KEYS adds."
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond loopback though callers need no key there.")
    ] = False,
    drain_s: Annotated[
        float, typer.Option(min=0.0, help="Answer on for so long after SIGTERM, while /readyz says 503.")
    ] = 5.0,
) -> None:
    """Run the online service until SIGTERM or SIGINT."""
    import os
    from dataclasses import replace

    from serving.config.mapping import read_settings
    from serving.http.keys import read_keys
    from serving.server import serve as run
    from serving.settings import Settings

    settings = Settings(lake="var/lake") if config is None else read_settings(config)
    location = settings.lake if lake is None else lake
    settings = replace(
        settings,
        state_file=state,
        lake=location or None,
        ext_proc=None if ext_proc_port is None else (host, ext_proc_port),
        bundles=bundles,
        watch_bundle=bundle if watch_bundle else None,
        keys=read_keys(keys, os.environ),
        key_file=keys,
    )
    run(bundle, settings, host, port, drain_s=drain_s, insecure=insecure)
