"""Commands about the configuration file."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.terminal import console, say

app = typer.Typer(
    help="The configuration file: check it, show what holds, explain its keys.", no_args_is_help=True
)


@app.command("check")
def check(
    file: Annotated[Path, typer.Argument(help="Configuration file.")] = Path("tidegate.yaml"),
) -> None:
    """Tell everything that is wrong with a file, at once; exit code 2 when anything is."""
    from serving.config.mapping import read_settings

    read_settings(file)
    say(f"{file} is right.")


@app.command("show")
def show(
    file: Annotated[Path, typer.Argument(help="Configuration file.")] = Path("tidegate.yaml"),
) -> None:
    """Show what holds: the file with its defaults filled in and marked, and without secrets."""
    from serving.config.file import read
    from serving.config.show import shown

    say(shown(read(file)).rstrip())


@app.command("explain")
def explain(
    key: Annotated[
        str | None,
        typer.Argument(help="A key, such as backpressure.alpha; a section; or the last name alone."),
    ] = None,
) -> None:
    """Explain a key: meaning, unit, default, range and what it sets; without one, all in a table."""
    from rich.table import Table

    from serving.config.explain import entries, explained

    found = list(entries()) if key is None else explained(key)
    if len(found) == 1:
        (entry,) = found
        say(f"{entry.path}: {entry.meaning}")
        for name in ("unit", "default", "range", "sets"):
            if getattr(entry, name):
                say(f"  {name}: {getattr(entry, name)}")
        return
    table = Table("key", "default", "meaning", box=None)
    table.columns[0].no_wrap = True
    for entry in found:
        bounds = f" ({entry.range})" if entry.default and entry.range else ""
        default = f"{entry.default} {entry.unit}".strip()
        table.add_row(entry.path, default, f"{entry.meaning}{bounds}", style="" if entry.default else "bold")
    console.print(table)
