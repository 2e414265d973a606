from datetime import UTC, datetime

import numpy as np
import pytest

from data.workload.rhythm import arrivals, day_curve, hour_and_weekend, moments

MONDAY = datetime(2026, 1, 5, tzinfo=UTC)


def test_hours_and_weekends_are_read_in_utc() -> None:
    hour, weekend = hour_and_weekend(datetime(2026, 1, 9, 22, 30, tzinfo=UTC), np.array([0.0, 2 * 3600.0]))
    assert hour == pytest.approx([22.5, 0.5])
    assert weekend.tolist() == [False, True]


def test_days_are_busier_than_nights_and_weekends_quieter() -> None:
    curves = [day_curve(np.random.default_rng(seed), MONDAY, 7 * 86_400) for seed in range(20)]
    by_hour = np.mean(curves, axis=0).reshape(7, 24, 60).mean(axis=2)
    assert by_hour[:5, 9:16].mean() > 2 * by_hour[:5, 0:5].mean()
    assert by_hour[5:].mean() < 0.85 * by_hour[:5].mean()


def test_arrivals_follow_the_curve_after_the_lead() -> None:
    curve = np.array([1.0, 1.0, 1.0, 3.0])
    at = arrivals(np.random.default_rng(0), curve, expected=40_000, lead_s=120)
    assert np.all(np.diff(at) >= 0)
    counts = np.histogram(at, bins=[-120, 0, 60, 120])[0]
    assert counts == pytest.approx([20_000, 10_000, 30_000], rel=0.05)


def test_moments_are_as_frequent_as_told() -> None:
    at = moments(np.random.default_rng(0), per_day=10, seconds=200 * 86_400)
    assert len(at) == pytest.approx(2_000, rel=0.1)
    assert np.all(np.diff(at) >= 0)
