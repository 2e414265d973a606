"""A drawn trace on disk: Parquet that says of itself that it is semi-synthetic."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import polars as pl

from data.errors import InputError
from data.readers.sniff import SEMI_SYNTHETIC
from data.servegen.draw import draw_requests
from data.servegen.pool import WINDOW_S, Pool

PART_ROWS = 1_000_000
MAX_REQUESTS = 100_000_000
DAY_S = 86_400


def write_trace(
    pool: Pool,
    path: str | Path,
    *,
    days: float,
    seed: int = 0,
    requests_per_s: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Draw the first `days` of a pool and write them as a Tidegate trace in Parquet; the number of requests.

    `requests_per_s` is the mean rate that the pool's is scaled to; by default its own. Requests arrive from
    the Unix epoch on, since the windows have no date. `progress` is called with the requests of each window.
    Memory does not grow with the trace.

    Raises InputError for a path that does not end in .parquet or can't be written, for more days than the
    windows cover, and for more than MAX_REQUESTS requests.
    """
    path = Path(path)
    if path.suffix.lower() != ".parquet":
        raise InputError(f"the trace's name must end in .parquet, where its mark is kept; got '{path.name}'")
    if not path.parent.is_dir():
        raise InputError(f"the folder {path.parent} does not exist; make it or choose another")
    span_s = round(days * DAY_S / WINDOW_S) * WINDOW_S
    if not 0 < span_s <= pool.span_s:
        raise InputError(
            f"days must be from {WINDOW_S / DAY_S:.3g} to {pool.span_s / DAY_S:g}, which is what the windows "
            f"of {pool.name} cover; got {days:g}"
        )
    own = pool.requests(span_s)
    if own <= 0:
        raise InputError(
            f"{pool.name} must have requests in its first {days:g} days; its clients are idle there"
        )
    scale = 1.0 if requests_per_s is None else requests_per_s * span_s / own
    if not 0 < own * scale <= MAX_REQUESTS:
        raise InputError(
            f"a trace must have from 1 to {MAX_REQUESTS:,} requests; {days:g} days of {pool.name} at "
            f"{own * scale / span_s:,.4g} requests/s would have {own * scale:,.0f}. Give fewer days or a rate"
        )
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".servegen-") as folder:
            rows = 0
            parts: list[Path] = []
            waiting: list[pl.DataFrame] = []
            for frame in draw_requests(pool, span_s, seed=seed, scale=scale):
                waiting.append(frame)
                rows += frame.height
                if sum(part.height for part in waiting) >= PART_ROWS:
                    parts.append(_write_part(waiting, Path(folder), len(parts)))
                if progress:
                    progress(frame.height)
            if not rows:
                raise InputError(
                    f"no request came in {days:g} days with seed {seed}; give more days or a rate"
                )
            if waiting:
                parts.append(_write_part(waiting, Path(folder), len(parts)))
            whole = Path(folder) / "whole.parquet"
            pl.scan_parquet(parts, glob=False).sink_parquet(whole, metadata={SEMI_SYNTHETIC: "true"})
            whole.replace(path)
    except OSError as error:
        raise InputError(f"the trace can't be written to {path}: {error}") from error
    return rows


def _write_part(waiting: list[pl.DataFrame], folder: Path, number: int) -> Path:
    path = folder / f"{number:06}.parquet"
    pl.concat(waiting).write_parquet(path)
    waiting.clear()
    return path
