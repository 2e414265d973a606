"""Strict time order: train, then calibrate, then test, with gaps that no window reaches across."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.errors import InputError
from features.bursts import BASELINE_LAG_S, MEAN_WINDOW_S, MEDIAN_WINDOW_S
from features.ticks import HORIZON_S, SHORT_TRACE_S, TICK_S, warmup_s

CALIBRATE_SHARE = 0.25
"""Share of the time before the test that calibrates; the rest trains."""


@dataclass(frozen=True, slots=True)
class Span:
    """Seconds from the first request: start (included) to end (not included)."""

    start_s: int
    end_s: int

    def holds(self, t_s: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell which of the ticks lie in the span."""
        return (t_s >= self.start_s) & (t_s < self.end_s)


@dataclass(frozen=True, slots=True)
class Split:
    """Spans of a trace and the seconds left out between them."""

    train: Span
    calibrate: Span
    test: Span
    gap_s: int
    warmup_s: int


def split(seconds: int, test_fraction: float) -> Split:
    """Split a trace of ``seconds``; a ``test_fraction`` of 0 leaves the test span empty.

    Gaps are as long as the longest window that a label or its baseline looks back on + 60 s. In a trace under
    two hours, whose windows never fill, they are as long as the baseline's median + 60 s.

    Raises:
        InputError: when the fraction is out of range or the trace too short.

    """
    if not 0.0 <= test_fraction <= 0.9:
        raise InputError(f"Test fraction must be from 0 to 0.9; got {test_fraction}.")
    warmup = warmup_s(seconds)
    window = MEDIAN_WINDOW_S if seconds < SHORT_TRACE_S else MEAN_WINDOW_S
    gap = window + BASELINE_LAG_S + HORIZON_S[1]
    test_start = int(seconds * (1.0 - test_fraction)) // TICK_S * TICK_S if test_fraction else seconds
    calibrate_end = test_start - gap if test_fraction else test_start
    usable = calibrate_end - gap - warmup
    calibrate_start = calibrate_end - max(int(CALIBRATE_SHARE * usable) // TICK_S * TICK_S, TICK_S)
    train_end = calibrate_start - gap
    if train_end - warmup < 20 * TICK_S:
        raise InputError(
            f"The trace spans {seconds:,} s, too short to train, calibrate and test apart: warm-up takes "
            f"{warmup:,} s and each gap {gap:,} s. Use a longer trace or a smaller test fraction."
        )
    return Split(
        Span(warmup, train_end), Span(calibrate_start, calibrate_end), Span(test_start, seconds), gap, warmup
    )
