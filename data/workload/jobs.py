"""Scheduled jobs: runs on a period, with a jittered start, now and then skipped."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.workload.calls import Calls, Cause, Floats, Ints, Sender
from data.workload.rhythm import hour_and_weekend
from data.workload.settings import Settings, stream
from data.workload.volleys import sizes, volleys

HEAVY_FROM_S = 600
HEAVY_RUNS_PER_DAY = 75
"""Jobs are made heavy until their runs come to this many a weekday."""
HEAVY_LOAD = (1.8, 3.2)
MIDDLE_LOAD = (0.12, 0.4)
FREQUENT_LOAD = (0.05, 0.15)
"""Size of a run: load of its busiest 10 s, as a multiple of the mean base load."""
FREQUENT_BELOW_S = 300
MAX_RUN_CALLS = 20_000


@dataclass(frozen=True, slots=True)
class Job:
    """One schedule and what its runs send.

    Attributes:
        tenant: who owns it.
        sender: index of its sender.
        period_s, phase_s: a run is due when UTC is phase_s past a multiple of period_s.
        jitter_s: standard deviation of the start.
        skip: share of runs that don't happen.
        hours: first and last hour, UTC, of a job for working days; None for one that runs round the clock.
        spread_s: seconds over which a run sends its calls.
        calls: median calls of a run.
        size_sigma: log-normal scatter of that count.
        ln_median, sigma: log-normal lengths of a call, prompt and output, shape (2,).

    """

    tenant: str
    sender: int
    period_s: int
    phase_s: int
    jitter_s: float
    skip: float
    hours: tuple[float, float] | None
    spread_s: float
    calls: float
    size_sigma: float
    ln_median: Floats
    sigma: Floats


def draw_jobs(
    settings: Settings, load_tokens_per_s: float, chat: list[Sender], first_sender: int, era: str = ""
) -> tuple[list[Job], list[Sender]]:
    """Draw 15-25 jobs, sized by the mean base load, and their senders; those of another era are others."""
    random = stream(settings.seed, f"jobs{era}")
    count = int(random.integers(15, 26))
    period = np.resize(settings.figures.periods_s, count)
    limited = _limited_hours(random, period)
    heavy = _heavy(random, period, limited)
    jobs, senders = [], []
    for i in range(count):
        owner = chat[int(random.integers(len(chat)))]
        tenant = f"job{era}-{i:02}" if random.random() < 0.7 else owner.tenant
        model = "large" if owner.model == "small" and tenant == owner.tenant else "small"
        senders.append(Sender(tenant, "batch" if random.random() < 0.85 else "standard", model))
        spread_s = random.uniform(3, 20)
        size = HEAVY_LOAD if heavy[i] else MIDDLE_LOAD if period[i] >= FREQUENT_BELOW_S else FREQUENT_LOAD
        run_tokens = random.uniform(*size) * load_tokens_per_s * max(10.0, spread_s)
        shorter = 0.15 if period[i] < FREQUENT_BELOW_S else 1.0
        ln_median = np.log(np.array([random.uniform(300, 1500), random.uniform(30, 250)]) * shorter)
        sigma = random.uniform(0.2, 0.6, 2)
        on_the_hour = random.random() < 0.4
        minutes = int(period[i]) // 60
        opens = 8 + random.uniform(-1, 1)
        jobs.append(
            Job(
                tenant=tenant,
                sender=first_sender + i,
                period_s=int(period[i]),
                phase_s=0
                if on_the_hour
                else 60 * int(random.integers(minutes)) + int(random.integers(0, 45)),
                jitter_s=random.uniform(1, 6),
                skip=random.uniform(0.02, 0.15),
                hours=(opens, opens + random.uniform(9, 11)) if limited[i] else None,
                spread_s=spread_s,
                calls=max(1.0, run_tokens / float(np.exp(ln_median + sigma**2 / 2).sum())),
                size_sigma=random.uniform(0.2, 0.4),
                ln_median=ln_median,
                sigma=sigma,
            )
        )
    return jobs, senders


def _limited_hours(random: np.random.Generator, period: Ints) -> NDArray[np.bool_]:
    """Which jobs run in working hours only: most of those that are due often."""
    return random.random(len(period)) < np.where(period < 1800, 0.5, 0.25)


def _heavy(random: np.random.Generator, period: Ints, limited: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which jobs double the load by themselves: any that aren't due too often, until the day has enough."""
    runs_per_day = np.where(limited, 10 * 3600, 24 * 3600) / period
    heavy = np.zeros(len(period), dtype=bool)
    for i in random.permutation(np.flatnonzero(period >= HEAVY_FROM_S)):
        heavy[i] = runs_per_day[heavy].sum() + runs_per_day[i] <= HEAVY_RUNS_PER_DAY
    return heavy


def run_jobs(
    settings: Settings, jobs: list[Job], era: str = "", share: tuple[float, float] = (0.0, 1.0)
) -> tuple[list[Calls], list[Cause]]:
    """Calls of all runs that start within that share of the span, and a cause for each run."""
    first_s, end_s = (edge * settings.span_s for edge in share)
    parts, causes = [], []
    for i, job in enumerate(jobs):
        # A stream for each job: one more job leaves the runs of the others as they are.
        random = stream(settings.seed, f"job{era} {i}")
        due_s = _due(random, settings, job)
        if share != (0.0, 1.0):
            due_s = due_s[(due_s >= first_s) & (due_s < end_s)]
        calls, found = _runs(random, job, due_s)
        parts.append(calls)
        causes.extend(found)
    return parts, causes


def _due(random: np.random.Generator, settings: Settings, job: Job) -> Floats:
    """Starts of the runs that happen, jitter included."""
    origin_s = settings.start.timestamp()
    first = np.ceil((origin_s - job.phase_s) / job.period_s) * job.period_s + job.phase_s - origin_s
    due_s = np.arange(first, settings.span_s, job.period_s)
    happens = random.random(len(due_s)) >= job.skip
    start_s = due_s + job.jitter_s * random.standard_normal(len(due_s))
    if job.hours is not None:
        hour, weekend = hour_and_weekend(settings.start, due_s)
        happens &= (hour >= job.hours[0]) & (hour < job.hours[1]) & ~weekend
    return start_s[happens]


def _runs(random: np.random.Generator, job: Job, start_s: Floats) -> tuple[Calls, list[Cause]]:
    size = job.calls * np.exp(job.size_sigma * random.standard_normal(len(start_s)))
    counts = np.clip(np.rint(size), 1, MAX_RUN_CALLS).astype(np.int64)
    calls = volleys(
        random,
        np.full(len(counts), job.sender),
        start_s,
        counts,
        np.full(len(counts), job.spread_s),
        job.ln_median,
        job.sigma,
    )
    detail = f"period_s={job.period_s} phase_s={job.phase_s}"
    return calls, [
        Cause(at, "cron", job.tenant, f"{detail} {figures}")
        for at, figures in zip(start_s.tolist(), sizes(calls, counts), strict=True)
    ]
