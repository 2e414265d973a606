"""Lines through measurements of an engine: what its profile rests on, and how well they fit."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from data.errors import InputError
from serving.controller.engine_model import EngineProfile

OUTLIER_FACTOR = 3.0
"""A time this many times what the others say, or as many times shorter, is a fault of its measurement."""
MOST_PLACES = 300
"""Pairs of so many points are compared for the robust line; more are thinned evenly."""

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LineFit:
    """Seconds = base + slope * x.

    Attributes:
        base_s: time at x = 0; may be negative.
        slope_s: time that one more of x takes.
        r2: share of the variance that the line explains.
        residual_p50_s: median distance from the line.
        residual_p95_s: 95 % quantile of it.
        rows: measurements that count.

    """

    base_s: float
    slope_s: float
    r2: float
    residual_p50_s: float
    residual_p95_s: float
    rows: int


@dataclass(frozen=True, slots=True)
class ProfileFit:
    """Fits of one engine.

    Attributes:
        prefill: seconds over the prompt tokens of a batch.
        decode: seconds of a step over the requests of a batch.
        prefill_floor_s: the shortest prefill seen, as a median of repeated runs.
        outliers: measurements left out.

    """

    prefill: LineFit
    decode: LineFit
    prefill_floor_s: float
    outliers: int

    def profile(self, name: str, kv_blocks: int, block_tokens: int = 16) -> EngineProfile:
        """Profile for the rules; times don't tell the room for KV blocks.

        Raises:
            InputError: when a number can't be, such as a decode step that shrinks as the batch grows.

        """
        return EngineProfile(
            name=name,
            prefill_base_s=self.prefill.base_s,
            prefill_s_per_token=self.prefill.slope_s,
            prefill_floor_s=self.prefill_floor_s,
            decode_base_s=self.decode.base_s,
            decode_s_per_request=self.decode.slope_s,
            kv_blocks=kv_blocks,
            block_tokens=block_tokens,
        )


def fit_profile(prompt_tokens: Vector, batch: Vector, prefill_s: Vector, decode_step_s: Vector) -> ProfileFit:
    """Fit an engine's two lines; every vector has one entry a measurement.

    A run with an outlier in one of its times is left out of both lines.

    Raises:
        InputError: when a line has measurements at fewer than two places.

    """
    tokens = prompt_tokens * batch
    kept = plausible(tokens, prefill_s, "prompt tokens") & plausible(batch, decode_step_s, "batch sizes")
    return ProfileFit(
        prefill=fit_line(tokens[kept], prefill_s[kept], "prompt tokens"),
        decode=fit_line(batch[kept], decode_step_s[kept], "batch sizes"),
        prefill_floor_s=float(np.min(_medians(tokens[kept], prefill_s[kept])[1])),
        outliers=int((~kept).sum()),
    )


def plausible(x: Vector, y_s: Vector, what: str = "places") -> npt.NDArray[np.bool_]:
    """Which measurements a robust line doesn't contradict by a factor of 3.

    The line (Theil, 1950; Sen, 1968) goes through the medians of repeated measurements and has the median
    slope of all pairs. Small prompts take the least time that an engine can, so the line isn't asked below
    the lowest median.

    >>> plausible(np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([0.5, 0.6, 40.0, 0.8, 0.9])).tolist()
    [True, True, False, True, True]

    Raises:
        InputError: when there are fewer than two different x.

    """
    places, medians_s = _medians(x, y_s)
    if len(places) < 2:
        raise InputError(f"A line needs measurements at two or more {what}; got {len(places)}.")
    if len(places) > MOST_PLACES:
        thin = np.linspace(0, len(places) - 1, MOST_PLACES).astype(int)
        places, medians_s = places[thin], medians_s[thin]
    first, second = np.triu_indices(len(places), k=1)
    slope = np.median((medians_s[second] - medians_s[first]) / (places[second] - places[first]))
    expected_s = np.maximum(np.median(medians_s - slope * places) + slope * x, np.min(medians_s))
    return (y_s < expected_s * OUTLIER_FACTOR) & (y_s > expected_s / OUTLIER_FACTOR)


def fit_line(x: Vector, y_s: Vector, what: str = "places") -> LineFit:
    """Least squares.

    >>> fit = fit_line(np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.75, 1.0, 1.25, 1.5]))
    >>> round(fit.base_s, 6), round(fit.slope_s, 6), round(fit.r2, 6)
    (0.5, 0.25, 1.0)

    Raises:
        InputError: when there are fewer than two different x.

    """
    if len(np.unique(x)) < 2:
        raise InputError(f"A line needs plausible measurements at two or more {what}; got fewer.")
    base_s, slope_s = np.polynomial.polynomial.polyfit(x, y_s, 1)
    residual_s = y_s - (base_s + slope_s * x)
    variance = float(np.var(y_s))
    return LineFit(
        base_s=float(base_s),
        slope_s=float(slope_s),
        r2=1.0 - float(np.mean(residual_s**2)) / variance if variance > 0 else float("nan"),
        residual_p50_s=float(np.quantile(np.abs(residual_s), 0.5)),
        residual_p95_s=float(np.quantile(np.abs(residual_s), 0.95)),
        rows=len(x),
    )


def _medians(x: Vector, y_s: Vector) -> tuple[Vector, Vector]:
    """Different x, ascending, and the median time at each."""
    places, cell = np.unique(x, return_inverse=True)
    order = np.lexsort((y_s, cell))
    start = np.searchsorted(cell[order], np.arange(len(places)))
    end = np.append(start[1:], len(x))
    sorted_s = y_s[order]
    return places, (sorted_s[(start + end - 1) // 2] + sorted_s[(start + end) // 2]) / 2
