"""What a synthetic workload is made from, and the random streams it is made with."""

import math
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from data.errors import InputError
from data.workload.family import FAMILIES, Family

DAY_S = 86_400
MIN_SPAN_S = 600
MAX_DAYS = 366.0
MIN_REQUESTS_PER_S = 0.5
MAX_REQUESTS = 100_000_000


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a workload; the same settings give the same workload, everywhere.

    Attributes:
        days: span in days of 86,400 s.
        seed: of every random draw.
        requests_per_s: mean offered rate over the span, causes included.
        start: midnight or any other moment with a time zone; hours and weekdays are read in UTC.
        lengths: Parquet file of per-client token lengths to draw tenants from, with the columns input_mean,
            input_p50, input_p95, output_mean, output_p50 and output_p95; None for the built-in figures.
        chat_tenants: how many tenants hold conversations.
        family: name of the figures that it follows, one of data.workload.family.FAMILIES.

    Raises:
        InputError: when a setting is out of range.

    """

    days: float = 3.0
    seed: int = 0
    requests_per_s: float = 8.5
    start: datetime = datetime(2026, 1, 5, tzinfo=UTC)
    lengths: Path | None = None
    chat_tenants: int = 30
    family: str = "base"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.days) and MIN_SPAN_S / DAY_S <= self.days <= MAX_DAYS):
            raise InputError(
                f"days must be from {MIN_SPAN_S / DAY_S:.4f} to {MAX_DAYS:g}; got {self.days!r}."
            )
        if self.seed < 0:
            raise InputError(f"seed must be a whole number from 0 on; got {self.seed!r}.")
        if not (math.isfinite(self.requests_per_s) and self.requests_per_s >= MIN_REQUESTS_PER_S):
            raise InputError(
                f"requests_per_s must be at least {MIN_REQUESTS_PER_S}: below it scheduled jobs alone would "
                f"send more; got {self.requests_per_s!r}."
            )
        if self.days * DAY_S * self.requests_per_s > MAX_REQUESTS:
            raise InputError(
                f"days x requests_per_s must come to at most {MAX_REQUESTS:,} requests; got {self.days:g} "
                f"days at {self.requests_per_s:g} requests/s. Write several shorter workloads instead."
            )
        if self.start.tzinfo is None:
            raise InputError(f"start must have a time zone, such as +00:00; got {self.start.isoformat()!r}.")
        if self.chat_tenants < 1:
            raise InputError(f"chat_tenants must be at least 1; got {self.chat_tenants!r}.")
        if self.family not in FAMILIES:
            raise InputError(f"family must be one of {', '.join(FAMILIES)}; got {self.family!r}.")

    @property
    def span_s(self) -> float:
        """Length of the workload in seconds."""
        return self.days * DAY_S

    @property
    def figures(self) -> Family:
        """What the family says."""
        return FAMILIES[self.family]


def stream(seed: int, component: str) -> np.random.Generator:
    """The random numbers of one component: a new component does not change those of the others.

    >>> float(stream(0, "jobs").random()) == float(stream(0, "jobs").random())
    True
    >>> float(stream(0, "jobs").random()) == float(stream(0, "agents").random())
    False
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(zlib.crc32(component.encode()),)))
