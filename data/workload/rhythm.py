"""When people are at work: day curves, and arrivals that follow a curve."""

from datetime import datetime

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

GRID_S = 60
"""A curve has one value a minute."""
KNOT_S = 1800
DRIFT_SD = 0.12
"""Slow drift around the day curve, drawn every half hour."""


def hour_and_weekend(start: datetime, at_s: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Hour of the day, UTC, and whether it is Saturday or Sunday."""
    days = (start.timestamp() + at_s) / 86_400
    weekday = (np.floor(days).astype(np.int64) + 3) % 7  # day 0 of the epoch was a Thursday
    return days % 1 * 24, weekday >= 5


def day_curve(
    random: np.random.Generator,
    start: datetime,
    seconds: float,
    lead_s: int = 0,
    growth_per_day: float = 0.0,
) -> Floats:
    """Relative intensity by minute from ``-lead_s`` on: two or three peaks a day, quiet weekends, growth."""
    at_s = np.arange(-lead_s, seconds, GRID_S, dtype=np.float64) + GRID_S / 2
    hour, weekend = hour_and_weekend(start, at_s)
    peaks = np.array([10.0, 14.5, 20.0])[: random.integers(2, 4)]
    peaks = peaks + random.normal(0, 0.8, len(peaks))
    heights = random.uniform(0.6, 1.0, len(peaks))
    widths = random.uniform(1.2, 2.4, len(peaks))
    away = np.abs(hour[:, None] - peaks)
    away = np.minimum(away, 24 - away)
    curve = random.uniform(0.15, 0.35) + (heights * np.exp(-0.5 * (away / widths) ** 2)).sum(axis=1)
    curve = np.where(weekend, curve * random.uniform(0.4, 0.8), curve)
    knots = np.arange(-lead_s, seconds + KNOT_S, KNOT_S)
    drift = np.interp(at_s, knots, random.normal(0, DRIFT_SD, len(knots)))
    drifting: Floats = curve * np.exp(drift) * (1.0 + growth_per_day) ** (at_s / 86_400)
    return drifting


def arrivals(
    random: np.random.Generator, curve: Floats, expected: float, lead_s: int = 0, grid_s: int = GRID_S
) -> Floats:
    """Times in seconds of a Poisson process along a curve, in order; ``expected`` of them after the lead."""
    before = lead_s // grid_s
    cumulative = np.concatenate([[0.0], np.cumsum(curve)])
    total = expected * cumulative[-1] / (cumulative[-1] - cumulative[before])
    at = np.sort(random.random(random.poisson(total))) * cumulative[-1]
    at_s: Floats = np.interp(at, cumulative, np.arange(len(cumulative)) * grid_s) - lead_s
    return at_s


def moments(random: np.random.Generator, per_day: float, seconds: float) -> Floats:
    """Times in seconds of a plain Poisson process, in order."""
    return np.sort(random.uniform(0, seconds, random.poisson(per_day * seconds / 86_400)))
