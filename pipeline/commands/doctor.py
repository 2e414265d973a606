"""The command that looks whether all is well."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pipeline.terminal import console


def doctor(
    config: Annotated[Path | None, typer.Option(help="Configuration file: lake and scrape targets.")] = None,
    lake: Annotated[
        str | None, typer.Option(envvar="TIDEGATE_LAKE", help="Lake to look at, in place of the file's.")
    ] = None,
    bundle: Annotated[Path | None, typer.Option(help="Folder of a bundle to look at.")] = None,
    tracking: Annotated[str, typer.Option(help="MLflow store to look at.")] = "sqlite:///var/mlflow.db",
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check the installation, the lake, the clock, the targets and the model store, and say how to mend each.

    Exits with 1 when there is a fault; warnings let it pass.
    """
    from rich.table import Table
    from rich.text import Text

    from data.config import Telemetry
    from pipeline.doctor import examine
    from serving.config.file import read

    telemetry = Telemetry() if config is None else read(config).telemetry
    if lake is not None:
        telemetry = telemetry.model_copy(update={"lake": lake})
    with console.status("looking"):
        findings = list(examine(telemetry, bundle=bundle, tracking=tracking))
    if as_json:
        console.print_json(json.dumps([asdict(finding) for finding in findings]))
    else:
        marks = {"ok": ("✓", "green"), "warning": ("!", "bold yellow"), "fault": ("✗", "bold red")}
        table = Table.grid(padding=(0, 2))
        for finding in findings:
            what = Text(finding.what)
            if finding.mend:
                what.append(f"\n→ {finding.mend}", style="italic")
            table.add_row(Text(*marks[finding.state]), Text(finding.subject), what)
        console.print(table)
    if any(finding.state == "fault" for finding in findings):
        raise typer.Exit(1)
