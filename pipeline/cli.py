"""The command line: one thin function a command, heavy imports inside."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from data.errors import InputError

app = typer.Typer(
    name="tidegate",
    help="Predictive admission control for LLM serving: closes the gate before the tide.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
console = Console()
errors = Console(stderr=True)


def main() -> None:
    """Run the command line; bad input is one sentence on stderr and exit code 2."""
    try:
        app()
    except InputError as error:
        errors.print(f"[bold red]tidegate:[/] {error}", highlight=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
