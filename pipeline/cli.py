"""The command line: which command is called what."""

import sys

import typer
from rich.text import Text

from data.errors import InputError
from pipeline.commands import (
    collect,
    config,
    demo_gateway,
    doctor,
    engine_sim,
    forecasts,
    lake,
    play,
    profile,
    simulate,
    traces,
)
from pipeline.terminal import errors

app = typer.Typer(
    name="tidegate",
    help="Predictive admission control for LLM serving: closes the gate before the tide.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("ingest")(traces.ingest_traces)
app.command("synth")(traces.make_workload)
app.command("servegen")(traces.draw_trace)
app.command("backtest")(forecasts.run_backtest)
app.command("evaluate")(forecasts.run_evaluation)
app.command("train")(forecasts.train_bundle)
app.command("demo")(forecasts.run_demo)
app.command("demo-gateway")(demo_gateway.run_demo_gateway)
app.command("serve")(forecasts.serve)
app.command("collect")(collect.collect)
app.command("doctor")(doctor.doctor)
app.command("engine-sim")(engine_sim.engine_sim)
app.command("play")(play.play_trace)
app.command("simulate")(simulate.simulate_users)
app.add_typer(traces.app, name="traces")
app.add_typer(lake.app, name="lake")
app.add_typer(profile.app, name="profile")
app.add_typer(config.app, name="config")


def main() -> None:
    """Run the command line; bad input is one sentence on stderr and exit code 2."""
    try:
        app()
    except InputError as error:
        errors.print(Text.assemble(("tidegate:", "bold red"), f" {error}"), soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
