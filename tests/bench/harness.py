"""What every benchmark needs: the machine and the versions, a table, and a JSON file with checks."""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "var" / "bench"


@dataclass(frozen=True, slots=True)
class Check:
    """A measured value against its target.

    `ratio` is what the target bounds: value over reference, or the value itself where nothing else was
    measured beside it. `at_least` says on which side of the target it must stay.
    """

    what: str
    value: float
    reference: float | None
    ratio: float
    target: float
    at_least: bool = True

    @property
    def holds(self) -> bool:
        """True where the target is met."""
        return self.ratio >= self.target if self.at_least else self.ratio <= self.target


def machine() -> dict[str, Any]:
    """Facts about this machine that a number depends on."""
    model = platform.processor()
    memory_mib = None
    if Path("/proc/cpuinfo").exists():
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
        model = names[0].partition(":")[2].strip() if names else model
        memory_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    return {
        "system": platform.platform(),
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_mib": memory_mib,
        "load_1min": round(os.getloadavg()[0], 2),
    }


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python and of these packages."""
    return {"python": platform.python_version()} | {name: version(name) for name in packages}


def alternate(contenders: dict[str, Callable[[], object]], rounds: int = 3) -> dict[str, list[float]]:
    """Seconds of every contender in every round, taken in turns so that all meet the same machine."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            taken[name].append(time.perf_counter() - start)
    return taken


def in_child(script: str | Path, *arguments: object) -> dict[str, Any]:
    """Run a script of ours in a fresh process that prints one JSON object, and return that object."""
    command = [sys.executable, str(script), *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def report(name: str, checks: Sequence[Check], facts: dict[str, Any], packages: Sequence[str]) -> Path:
    """Print the checks and write them with the facts to var/bench/<name>.json."""
    table = Table("check", "value", "reference", "ratio", "target", "holds", title=name)
    for check in checks:
        reference = "" if check.reference is None else _number(check.reference)
        sign = "≥" if check.at_least else "≤"
        table.add_row(
            check.what,
            _number(check.value),
            reference,
            _number(check.ratio),
            f"{sign} {check.target:g}",
            "yes" if check.holds else "NO",
        )
    Console().print(table)
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    content = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(*packages),
        **facts,
        "checks": [asdict(check) | {"holds": check.holds} for check in checks],
    }
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


def _number(value: float) -> str:
    """Whole from 100 on, three digits below."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Best, median and worst of some times."""
    return {"best_s": min(seconds), "median_s": statistics.median(seconds), "worst_s": max(seconds)}
