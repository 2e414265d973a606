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


@app.command("list")
def list_traces() -> None:
    """Public traces that can be fetched, with their licences."""
    from rich.table import Table

    from data.catalogue import TRACES

    table = Table("name", "requests", "licence", "cite")
    for trace in TRACES:
        requests = "" if trace.requests is None else f"{trace.requests:,}"
        table.add_row(trace.name, requests, trace.licence, trace.citation)
    console.print(table)


@app.command("fetch")
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
