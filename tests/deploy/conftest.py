"""What deployments are held against: the command line, the files, and the running service."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import typer.main
from fastapi import FastAPI

from data.config import Target
from models.bundle import Bundle
from pipeline.cli import app as command_line
from serving.app import create_app
from serving.clock import ManualClock
from serving.settings import Settings
from serving.shared.settings import SharedSettings
from tests.noise_bundle import noise_model, write_noise_bundle

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def deploy() -> Path:
    return ROOT / "deploy"


@pytest.fixture(scope="session")
def parses() -> Callable[[Sequence[str]], None]:
    """Parse the arguments of a `tidegate` command; raises where it has no such command or option."""

    def parse(arguments: Sequence[str]) -> None:
        command, rest = typer.main.get_command(command_line), list(arguments)
        while hasattr(command, "commands"):
            command = command.commands[rest.pop(0)]
        command.make_context("tidegate", rest)

    return parse


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a bundle that can serve."""
    return write_noise_bundle(tmp_path_factory.mktemp("bundle"), noise_model(), -100.0)


@pytest.fixture(scope="session")
def service_app(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    """The service with everything on that has metrics of its own."""
    settings = Settings(
        scrape=(Target(name="e", url="http://127.0.0.1:9/metrics"),),
        lake=str(tmp_path_factory.mktemp("lake")),
        shared=SharedSettings("redis://127.0.0.1:9/0"),
    )
    return create_app(Bundle.load(bundle), settings, ManualClock(1_700_000_000_000_000))
