from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from data.workload import Settings
from data.workload.calls import Sender
from data.workload.family import FAMILIES
from data.workload.jobs import Job, draw_jobs, run_jobs

HOURLY = Job(
    tenant="job-00",
    sender=0,
    period_s=600,
    phase_s=120,
    jitter_s=2.0,
    skip=0.1,
    hours=None,
    spread_s=8.0,
    calls=20.0,
    size_sigma=0.3,
    ln_median=np.log([500.0, 50.0]),
    sigma=np.array([0.3, 0.3]),
)


def test_runs_come_on_the_period_with_jitter_and_some_are_skipped() -> None:
    settings = Settings(days=14, start=datetime(2026, 1, 5, 7, 1, tzinfo=UTC))
    _, causes = run_jobs(settings, [HOURLY])
    utc_s = settings.start.timestamp() + np.array([cause.at_s for cause in causes])
    late_s = (utc_s - HOURLY.phase_s + 300) % 600 - 300
    assert abs(late_s.mean()) < 0.3
    assert late_s.std() == pytest.approx(2.0, rel=0.1)
    assert np.abs(late_s).max() < 12
    assert len(causes) / (14 * 144) == pytest.approx(0.9, abs=0.03)
    turns = np.rint(np.diff(utc_s) / 600)
    assert turns.min() == 1
    assert 2 <= turns.max() <= 5


def test_a_run_sends_its_calls_within_its_spread() -> None:
    calls, causes = run_jobs(Settings(days=1), [HOURLY])
    starts = np.array([cause.at_s for cause in causes])
    run = np.searchsorted(starts, calls[0].arrived_s, side="right") - 1
    after_s = calls[0].arrived_s - starts[run]
    assert after_s.min() == 0
    assert after_s.max() <= 8
    assert np.median(np.bincount(run)) == pytest.approx(20, abs=3)
    told = sum(int(cause.detail.split("work_tokens=")[1]) for cause in causes)
    assert told == (calls[0].prompt + calls[0].output).sum()


def test_a_job_for_working_days_rests_at_night_and_on_weekends() -> None:
    settings = Settings(days=7)
    _, causes = run_jobs(settings, [replace(HOURLY, hours=(8.0, 18.0))])
    at_s = np.array([cause.at_s for cause in causes])
    hour = at_s % 86_400 / 3600
    assert hour.min() > 7.9
    assert hour.max() < 18.1
    assert at_s.max() < 5 * 86_400


def test_one_more_job_leaves_the_others_as_they_are() -> None:
    alone, _ = run_jobs(Settings(days=1), [HOURLY])
    both, _ = run_jobs(Settings(days=1), [HOURLY, replace(HOURLY, period_s=300)])
    assert np.array_equal(alone[0].arrived_s, both[0].arrived_s)


@pytest.mark.parametrize("seed", range(5))
def test_every_workload_has_jobs_of_each_period_and_short_ones_are_light(seed: int) -> None:
    settings = Settings(seed=seed)
    jobs, senders = draw_jobs(settings, 4_000.0, [Sender("chat-00", "premium", "large")], first_sender=1)
    assert 15 <= len(jobs) <= 25
    assert {job.period_s for job in jobs} == set(FAMILIES["base"].periods_s)
    assert [job.sender for job in jobs] == list(range(1, 1 + len(senders)))
    assert all(sender.model == "small" for sender in senders)
    assert all(0 <= job.phase_s < job.period_s for job in jobs)

    def busiest_10_s(job: Job) -> float:
        run = job.calls * np.exp(job.ln_median + job.sigma**2 / 2).sum()
        return float(run / max(10.0, job.spread_s) / 4_000)

    frequent = [busiest_10_s(job) for job in jobs if job.period_s < 300]
    assert max(frequent) < 0.3
    heavy = [job for job in jobs if busiest_10_s(job) > 1.5]
    assert heavy
    assert all(job.period_s >= 600 for job in heavy)
