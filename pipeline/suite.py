"""The fixed suite of traces that every change of the forecaster is judged on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from data.errors import InputError
from data.readers import sniff
from data.servegen import read_pool, write_trace
from data.workload import Settings, generate, write
from data.workload.family import FAMILIES
from data.workload.noise import poisson_noise

SERVEGEN = ("servegen_arrivals.parquet", "servegen_lengths.parquet")
POOL = "m-large"

Expected = Literal["skill", "harmless", "noise", "refused"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How long and how busy the traces are; those of the suite are the defaults."""

    seeds: int = 5
    days: float = 3.0
    requests_per_s: float = 8.5
    servegen_days: float = 7.0
    servegen_per_s: float = 5.0
    noise_days: float = 3.0
    noise_per_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Case:
    """One trace of the suite.

    Attributes:
        name: also that of its folder.
        recipe: all that it is made from, in words; another recipe is another case.
        expected: "skill" is held against the targets, "harmless" against the false-alarm rate alone;
            "noise" has nothing to find, and "refused" nothing to forecast, which has to be said.
        make: writes the trace into a folder, or finds it elsewhere, and returns its path.

    """

    name: str
    recipe: str
    expected: Expected
    make: Callable[[Path], Path]


def suite(traces: Path | None, sizes: Sizes | None = None) -> list[Case]:
    """All cases, in order; those of real traces and of ServeGen only where a folder has their files."""
    sizes = sizes or Sizes()
    length = f"{sizes.days:g} days at {sizes.requests_per_s:g} requests/s"
    cases = [
        Case(
            f"{'synthetic' if family == 'base' else family}-{seed}",
            f"synth, family {family}, seed {seed}, {length}",
            "skill",
            partial(_synthetic, Settings(sizes.days, seed, sizes.requests_per_s, family=family)),
        )
        for family in FAMILIES
        for seed in range(sizes.seeds)
    ]
    cases += [] if traces is None else [*_real(traces), *_servegen(traces, sizes)]
    length = f"{sizes.noise_days:g} days at {sizes.noise_per_s:g} requests/s"
    cases.append(Case("poisson", f"Poisson noise, {length}", "noise", partial(_noise, sizes, True)))
    cases.append(Case("zeros", f"requests without work, {length}", "refused", partial(_noise, sizes, False)))
    return cases


def chosen(cases: Sequence[Case], only: Sequence[str]) -> list[Case]:
    """Cases whose name is asked for, or starts with it and a dash: "drift" is drift-0, drift-1 and so on.

    Raises:
        InputError: when a name fits none.

    """
    for name in only:
        if not any(_fits(case, name) for case in cases):
            raise InputError(
                f"--only must be one of {', '.join(case.name for case in cases)}, or what several of them "
                f"start with; got '{name}'"
            )
    return [case for case in cases if not only or any(_fits(case, name) for name in only)]


def _fits(case: Case, name: str) -> bool:
    return case.name == name or case.name.startswith(f"{name}-")


def _synthetic(settings: Settings, folder: Path) -> Path:
    path = folder / "trace.parquet"
    write(generate(settings), path)
    return path


def _noise(sizes: Sizes, work: bool, folder: Path) -> Path:
    path = folder / "trace.parquet"
    poisson_noise(sizes.noise_days, sizes.noise_per_s, seed=0, work=work).write_parquet(path)
    return path


def _real(traces: Path) -> list[Case]:
    """Files of the folder that are traces of requests; others, such as tables of a benchmark, are not."""
    cases = []
    for path in sorted(traces.iterdir()):
        if path.name in SERVEGEN or not path.is_file():
            continue
        try:
            form = sniff(path)
        except InputError:
            continue
        what = f"{path.name}, {form.name}, {path.stat().st_size:,} bytes"
        cases.append(Case(path.name.partition(".")[0], what, "harmless", partial(_found, path)))
    return cases


def _found(path: Path, _: Path) -> Path:
    return path


def _servegen(traces: Path, sizes: Sizes) -> list[Case]:
    files = [traces / name for name in SERVEGEN]
    if not all(path.is_file() for path in files):
        return []
    days, per_s = sizes.servegen_days, sizes.servegen_per_s

    def draw(folder: Path) -> Path:
        path = folder / "trace.parquet"
        write_trace(read_pool(files[0], files[1], POOL), path, days=days, requests_per_s=per_s)
        return path

    recipe = f"ServeGen {POOL}, semi-synthetic, {days:g} days at {per_s:g} requests/s"
    return [Case(f"servegen-{POOL}", recipe, "harmless", draw)]
