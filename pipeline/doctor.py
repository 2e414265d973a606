"""A look at everything that Tidegate needs, with a remedy for each fault."""

import ctypes
import importlib.util
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

import duckdb
import httpx
from packaging.requirements import Requirement

from data.config import Target, Telemetry
from data.errors import InputError
from data.lake import Lake

State = Literal["ok", "warning", "fault"]

LOW_DISK_BYTES = 1 << 30
NO_DISK_BYTES = 100 << 20
SKEW_S = 5.0
"""Clocks that differ by more put telemetry into the wrong tick; HTTP dates tell whole seconds."""
ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, how it is, and what to do about it; `mend` is empty where nothing is to be done."""

    subject: str
    state: State
    what: str
    mend: str = ""


def examine(telemetry: Telemetry, *, bundle: Path | None, tracking: str) -> Iterator[Finding]:
    """Look at the installation, the clock, the lake, the scrape targets and the model store.

    Nothing is changed: a lake that isn't there yet isn't made.
    """
    yield from installation()
    yield from clock()
    yield from lake(telemetry.lake)
    for target in telemetry.scrape:
        yield from scrape_target(target)
    if bundle is not None:
        yield from served_model(bundle)
    yield from model_store(tracking)


def installation() -> Iterator[Finding]:
    """Python, the packages and their versions, and whether DuckDB can load its extensions."""
    yield Finding("python", "ok", f"{sys.version.split()[0]} at {sys.executable}")
    wrong = [fault for name in requires("tidegate") or () if (fault := _unmet(Requirement(name), ""))]
    if wrong:
        yield Finding(
            "packages", "fault", "; ".join(wrong), "pip install -c constraints.txt . installs what is pinned"
        )
    else:
        yield Finding("packages", "ok", f"tidegate {version('tidegate')} has everything it needs to serve")
    lacking = [fault for name in requires("tidegate") or () if (fault := _unmet(Requirement(name), "train"))]
    if lacking:
        yield Finding(
            "training",
            "warning",
            f"not installed: {'; '.join(lacking)}",
            "to train or backtest here, pip install -c constraints.txt '.[train]'",
        )
    else:
        yield Finding("training", "ok", "torch, lightning and mlflow are installed")
    with tempfile.TemporaryDirectory() as folder:
        try:
            Lake(folder).close()
        except (InputError, duckdb.Error) as error:
            yield Finding(
                "duckdb", "fault", str(error), "reinstall duckdb and duckdb-extension-* of one version"
            )
        else:
            yield Finding("duckdb", "ok", f"{duckdb.__version__} makes and opens a lake")


def clock() -> Iterator[Finding]:
    """Whether the kernel says that something keeps the clock right."""
    error_s = _clock_error_s()
    if error_s is None:
        yield Finding(
            "clock",
            "warning",
            f"it is {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, and nothing keeps the clock right as far as "
            "the kernel knows",
            "run chrony or systemd-timesyncd; in a container, see to the host's clock",
        )
    elif error_s > SKEW_S:
        yield Finding(
            "clock",
            "fault",
            f"the clock may be wrong by {error_s:.1f} s",
            "see why NTP can't reach its servers",
        )
    else:
        yield Finding("clock", "ok", f"synchronised, wrong by {error_s * 1000:.0f} ms at most")


def lake(location: str) -> Iterator[Finding]:
    """Whether the lake opens, what is in it, and whether there is room for more."""
    remote = "://" in location
    if not remote:
        yield from _room(Path(location))
        if not Path(location).exists():
            yield Finding("lake", "ok", f"{location} isn't there yet; the first `tidegate ingest` makes it")
            return
    try:
        with Lake(location) as opened:
            sources = opened.sources()
    except (InputError, duckdb.Error) as error:
        yield Finding(
            "lake",
            "fault",
            str(error),
            "start the database, or mend the address" if remote else "restore the folder, or give another",
        )
        return
    rows = sum(sources["rows"])
    yield Finding(
        "lake", "ok", f"{rows:,} requests of {sources.height} sources; `tidegate lake check` looks deeper"
    )
    newest = sources["last"].max()
    if isinstance(newest, datetime) and (ahead_s := (newest - datetime.now(UTC)).total_seconds()) > SKEW_S:
        yield Finding(
            "lake",
            "warning",
            f"its newest request lies {ahead_s:.0f} s ahead of this machine's clock",
            "set the clock of that source right: rows from the future never become features",
        )


def scrape_target(target: Target) -> Iterator[Finding]:
    """Whether a target answers in its time, by a clock like ours; what it exports is not looked at."""
    subject = f"target {target.name}"
    start_s = time.monotonic()
    try:
        answer = httpx.get(target.url, timeout=target.timeout_s)
        answer.raise_for_status()
    except httpx.HTTPError as error:
        yield Finding(
            subject,
            "fault",
            f"{target.url}: {error or type(error).__name__}",
            "see that the engine runs, exports metrics, and can be reached from here",
        )
        return
    taken_s = time.monotonic() - start_s
    if taken_s > target.timeout_s / 2:
        yield Finding(
            subject,
            "warning",
            f"answers in {taken_s:.2f} s of the {target.timeout_s:g} s that it has",
            "raise timeout_s, or look why the engine is slow to answer",
        )
    else:
        yield Finding(subject, "ok", f"answers in {taken_s * 1000:.0f} ms")
    skew_s = _skew_s(answer)
    if skew_s is not None and abs(skew_s) > SKEW_S:
        yield Finding(
            subject,
            "warning",
            f"its clock is {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} this machine's",
            "run NTP on both",
        )


def served_model(bundle: Path) -> Iterator[Finding]:
    """Whether a bundle loads, where it runs, and whether it may tighten."""
    from models.bundle import Bundle
    from models.guard.guard import Guard

    try:
        loaded = Bundle.load(bundle)
    except InputError as error:
        yield Finding("bundle", "fault", str(error), "`tidegate train TRACE --out DIR` writes a new one")
        return
    guard = loaded.manifest.guard
    advisory = guard.advisory_reason or Guard.start(guard).reason
    where = f"{loaded.version} runs on {loaded.providers[0]}"
    if advisory:
        yield Finding(
            "bundle",
            "warning",
            f"{where} and starts advisory: {advisory}",
            "train on a longer span of traffic",
        )
    else:
        yield Finding("bundle", "ok", f"{where} and may tighten")


def model_store(tracking: str) -> Iterator[Finding]:
    """Whether the MLflow store answers."""
    if importlib.util.find_spec("mlflow") is None:
        yield Finding("model store", "warning", "mlflow is not installed, so runs can't be tracked or loaded",
                      "pip install -c constraints.txt '.[train]'")  # fmt: skip
        return
    if tracking.startswith("sqlite:///") and not Path(tracking.removeprefix("sqlite:///")).exists():
        yield Finding("model store", "ok", f"{tracking} isn't there yet; the first backtest makes it")
        return
    if tracking.startswith(("http://", "https://")):
        # mlflow's own client tries for minutes before it gives up.
        try:
            httpx.get(f"{tracking.rstrip('/')}/health", timeout=ANSWER_S).raise_for_status()
        except httpx.HTTPError as error:
            yield Finding(
                "model store",
                "fault",
                f"{tracking}: {error or type(error).__name__}",
                "start the MLflow server, or give another with --tracking",
            )
            return
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        found = MlflowClient(tracking).search_experiments(max_results=1000)
    except (MlflowException, SQLAlchemyError) as error:
        yield Finding(
            "model store",
            "fault",
            f"{tracking}: {str(error).splitlines()[0]}",
            "give a store with --tracking",
        )
        return
    yield Finding("model store", "ok", f"{tracking} answers; {len(found)} experiments")


def _unmet(requirement: Requirement, extra: str) -> str | None:
    """What is wrong with an installed requirement of this extra, '' being none; None where it is met."""
    marker = requirement.marker
    belongs = marker is None or marker.evaluate({"extra": extra})
    if extra and marker is not None and marker.evaluate({"extra": ""}):
        belongs = False  # the core's own
    if not belongs or (extra and marker is None):
        return None
    try:
        found = version(requirement.name)
    except PackageNotFoundError:
        return f"{requirement.name} is missing"
    if not requirement.specifier.contains(found, prereleases=True):
        return f"{requirement.name} must be {requirement.specifier}; got {found}"
    return None


def _room(folder: Path) -> Iterator[Finding]:
    """Free space where the lake is or will be."""
    there = next(path for path in (folder, *folder.resolve().parents) if path.exists())
    free = shutil.disk_usage(there).free
    state: State = "fault" if free < NO_DISK_BYTES else "warning" if free < LOW_DISK_BYTES else "ok"
    mend = (
        "" if state == "ok" else "make room, `tidegate lake retain --days N` and `tidegate lake compact` help"
    )
    yield Finding("disk", state, f"{free / (1 << 30):.1f} GiB free under {there}", mend)


def _skew_s(answer: httpx.Response) -> float | None:
    """How far the server's clock is ahead of ours, from its Date header; None where it sends none."""
    try:
        theirs = parsedate_to_datetime(answer.headers["date"])
    except (KeyError, ValueError):
        return None
    return (theirs - datetime.now(UTC)).total_seconds()


class _Timex(ctypes.Structure):
    """The head of Linux' struct timex, and room for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("rest", ctypes.c_byte * 256),
    )


def _clock_error_s() -> float | None:
    """The kernel's bound on the error of its clock; None where it is not synchronised or can't tell."""
    unsynchronised = 5
    state = _Timex()
    try:
        answer = ctypes.CDLL(None).adjtimex(ctypes.byref(state))
    except (AttributeError, OSError):  # not Linux
        return None
    return None if answer in (-1, unsynchronised) else state.maxerror / 1e6
