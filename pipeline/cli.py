"""The command line: one thin function a command, heavy imports inside."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from data.errors import InputError

app = typer.Typer(
    name="tidegate",
    help="Predictive admission control for LLM serving: closes the gate before the tide.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
traces_app = typer.Typer(help="Public traces that Tidegate reads.", no_args_is_help=True)
app.add_typer(traces_app, name="traces")
console = Console()
errors = Console(stderr=True)


@app.command("ingest")
def ingest_traces(
    paths: Annotated[list[Path], typer.Argument(help="Trace files of any known format.")],
    lake: Annotated[Path, typer.Option(help="Folder of the lake.")] = Path("var/lake"),
    source: Annotated[str | None, typer.Option(help="Name of the rows; by default the file's.")] = None,
) -> None:
    """Add trace files to the lake, each in one transaction; rows that break a rule go to quarantine."""
    from rich.progress import Progress
    from rich.table import Table

    from data.ingest import ingest
    from data.lake import Lake
    from data.readers import sniff

    numbered = [path for path in paths if not sniff(path).own_ids]  # what can't be read stops us here
    if source and len(paths) > 1 and numbered:
        raise InputError(
            f"--source must name one file where rows are only numbered, as in {numbered[0]}; "
            f"got {len(paths)} files, whose numbers would be taken for each other's"
        )
    table = Table("file", "rows", "stored", "quarantined", "duplicates")
    try:
        with Lake(lake) as opened, Progress(console=console, transient=True) as bar:
            for path in paths:
                task = bar.add_task(escape(path.name), total=path.stat().st_size)
                done = ingest(path, opened, source=source, progress=partial(bar.advance, task))
                counts = (done.rows, done.stored, done.quarantined, done.duplicates)
                table.add_row(Text(path.name), *(f"{count:,}" for count in counts))
    finally:  # what is stored already is shown even if a later file fails
        if table.row_count:
            console.print(table)


@app.command("synth")
def make_workload(
    path: Annotated[Path, typer.Argument(help="Trace to write: .csv, .jsonl or .parquet.")],
    days: Annotated[float, typer.Option(help="Span in days.")] = 3.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same workload.")] = 0,
    rate: Annotated[float, typer.Option(help="Mean offered requests per second.")] = 8.5,
    lengths: Annotated[
        Path | None, typer.Option(help="Parquet file of clients' token lengths; by default built-in figures.")
    ] = None,
) -> None:
    """Write a synthetic workload, and beside it the causes of its bursts (NAME.truth.csv)."""
    from rich.table import Table

    from data.workload import Settings, check_path, generate, summarise, write

    check_path(path)  # before the work, not after it
    settings = Settings(days=days, seed=seed, requests_per_s=rate, lengths=lengths)
    workload = generate(settings)
    truth = write(workload, path)
    table = Table("what", "count", "per day")
    for what, count, per_day in summarise(workload, settings.days):
        table.add_row(what, f"{count:,}", f"{per_day:,.1f}")
    console.print(table)
    say(f"{path}, its causes in {truth}")


@app.command("backtest")
def run_backtest(
    trace: Annotated[Path, typer.Argument(help="Trace file of any known format.")],
    out: Annotated[Path, typer.Option(help="Folder for the report, the ticks and the bundle.")],
    test_fraction: Annotated[float, typer.Option(help="Share of the trace, at its end, to test on.")] = 0.35,
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
            loaded, out, test_fraction=test_fraction, seed=seed, causes=read_truth(trace), progress=progress
        )
        if tracking:
            progress("log the run", 0.0)
            track(result, out, tracking)
    console.print(summary_table(result.report))
    for sentence in result.report["verdict"]["sentences"]:
        say(sentence)
    say(f"Report: {result.report_path}")


@app.command("train")
def train_bundle(
    trace: Annotated[Path, typer.Argument(help="Trace file of any known format.")],
    out: Annotated[Path, typer.Option(help="Folder for the bundle.")],
    seed: Annotated[int, typer.Option(help="The same seed gives the same bundle.")] = 0,
) -> None:
    """Train and calibrate on all of a trace, with nothing kept back for a test, and write a bundle."""
    from data.readers import load_trace, sniff

    sniff(trace)  # what can't be read is told at once, not after seconds of imports

    from pipeline.progress import steps
    from pipeline.train import train_on

    with steps(console) as progress:
        progress("read the trace", 0.0)
        fitted = train_on(load_trace(trace), out, seed=seed, progress=progress)
    guard = fitted.bundle.manifest.guard
    say(guard.advisory_reason or "Calibrated: forecasts may tighten.")
    say(f"Bundle: {out} ({fitted.bundle.version})")


@app.command("demo")
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


@traces_app.command("list")
def list_traces() -> None:
    """Public traces that can be fetched, with their licences."""
    from rich.table import Table

    from data.catalogue import TRACES

    table = Table("name", "requests", "licence", "cite")
    for trace in TRACES:
        requests = "" if trace.requests is None else f"{trace.requests:,}"
        table.add_row(trace.name, requests, trace.licence, trace.citation)
    console.print(table)


@traces_app.command("fetch")
def fetch_trace(
    name: Annotated[str, typer.Argument(help="A name from `tidegate traces list`.")],
    to: Annotated[Path, typer.Option(help="Folder for the file.")] = Path("var/traces"),
) -> None:
    """Download a public trace, going on where a broken download stopped, and verify it."""
    from rich.progress import Progress

    from data.catalogue import fetch, find

    trace = find(name)
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(trace.file_name, total=None)
        path = fetch(trace, to, progress=lambda have, total: bar.update(task, completed=have, total=total))
    say(f"{path}  ({trace.licence}; cite {trace.citation})")


@app.command()
def serve(
    bundle: Annotated[Path, typer.Option(help="Folder of the bundle to serve.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8311,
    state: Annotated[Path, typer.Option(help="Where the false-alarm budget outlives a restart.")] = Path(
        "var/serve/guard.json"
    ),
) -> None:
    """Run the online service until SIGTERM or SIGINT."""
    from serving.server import serve as run
    from serving.settings import Settings

    run(bundle, Settings(state_file=state), host, port)


def say(line: str) -> None:
    """Print a line as it is: brackets and colons in a path or message are no markup."""
    console.print(Text(line), soft_wrap=True)


def main() -> None:
    """Run the command line; bad input is one sentence on stderr and exit code 2."""
    try:
        app()
    except InputError as error:
        errors.print(Text.assemble(("tidegate:", "bold red"), f" {error}"), soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
