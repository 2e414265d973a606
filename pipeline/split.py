"""Strict time order: train, then calibrate, then test, with gaps that no window reaches across."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from data.errors import InputError
from features.bursts import BASELINE_LAG_S, MEAN_WINDOW_S, MEDIAN_WINDOW_S
from features.ticks import HORIZON_S, SHORT_TRACE_S, TICK_S, warmup_s

DAY_S = 86_400
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
    start = int(seconds * (1.0 - test_fraction)) // TICK_S * TICK_S if test_fraction else seconds
    return _before(Span(start, seconds), seconds)


def walk_forward(seconds: int) -> list[Split]:
    """A split for each day of a trace but the first: trained and calibrated on all before it, tested on it.

    Days are those from the first request; a last part of less than half a day belongs to the day before it.

    Raises:
        InputError: when the trace spans less than two days.

    """
    count = days(seconds)
    if count < 2:
        raise InputError(
            f"Walk-forward needs a trace of two days or more; got {seconds:,} s. "
            "Test on its last part instead."
        )
    edges = [*range(DAY_S, count * DAY_S, DAY_S), seconds]
    return [_before(Span(*span), seconds) for span in pairwise(edges)]


def days(seconds: int) -> int:
    """Whole days of a trace, a last part of half a day or more counted as one.

    >>> days(259_199), days(3_600), days(130_000)
    (3, 0, 2)
    """
    return (seconds + DAY_S // 2) // DAY_S


def _before(test: Span, seconds: int) -> Split:
    """What trains and calibrates before a test span, which may be empty at the end of the trace."""
    warmup = warmup_s(seconds)
    window = MEDIAN_WINDOW_S if seconds < SHORT_TRACE_S else MEAN_WINDOW_S
    gap = window + BASELINE_LAG_S + HORIZON_S[1]
    calibrate_end = test.start_s - (gap if test.start_s < test.end_s else 0)
    usable = calibrate_end - gap - warmup
    calibrate_start = calibrate_end - max(int(CALIBRATE_SHARE * usable) // TICK_S * TICK_S, TICK_S)
    train_end = calibrate_start - gap
    if train_end - warmup < 20 * TICK_S:
        raise InputError(
            f"The trace spans {seconds:,} s, too short to train, calibrate and test apart: warm-up takes "
            f"{warmup:,} s and each gap {gap:,} s. Use a longer trace or a smaller test fraction."
        )
    return Split(Span(warmup, train_end), Span(calibrate_start, calibrate_end), test, gap, warmup)
