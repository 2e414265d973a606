"""The service runs with what its image installs, and nothing of the training stack is there."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement

from tests.serving.live_apps import until

STACK = ("torch", "lightning", "mlflow", "scikit-learn", "pandas", "lightgbm", "onnx", "scipy", "matplotlib")
ALONE = """
import json, sys

missing = set(json.loads(sys.argv.pop(1)))

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in missing else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
from pipeline.cli import main
main()
"""
"""The command line where some packages are missing."""


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(requirements: list[str]) -> set[str]:
    """Names of the distributions that pip installs for these requirements, in this environment."""
    found: set[str] = set()
    wanted = [(Requirement(text), "") for text in requirements]
    while wanted:
        requirement, extra = wanted.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = plain(requirement.name)
        for more in ("", *requirement.extras):
            if f"{name}[{more}]" not in found:
                found.add(f"{name}[{more}]")
                wanted += [(Requirement(text), more) for text in importlib.metadata.requires(name) or ()]
    return {name.partition("[")[0] for name in found}


@pytest.fixture(scope="module")
def installed(root: Path) -> set[str]:
    return closure(tomllib.loads((root / "pyproject.toml").read_text())["project"]["dependencies"])


@pytest.fixture(scope="module")
def alone(installed: set[str], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Command line of `tidegate` where nothing is installed but what the serving image installs."""
    script = tmp_path_factory.mktemp("alone") / "alone.py"
    script.write_text(ALONE)
    missing = [
        module
        for module, owners in importlib.metadata.packages_distributions().items()
        if not {plain(owner) for owner in owners} & (installed | {"tidegate"})
    ]
    assert {"torch", "mlflow", "sklearn", "pandas", "grpc", "redis", "pytest"} <= set(missing)
    return [sys.executable, str(script), json.dumps(missing)]


def test_the_image_has_nothing_of_the_training_stack_and_only_what_is_pinned(
    installed: set[str], root: Path
) -> None:
    assert {"fastapi", "polars", "duckdb", "starlette", "pydantic-core"} <= installed
    assert installed.isdisjoint(STACK)
    lines = (root / "constraints.txt").read_text().splitlines()
    pins = {plain(re.split(r"[=@ ]", line)[0]) for line in lines if not line.startswith("#")}
    assert installed <= pins


@pytest.fixture(scope="module")
def url(
    alone: list[str], bundle: Path, root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Address of a service that runs with that alone."""
    folder = tmp_path_factory.mktemp("serving")
    log = folder / "log"
    command = [*alone, "serve", "--bundle", str(bundle), "--port", "0", "--drain-s", "0"]
    with log.open("w") as told:
        process = subprocess.Popen(command, cwd=folder, env={"PYTHONPATH": str(root)}, stderr=told)
    try:
        until(lambda: process.poll() is not None or "startup complete" in log.read_text())
        assert process.poll() is None, log.read_text()
        yield f"http://127.0.0.1:{json.loads(log.read_text().splitlines()[0])['port']}"
    finally:
        process.terminate()
        assert process.wait(60) == 0


def test_it_decides_and_records(url: str) -> None:
    asked = httpx.post(f"{url}/v1/admit", json={"prompt_tokens": 100}, timeout=60)
    assert asked.raise_for_status().json()["admitted"]
    ready = httpx.get(f"{url}/readyz", timeout=60).json()
    assert (ready["ready"], ready["lake"]) == (True, "ok")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["config", "check", "tidegate.yaml"], ""),
        (["config", "show"], "backpressure"),
        (["synth", "hour.parquet", "--days", "0.05"], "hour.parquet"),
        (["doctor"], "mlflow is not installed"),
        (["engine-sim", "--help"], "engine"),
        (["play", "--help"], "trace"),
    ],
)
def test_an_operators_commands_run_there(
    alone: list[str], deploy: Path, root: Path, tmp_path: Path, command: list[str], said: str
) -> None:
    shutil.copy(deploy / "tidegate.example.yaml", tmp_path / "tidegate.yaml")
    environment = {"PYTHONPATH": str(root), "PATH": os.environ["PATH"]}
    done = subprocess.run([*alone, *command], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    assert said in done.stdout + done.stderr
