"""Commands about traces: fetch, make, ingest."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.text import Text

from data.errors import InputError
from pipeline.terminal import console, say

app = typer.Typer(help="Public traces that Tidegate reads.", no_args_is_help=True)


def ingest_traces(
    paths: Annotated[list[Path], typer.Argument(help="Trace files, plain or compressed with gzip.")],
    lake: Annotated[
        str | None,
        typer.Option(
            envvar="TIDEGATE_LAKE", help="Folder of the lake; by default that of --config or var/lake."
        ),
    ] = None,
    source: Annotated[str | None, typer.Option(help="Name of the rows; by default the file's.")] = None,
    config: Annotated[Path | None, typer.Option(help="Configuration file with mappings.")] = None,
    mapping: Annotated[
        str | None, typer.Option(help="Mapping of --config for files whose columns are your own.")
    ] = None,
) -> None:
    """Add trace files to the lake, each in one transaction; rows that break a rule go to quarantine.

    Known formats are told by content: Azure LLM and LMM, BurstGPT, Mooncake, Qwen-Bailian, and our own
    columns as CSV, JSONL or Parquet. Any other CSV, JSONL or Parquet file needs a --mapping.
    """
    from rich.progress import Progress
    from rich.table import Table

    from data.config import Telemetry
    from data.ingest import ingest
    from data.lake import Lake
    from data.readers import inspect
    from serving.config.file import read

    settings = read(config).telemetry if config else Telemetry()
    if mapping and mapping not in settings.mappings:
        known = ", ".join(settings.mappings) or "none, as --config names no file with mappings"
        raise InputError(f"--mapping must be one of those in the configuration ({known}); got '{mapping}'")
    columns = settings.mappings[mapping] if mapping else None
    for path in paths:
        inspect(path, columns)  # what can't be read stops us here
    table = Table("file", "rows", "stored", "quarantined", "duplicates")
    warnings: list[str] = []
    try:
        with Lake(lake or settings.lake) as opened, Progress(console=console, transient=True) as bar:
            for path in paths:
                task = bar.add_task(escape(path.name), total=path.stat().st_size)
                progress = partial(bar.advance, task)
                done = ingest(path, opened, source=source, mapping=columns, progress=progress)
                counts = (done.rows, done.stored, done.quarantined, done.duplicates)
                name = f"{path.name} (semi-synthetic)" if done.semi_synthetic else path.name
                table.add_row(Text(name), *(f"{count:,}" for count in counts))
                warnings += [f"{path.name}: {warning}" for warning in done.warnings]
    finally:  # what is stored already is shown even if a later file fails
        if table.row_count:
            console.print(table)
        for warning in warnings:
            say(warning)


def make_workload(
    path: Annotated[Path, typer.Argument(help="Trace to write: .csv, .jsonl or .parquet.")],
    days: Annotated[float, typer.Option(help="Span in days.")] = 3.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same workload.")] = 0,
    rate: Annotated[float, typer.Option(help="Mean offered requests per second.")] = 8.5,
    lengths: Annotated[
        Path | None, typer.Option(help="Parquet file of clients' token lengths; by default built-in figures.")
    ] = None,
    family: Annotated[
        str,
        typer.Option(
            help="base, or drift: other periods and delays, growth, new schedules halfway, a tenant that "
            "leaves."
        ),
    ] = "base",
) -> None:
    """Write a synthetic workload, and beside it the causes of its bursts (NAME.truth.csv)."""
    from rich.table import Table

    from data.workload import Settings, check_path, generate, summarise, write

    check_path(path)  # before the work, not after it
    settings = Settings(days=days, seed=seed, requests_per_s=rate, lengths=lengths, family=family)
    workload = generate(settings)
    truth = write(workload, path)
    table = Table("what", "count", "per day")
    for what, count, per_day in summarise(workload, settings.days):
        table.add_row(what, f"{count:,}", f"{per_day:,.1f}")
    console.print(table)
    say(f"{path}, its causes in {truth}")


def draw_trace(
    windows: Annotated[
        Path, typer.Argument(help="Folder of a ServeGen pool (chunk-N-trace.csv ...), or Parquet of windows.")
    ],
    out: Annotated[Path, typer.Option(help="Trace to write: .parquet.")],
    lengths: Annotated[
        Path | None, typer.Option(help="Parquet of lengths, beside Parquet of windows.")
    ] = None,
    pool: Annotated[str | None, typer.Option(help="Pool of the Parquet files, such as m-small.")] = None,
    days: Annotated[float, typer.Option(help="Span in days.")] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same trace.", min=0)] = 0,
    rate: Annotated[
        float | None, typer.Option(help="Mean requests per second to scale to; by default the pool's own.")
    ] = None,
) -> None:
    """Draw a trace from ServeGen windows. Its arrivals are semi-synthetic, and it is marked as such."""
    from rich.progress import Progress

    from data.servegen import read_pool, write_trace

    read = read_pool(windows, lengths, pool)
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(escape(read.name), total=None)
        count = write_trace(
            read, out, days=days, seed=seed, requests_per_s=rate, progress=partial(bar.advance, task)
        )
    say(f"{out}: {count:,} requests of {len(read.clients)} clients, semi-synthetic")
    if read.borrowers:
        say(f"{len(read.borrowers)} clients have no published lengths; each has those of another client")


@app.command("list")
def list_traces() -> None:
    """Public traces that can be fetched, with their licences."""
    from rich.table import Column, Table

    from data.catalogue import TRACES

    table = Table(Column("name", no_wrap=True), "requests", "pinned", "licence")
    for trace in TRACES:
        requests = "" if trace.requests is None else f"{trace.requests:,}"
        table.add_row(trace.name, requests, "yes" if trace.pin else "no", trace.licence)
    console.print(table)
    for citation in dict.fromkeys(trace.citation for trace in TRACES):
        names = ", ".join(trace.name for trace in TRACES if trace.citation == citation)
        say(f"{names}: cite {citation}")


@app.command("fetch")
def fetch_trace(
    name: Annotated[str, typer.Argument(help="A name from `tidegate traces list`.")],
    to: Annotated[Path, typer.Option(help="Folder for the file.")] = Path("var/traces"),
) -> None:
    """Download a public trace, going on where a broken download stopped, and verify it."""
    from rich.progress import Progress

    from data.catalogue import digest, fetch, find

    trace = find(name)
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(trace.file_name, total=None)
        path = fetch(trace, to, progress=lambda have, total: bar.update(task, completed=have, total=total))
    say(f"{path}  ({trace.licence}; cite {trace.citation})")
    if trace.pin is None:
        say(f"no pin of it is known; what came has sha256:{digest(path, 'sha256')}, to compare elsewhere")
