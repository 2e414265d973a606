"""Commands about engine profiles."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.terminal import console, say

app = typer.Typer(help="What an engine can do, from measurements of it.", no_args_is_help=True)


@app.command("fit")
def fit(
    measurements: Annotated[
        Path, typer.Argument(help="CSV with the columns of splitwise-sim's perf_model.csv; times in ms.")
    ],
    model: Annotated[str | None, typer.Option(help="Model, where the file has several.")] = None,
    hardware: Annotated[str | None, typer.Option(help="Hardware, where the file has several.")] = None,
    tensor_parallel: Annotated[int | None, typer.Option(help="GPUs that share a replica.")] = None,
    kv_blocks: Annotated[
        int | None, typer.Option(help="KV blocks of one replica, as the engine says at its start.", min=1)
    ] = None,
    block_tokens: Annotated[int, typer.Option(help="Tokens in a KV block.", min=1)] = 16,
    out: Annotated[Path | None, typer.Option(help="Profile to write, as YAML.")] = None,
) -> None:
    """Fit prefill and decode times, and write the engine profile that the rules take."""
    import numpy as np
    from rich.table import Table

    from data.errors import InputError
    from data.measurements import choose, read_measurements
    from serving.controller.profile_fit import LineFit, fit_profile
    from serving.profiles import write_profile

    if out is not None and kv_blocks is None:
        raise InputError("--out needs --kv-blocks: measured times don't tell how many KV blocks there are.")
    read = read_measurements(measurements)
    for reason, count in read.refused.items():
        say(f"Left out: {count} rows, {reason}")
    rows = choose(read.rows, model=model, hardware=hardware, tensor_parallel=tensor_parallel)
    columns = ("prompt_tokens", "batch", "prefill_s", "decode_step_s")
    fitted = fit_profile(*(rows[name].to_numpy().astype(np.float64) for name in columns))
    if fitted.outliers:
        say(f"Left out: {fitted.outliers} rows, three times or a third of what the others say")

    name = "{0} on {2} {1}".format(*rows.select("model", "hardware", "tensor_parallel").row(0))
    table = Table("", "ms", "r2", "residual p50", "p95, ms", "rows", title=name)

    def add(what: str, line: LineFit, per: str) -> None:
        table.add_row(
            what,
            f"{line.base_s * 1e3:.1f} + {line.slope_s * 1e3:.4f} * {per}",
            f"{line.r2:.3f}",
            f"{line.residual_p50_s * 1e3:.1f}",
            f"{line.residual_p95_s * 1e3:.1f}",
            f"{line.rows}",
        )

    add("prefill", fitted.prefill, "tokens")
    add("decode step", fitted.decode, "batch")
    console.print(table)
    say(f"Shortest prefill: {fitted.prefill_floor_s * 1e3:.1f} ms")
    if kv_blocks is not None:
        profile = fitted.profile(name, kv_blocks, block_tokens)
        say(f"Capacity: {profile.capacity_tokens:,} tokens")
        if out is not None:
            write_profile(profile, out)
            say(f"Profile: {out}")
