import numpy as np
import pytest

from data.workload import Settings
from data.workload.calls import NONE, SERVED, SHED, Calls, Sender, single_calls
from data.workload.echoes import shed_and_retry

SENDERS = [Sender("a", "batch", "small"), Sender("b", "premium", "large"), Sender("c", "standard", "small")]


def burst(seed: int = 0, tokens: int = 2_000) -> Calls:
    """Half an hour of calm, one call a second, and 900 calls of three tenants within the tenth minute."""
    random = np.random.default_rng(seed)
    arrived_s = np.sort(np.r_[np.arange(1_800.0), random.uniform(600, 640, 900)])
    count = len(arrived_s)
    return single_calls(
        random,
        np.arange(count) % 3,
        arrived_s,
        np.full(count, tokens),
        np.full(count, 20),
        np.full(count, NONE),
    )


def test_refused_calls_have_no_output_and_end_at_once() -> None:
    calls, _, _, _ = shed_and_retry(Settings(days=1), burst(), SENDERS, 2_000.0)
    shed = calls.outcome == SHED
    assert 300 < shed.sum() < 600
    assert calls.output[shed].max() == 0
    assert (calls.finished_s - calls.arrived_s)[shed].max() < 0.1
    assert calls.arrived_s[shed].min() > 600
    assert calls.arrived_s[shed].max() < 651


def test_the_premium_lane_and_sessions_under_way_are_spared() -> None:
    first = burst()
    session = np.where(np.arange(len(first)) % 2, 5, NONE)
    talking = Calls(*(session if name == "session" else getattr(first, name) for name in Calls.__slots__))
    calls, _, _, _ = shed_and_retry(Settings(days=1), talking, SENDERS, 2_000.0)
    shed = calls.outcome == SHED
    assert shed.any()
    assert set(calls.sender[shed]) == {0, 2}
    assert (calls.session[shed] == NONE).all()


def test_most_come_back_when_they_were_told_to() -> None:
    calls, again, retry_of, causes = shed_and_retry(Settings(days=1), burst(), SENDERS, 2_000.0)
    assert len(again) / (calls.outcome == SHED).sum() == pytest.approx(0.85, abs=0.05)
    assert len(np.unique(retry_of)) == len(retry_of)
    assert (calls.outcome[retry_of] == SHED).all()
    assert (again.sender == calls.sender[retry_of]).all()
    assert (again.prompt == calls.prompt[retry_of]).all()
    wait_s = again.arrived_s - calls.arrived_s[retry_of]
    (cause,) = causes
    told_s = float(cause.detail.split()[0].removeprefix("retry_after_s="))
    assert 10 <= told_s <= 30
    assert told_s <= wait_s.min()
    assert wait_s.max() <= 1.2 * told_s
    assert cause.at_s == again.arrived_s.min()
    assert (again.outcome == SERVED).mean() > 0.9


def test_nothing_is_refused_within_capacity() -> None:
    calls, again, retry_of, causes = shed_and_retry(Settings(days=1), burst(), SENDERS, 100_000.0)
    assert not (calls.outcome == SHED).any()
    assert len(again) == len(retry_of) == len(causes) == 0
