"""The command that collects telemetry."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.terminal import say


def collect(
    config: Annotated[Path, typer.Option(help="Configuration file: what to collect, and the lake.")] = Path(
        "tidegate.yaml"
    ),
    lake: Annotated[
        str | None, typer.Option(envvar="TIDEGATE_LAKE", help="Lake to write to, in place of the file's.")
    ] = None,
) -> None:
    """Scrape engines and follow gateway logs into the lake until SIGTERM or SIGINT."""
    from pipeline.collect import collect
    from serving.config.file import read

    telemetry = read(config).telemetry
    collect(telemetry if lake is None else telemetry.model_copy(update={"lake": lake}), say)
