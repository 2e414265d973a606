import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from fastapi import FastAPI

from tests.serving.gateways.test_envoy import running

IMAGES = ["Dockerfile.serving", "Dockerfile.training"]
Parse = Callable[[Sequence[str]], None]


def instructions(file: Path) -> list[tuple[str, str]]:
    """Instructions of a Dockerfile, continued lines joined."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    text = "\n".join(lines).replace("\\\n", " ")
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


@pytest.mark.parametrize("image", IMAGES)
def test_what_is_copied_exists_and_is_sent_to_the_builder(deploy: Path, root: Path, image: str) -> None:
    sent = [line[1:] for line in (root / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copies = [rest.split() for word, rest in instructions(deploy / image) if word == "COPY"]
    sources = [
        source
        for copy in copies
        if not any(part.startswith("--from") for part in copy)
        for source in copy[:-1]
        if not source.startswith("--")
    ]
    assert {"pyproject.toml", "constraints.txt", "data", "pipeline"} <= set(sources)
    for source in sources:
        assert (root / source).exists()
        assert any(Path(source).match(pattern) for pattern in sent), f"{source} is kept from the builder"


@pytest.mark.parametrize("image", IMAGES)
def test_it_runs_as_nobody_in_particular(deploy: Path, image: str) -> None:
    users = [rest for word, rest in instructions(deploy / image) if word == "USER"]
    assert users == ["65532:65532"]


def test_serving_installs_without_the_training_stack_and_training_with_it(deploy: Path, root: Path) -> None:
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    installs = {image: re.findall(r"pip install (.*)", (deploy / image).read_text()) for image in IMAGES}
    assert installs["Dockerfile.serving"] == ['-c constraints.txt ".${EXTRAS:+[$EXTRAS]}"']
    assert installs["Dockerfile.training"] == ['-c constraints.txt ".[train]"']
    assert {"train", "envoy", "shared"} <= extras.keys()


def test_its_command_is_one_of_ours(deploy: Path, parses: Parse) -> None:
    found = dict(instructions(deploy / "Dockerfile.serving"))
    assert found["ENTRYPOINT"] == '["tidegate"]'
    parses(json.loads(found["CMD"]))


def test_it_is_healthy_while_it_is_ready_and_not_while_it_stops(deploy: Path, service_app: FastAPI) -> None:
    check = dict(instructions(deploy / "Dockerfile.serving"))["HEALTHCHECK"]
    python, *arguments = json.loads(check[check.index("[") :])
    assert python == "python"
    with running(service_app) as port:
        arguments = [argument.replace("8311", str(port)) for argument in arguments]
        assert subprocess.run([sys.executable, *arguments]).returncode == 0
        service_app.state.service.draining = True
        assert subprocess.run([sys.executable, *arguments], stderr=subprocess.DEVNULL).returncode != 0
        service_app.state.service.draining = False


@pytest.mark.parametrize("script", ["first-bundle.sh", "retrain.sh"])
def test_scripts_call_commands_that_exist(deploy: Path, parses: Parse, script: str) -> None:
    calls = re.findall(r"^tidegate (.*)$", (deploy / script).read_text(), re.MULTILINE)
    assert calls
    for call in calls:
        # Arguments that name files are checked for existing ones: any will do.
        parses(
            [
                re.sub(r".*\$.*parquet", __file__, part)
                for part in shlex.split(call.replace("$since", "2026-01-01"))
            ]
        )


def run(script: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["sh", script], cwd=folder, env={"PATH": path, "HOME": str(folder)}, capture_output=True, text=True
    )


def test_a_first_bundle_is_made_only_where_there_is_none(deploy: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "var/bundles/current/bundle.json"
    bundle.parent.mkdir(parents=True)
    bundle.write_text("{}")
    assert run(deploy / "first-bundle.sh", tmp_path).returncode == 0
    assert [path.name for path in (tmp_path / "var/bundles").iterdir()] == ["current"]


def test_retraining_without_traffic_fails_and_leaves_no_bundle(deploy: Path, tmp_path: Path) -> None:
    done = run(deploy / "retrain.sh", tmp_path)
    assert done.returncode != 0
    assert done.stderr
    assert list((tmp_path / "var/bundles").iterdir()) == []
