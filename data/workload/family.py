"""Families of workloads: the same kinds of traffic under other figures, new to a forecaster."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """Figures in which families differ.

    Attributes:
        periods_s: of scheduled jobs, in the order in which they are dealt out.
        delay_s: from an agent's plan to its calls, range.
        retry_after_s: what refused clients are told, range.
        ramp_s: how long crowds take to come, range.
        growth_per_day: by which conversations, API calls and agents grow.
        change: share of the span after which all schedules are others; 1 keeps them.
        leave: share of the span after which the largest chat tenant is gone; 1 keeps it.

    """

    periods_s: tuple[int, ...]
    delay_s: tuple[float, float]
    retry_after_s: tuple[float, float]
    ramp_s: tuple[float, float]
    growth_per_day: float = 0.0
    change: float = 1.0
    leave: float = 1.0


FAMILIES = {
    "base": Family(
        periods_s=(3600, 60, 300, 1800, 600, 900, 120, 1200),
        delay_s=(20.0, 60.0),
        retry_after_s=(10.0, 30.0),
        ramp_s=(120.0, 480.0),
    ),
    # Of three days, schedules change at noon of the second and the tenant leaves on the third.
    "drift": Family(
        periods_s=(2700, 180, 420, 5400, 780, 1500, 240, 1080),
        delay_s=(35.0, 90.0),
        retry_after_s=(15.0, 55.0),
        ramp_s=(60.0, 900.0),
        growth_per_day=0.25,
        change=0.5,
        leave=0.75,
    ),
}
"""By name. The base family is what examples and defaults use; nothing is ever tuned on the other."""
