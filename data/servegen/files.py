"""ServeGen windows as they come: the published folder of a pool, or Parquet files of windows and lengths.

The folder has, for each client, chunk-N-trace.csv (start_s, rate, cv, family, shape, scale; no header; an
idle window reads `600,0,0,,0,0`) and chunk-N-dataset.json (by window: input_tokens and output_tokens, each a
string that holds a Python dict of tokens and shares).

The Parquet files have pool, client, window_start_s, and rate_rps, family, param_1 (shape), param_2 (scale);
or input_mean, input_p50, input_p95, input_p99, and the same of output.
"""

import ast
import csv
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from data.errors import InputError
from data.servegen.pool import WINDOW_S, Client, Empirical, Lengths, LogNormal, Pool, Window

FAMILIES = ("Gamma", "Weibull")
SMALLEST_SHAPE = 0.005
"""Below it a process is one crowd in an endless silence, and its numbers overflow."""
JSON_BYTES = 256 << 20
LITERAL_CHARS = 8 << 20
"""The longest Python dict that is read; parsing takes about a hundred times as much memory."""
WINDOW_COLUMNS = ("pool", "client", "window_start_s", "rate_rps", "family", "param_1")
STATISTICS = ("mean", "p50", "p95", "p99")
LENGTH_COLUMNS = tuple(f"{axis}_{name}" for axis in ("input", "output") for name in STATISTICS)


def read_pool(windows: str | Path, lengths: str | Path | None = None, pool: str | None = None) -> Pool:
    """Read a pool from a folder, or from Parquet files of windows and lengths that `pool` is chosen from.

    Raises InputError for what can't be read, for a pool that isn't there, and
    for one without any lengths; a client without lengths has those of another, and is noted.
    """
    windows = Path(windows)
    if windows.is_dir():
        return _read_folder(windows)
    if lengths is None:
        raise InputError(f"{windows} must come with the file of its clients' lengths: --lengths")
    return _read_parquet(windows, Path(lengths), pool)


def _read_parquet(path: Path, lengths: Path, pool: str | None) -> Pool:
    frame = _parquet(path, WINDOW_COLUMNS)
    pools = sorted(frame["pool"].unique())
    if pool is None and len(pools) == 1:
        pool = pools[0]
    if pool is None or pool not in pools:
        raise InputError(f"pool must be one of {', '.join(pools)}; got {pool and repr(pool)}")
    measured = _parquet(lengths, ("pool", "client", "window_start_s", *LENGTH_COLUMNS))
    by_client: dict[int, dict[int, tuple[Lengths, Lengths]]] = {}
    for row in measured.filter(pool=pool).iter_rows(named=True):
        prompt, output = (
            LogNormal(*(_positive(row[f"{axis}_{name}"], lengths) for name in STATISTICS))
            for axis in ("input", "output")
        )
        by_client.setdefault(row["client"], {})[row["window_start_s"]] = (prompt, output)
    found: dict[int, dict[int, Window]] = {}
    for client, start_s, rate, family, shape in (
        frame.filter(pool=pool)
        .select("client", "window_start_s", "rate_rps", "family", "param_1")
        .sort("client", "window_start_s")
        .iter_rows()
    ):
        window = _window(rate, family, shape, f"{path}, client {client} at {start_s} s")
        if window:
            found.setdefault(client, {})[start_s] = window
    return _pool(pool, found, by_client, lengths)


def _parquet(path: Path, columns: tuple[str, ...]) -> pl.DataFrame:
    try:
        frame = pl.read_parquet(path, glob=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{path} can't be read as Parquet: {str(error).splitlines()[0]}") from error
    for name in columns:
        if name not in frame.columns:
            raise InputError(f"{path} must have the columns {', '.join(columns)}; it has no '{name}'")
    return frame


def _read_folder(folder: Path) -> Pool:
    found: dict[int, dict[int, Window]] = {}
    lengths: dict[int, dict[int, tuple[Lengths, Lengths]]] = {}
    for path in folder.iterdir():
        if named := re.fullmatch(r"chunk-(\d+)-trace\.csv", path.name):
            found[int(named[1])] = _read_windows(path)
        elif named := re.fullmatch(r"chunk-(\d+)-dataset\.json", path.name):
            lengths[int(named[1])] = _read_lengths(path)
    if not found:
        raise InputError(f"{folder} must hold files named chunk-N-trace.csv; there is none")
    return _pool(folder.resolve().name, found, lengths, folder)


def _read_windows(path: Path) -> dict[int, Window]:
    windows: dict[int, Window] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.reader(file), 1):
            if not row:
                continue
            where = f"{path} line {number}"
            try:
                start, rate, _, family, shape, _ = row
                window = _window(float(rate), family, float(shape or 0), where)
                start_s = int(float(start))
            except (ValueError, OverflowError) as error:
                raise InputError(
                    f"{where} must read start_s, rate, cv, family, shape, scale; got {','.join(row)[:100]!r}"
                ) from error
            if window:
                windows[start_s] = window
    return windows


def _window(rate: float, family: str | None, shape: float, where: str) -> Window | None:
    """A window, or None for an idle one."""
    if rate == 0:
        return None
    known = {name.lower(): name for name in FAMILIES}.get((family or "").lower())
    if known is None:
        raise InputError(f"{where}: family must be one of {', '.join(FAMILIES)}; got '{family}'")
    if not (math.isfinite(rate) and rate > 0 and math.isfinite(shape) and shape >= SMALLEST_SHAPE):
        raise InputError(
            f"{where}: rate must be above 0 and shape at least {SMALLEST_SHAPE}; got {rate:g} and {shape:g}"
        )
    return Window(rate, known, shape)


def _read_lengths(path: Path) -> dict[int, tuple[Lengths, Lengths]]:
    if path.stat().st_size > JSON_BYTES:
        raise InputError(f"{path} must have at most {JSON_BYTES:,} bytes; it has {path.stat().st_size:,}")
    try:
        content = json.loads(path.read_bytes())
        windows = {int(float(start_s)): window for start_s, window in content.items()}
        return {
            start_s: (_empirical(window["input_tokens"], path), _empirical(window["output_tokens"], path))
            for start_s, window in windows.items()
            if window
        }
    except (ValueError, OverflowError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{path} must hold, by window, input_tokens and output_tokens as dicts of tokens and shares; "
            f"reading it gives {type(error).__name__}: {error}"
        ) from error


def _empirical(literal: object, path: Path) -> Empirical:
    """A distribution from the text of a Python dict; nothing in it is executed."""
    if not isinstance(literal, str) or len(literal) > LITERAL_CHARS:
        raise InputError(f"{path}: a distribution must be a string of at most {LITERAL_CHARS:,} characters")
    try:
        counted = ast.literal_eval(literal)
    except (SyntaxError, MemoryError) as error:
        raise ValueError(f"not a Python dict: {literal[:60]!r}") from error
    if not isinstance(counted, Mapping) or not counted:
        raise ValueError(f"not a dict with entries: {literal[:60]!r}")
    tokens = np.array([float(key) for key in counted])
    shares = np.array([float(share) for share in counted.values()])
    if not (
        np.isfinite(tokens).all() and np.isfinite(shares).all() and tokens.min() >= 0 and shares.min() >= 0
    ):
        raise ValueError("tokens and shares must be numbers from 0 up")
    if shares.sum() <= 0:
        raise ValueError("shares must not all be 0")
    order = np.argsort(tokens)
    return Empirical(np.rint(tokens[order]).astype(np.int64), np.cumsum(shares[order]) / shares.sum())


def _positive(value: float | None, path: Path) -> float:
    if value is None or not math.isfinite(value) or value < 0:
        raise InputError(f"{path}: lengths must be numbers from 0 up; got {value}")
    return max(float(value), 1.0)


def _pool(
    name: str,
    windows: dict[int, dict[int, Window]],
    lengths: dict[int, dict[int, tuple[Lengths, Lengths]]],
    path: Path,
) -> Pool:
    clients = {number: windows[number] for number in sorted(windows) if windows[number]}
    for number, found in clients.items():
        odd = [start_s for start_s in found if start_s < 0 or start_s % WINDOW_S]
        if odd:
            raise InputError(f"windows must start every {WINDOW_S} s; client {number} has one at {odd[0]} s")
    if not clients:
        raise InputError(f"{path} must have a window that is not idle")
    span_s = max(start_s for found in clients.values() for start_s in found) + WINDOW_S
    givers = [number for number in clients if lengths.get(number)]
    if not givers:
        raise InputError(f"{path} must have the lengths of a client of {name}; it has none")
    borrowers = tuple(number for number in clients if not lengths.get(number))
    # Their arrivals may be most of the pool's. One giver each, not a mixture: a client's lengths are alike.
    for number in borrowers:
        giver = np.random.default_rng(number).choice(givers)
        lengths[number] = lengths[giver]
    return Pool(name, tuple(Client(n, found, lengths[n]) for n, found in clients.items()), span_s, borrowers)
