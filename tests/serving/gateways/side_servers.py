"""Servers in environments of their own, because their pins clash with ours; `make gateways` makes them.

A variable names another environment, or, when it is empty, none.
"""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[3]
START_S = 240.0
"""Longest start of a server, on a machine that does much else."""


def environment(name: str) -> Path | None:
    """Folder of the environment ``name``, such as litellm; None where there is none."""
    told = os.environ.get(f"TIDEGATE_{name.upper()}_VENV")
    if told is not None:
        return Path(told) if told else None
    made = ROOT / f".venv-{name}"
    return made if (made / ".ready").exists() else None


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


@contextlib.contextmanager
def started(command: Sequence[str], folder: Path, settings: Mapping[str, str], ready: str) -> Iterator[Path]:
    """Run a server in ``folder`` until the block ends; it begins when the URL ``ready`` answers 200.

    Yields the file that it logs to. It sees ``settings`` and the search path, and nothing else of ours.
    """
    log = folder / "log"
    seen = {"PATH": f"{Path(command[0]).parent}:{os.environ['PATH']}", "HOME": str(folder), **settings}
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=seen, stdout=output, stderr=output, start_new_session=True
        )
    try:
        deadline_s = time.monotonic() + START_S
        while not _answers(ready):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError("The server did not start:\n" + log.read_text(errors="replace")[-4_000:])
            time.sleep(0.2)
        yield log
    finally:
        process.terminate()
        try:
            process.wait(30)
        finally:
            with contextlib.suppress(ProcessLookupError):  # what it started and left behind
                os.killpg(process.pid, signal.SIGKILL)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code == 200
    except httpx.HTTPError:
        return False
