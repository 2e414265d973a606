"""Commands about the telemetry lake: look into it, keep it small, prove it sound, take rows out."""

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pipeline.terminal import console, say

app = typer.Typer(
    help="The telemetry lake: look into it, keep it small, prove it sound.", no_args_is_help=True
)

LakeOption = Annotated[
    str,
    typer.Option(
        envvar="TIDEGATE_LAKE",
        help="Folder, or postgresql://user@host:port/database?data=/folder of Parquet.",
    ),
]
TableOption = Annotated[str | None, typer.Option(help="One table; by default all.")]


class Form(StrEnum):
    """Forms of exported files."""

    parquet = "parquet"
    csv = "csv"


@app.command("stats")
def show_stats(
    lake: LakeOption = "var/lake",
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Rows, files and bytes by table, and by source and UTC day."""
    import json

    import polars as pl
    from rich.box import SIMPLE
    from rich.table import Table

    from data.lake import Lake
    from data.lake.stats import source_stats, table_stats

    with Lake(lake) as opened:
        tables, sources = table_stats(opened), source_stats(opened)
    if as_json:
        times = pl.col("first", "last").dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ")
        days = sources.with_columns(times, pl.col("day").cast(pl.String))
        typer.echo(json.dumps({"tables": tables.to_dicts(), "sources": days.to_dicts()}))
        return
    for frame in (tables, sources):
        table = Table(box=SIMPLE, pad_edge=False)
        for name in frame.columns:
            table.add_column(name.removesuffix("_bytes").replace("_", " "), no_wrap=name != "source")
        for row in frame.rows(named=True):
            table.add_row(*(_figure(name, value) for name, value in row.items()))
        console.print(table)


@app.command("compact")
def compact_lake(
    lake: LakeOption = "var/lake",
    history_hours: Annotated[
        float, typer.Option(min=0, help="Keep the lake's earlier states for this long.")
    ] = 24.0,
    grace_hours: Annotated[
        float,
        typer.Option(
            min=0, help="Delete files that nothing needs any more after this long; no query may run longer."
        ),
    ] = 24.0,
) -> None:
    """Make the small files of a day one file, drop old states, delete files that nothing needs any more.

    May run at any time beside readers, writers and ingests.
    """
    from data.lake import Lake
    from data.lake.compaction import compact

    with Lake(lake) as opened, console.status("compacting"):
        done = compact(opened, history=timedelta(hours=history_hours), grace=timedelta(hours=grace_hours))
    say(
        f"{done.flushed_rows:,} rows moved from the catalog to files; {done.merged_files:,} files became "
        f"{done.made_files:,}; {done.expired_snapshots:,} earlier states dropped; "
        f"{done.deleted_files:,} files deleted."
    )
    if done.skipped_files:
        say(f"{done.skipped_files:,} files had rows deleted meanwhile and wait for the next compaction.")
    if done.staging:
        say("An ingest is under way: files of cut-off writes wait for the next compaction.")


@app.command("retain")
def retain_days(
    days: Annotated[int, typer.Option(min=0, help="Keep today and this many UTC days before it.")],
    lake: LakeOption = "var/lake",
    table: TableOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would go.")] = False,
) -> None:
    """Delete rows older than some days, by the time column of their table.

    A trace counts by the times in it, not by when it was ingested: look with --dry-run first. Files leave the
    disk with the next `tidegate lake compact` after the history and the grace period.
    """
    from rich.table import Table

    from data.lake import Lake
    from data.lake.retention import retain

    with Lake(lake) as opened:
        gone = retain(opened, days, table=table, dry_run=dry_run)
    shown = Table("table", "rows to go" if dry_run else "rows deleted", "whole files", "kept from")
    for row in gone.rows():
        shown.add_row(*(_cell(value) for value in row))
    console.print(shown)


@app.command("check")
def check_lake(lake: LakeOption = "var/lake") -> None:
    """Look whether every file is there and whole, nothing stored twice, nothing without what it belongs to.

    Exits with 1 when something is wrong. Files of cut-off writes are listed, and do no harm.
    """
    from data.lake import Lake
    from data.lake.check import check
    from data.lake.migrations import version

    with Lake(lake) as opened, console.status("checking"):
        findings, number = check(opened), version(opened.db)
    for finding in findings:
        say(f"{'✗' if finding.problem else '·'} {finding.sentence}")
    wrong = sum(finding.problem for finding in findings)
    say(f"{opened.name} has {wrong} faults; schema version {number}.")
    if wrong:
        raise typer.Exit(1)


@app.command("export")
def export_rows(
    to: Annotated[Path, typer.Option(help="Folder for the files: TABLE/YYYY-MM-DD, one a UTC day.")],
    lake: LakeOption = "var/lake",
    table: Annotated[str, typer.Option(help="Table to export.")] = "requests",
    source: Annotated[str | None, typer.Option(help="One source; by default all.")] = None,
    since: Annotated[
        datetime | None, typer.Option(help="First time, UTC.", formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"])
    ] = None,
    until: Annotated[
        datetime | None,
        typer.Option(help="Time to stop before, UTC.", formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"]),
    ] = None,
    form: Annotated[Form, typer.Option(help="Form of the files.")] = Form.parquet,
) -> None:
    """Write rows as plain files; exported requests carry ends that came later and can be ingested again."""
    from data.lake import Lake
    from data.lake.export import export

    with Lake(lake) as opened, console.status("exporting"):
        written = export(
            opened,
            to,
            table=table,
            form=form.value,
            source=source,
            since=since and since.replace(tzinfo=UTC),
            until=until and until.replace(tzinfo=UTC),
        )
    say(f"{sum(written.values()):,} rows in {len(written):,} files under {to / table}")


def _figure(name: str, value: object) -> str:
    """A cell of the statistics: sizes in words, times without the day that stands beside them."""
    from rich.filesize import decimal

    if name == "size_bytes" and isinstance(value, int):
        return decimal(value)
    return f"{value:%H:%M:%S}" if isinstance(value, datetime) else _cell(value)


def _cell(value: object) -> str:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    if isinstance(value, int):
        return f"{value:,}"
    return "unknown" if value is None else str(value)
