import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.due import TICKS, find_recurring
from features.flows import FlowSeconds, flow_seconds
from features.recurrence import Recurrence
from features.scenarios import Level
from features.ticks import TICK_S
from tests.features.frames import frame, random_frame


def plain(flows: FlowSeconds, t_s: np.ndarray, level: Level) -> list[tuple[np.ndarray, np.ndarray]]:
    """What is due, second by second and tick by tick."""
    recurrence, entry, told = Recurrence(), 0, []
    for tick, at_s in enumerate(t_s.tolist()):
        while entry < len(flows.second) and flows.second[entry] < at_s:
            flow = int(flows.flow[entry])
            caller, tenant = int(flows.caller[flow]), int(flows.tenant[flow])
            recurrence.observe(int(flows.second[entry]), flow, caller, tenant, int(flows.work[entry]))
            entry += 1
        now = Level(*(loads[tick : tick + 1] for loads in (level.baseline, level.usual, level.line)))
        told.append(recurrence.around(at_s, now))
    return told


def equal(flows: FlowSeconds) -> tuple[np.ndarray, np.ndarray]:
    """Check that both ways are equal to the last bit; returns what is due and how likely it crosses."""
    t_s = np.arange(0, flows.seconds + 200, TICK_S)
    base = 50.0 + 30.0 * np.sin(t_s / 1_000.0)
    level = Level(base, 1.1 * base, 2.0 * base)
    due, chances = find_recurring(flows).around(t_s, level)
    for tick, (one_due, one_chances) in enumerate(plain(flows, t_s, level)):
        np.testing.assert_array_equal(due[:, :, tick], one_due[:, :, 0])
        np.testing.assert_array_equal(chances[:, tick], one_chances[:, 0])
    return due, chances


@given(st.integers(0, 10**6), st.integers(5, 3_000), st.integers(1, 200))
@settings(max_examples=15, deadline=None)
def test_all_ticks_at_once_are_told_what_each_is_told(seed: int, seconds: int, count: int):
    equal(flow_seconds(random_frame(seed, seconds, count)))


@pytest.mark.parametrize("seed", range(3))
def test_schedules_and_follow_ups_are_told_alike(traffic, seed: int):
    requests = traffic(seed, 4_000, 0.05)  # quiet enough for runs, long enough for many stretches of ticks
    flows = flow_seconds(requests)
    due, chances = equal(flows)
    assert due.shape[2] > 2 * TICKS
    assert (due.max(axis=(1, 2)) > 0.0).all()
    assert (chances.max(axis=1) > 0.0).all()


def test_a_flow_whose_caller_keeps_a_schedule_is_not_due_as_well():
    """A job of one flow: the first runs teach both, then the caller alone."""
    starts_s = np.repeat(np.arange(0, 6_000, 300), 5) + np.tile(np.arange(5), 20)
    flows = flow_seconds(frame(starts_s.tolist(), {"prompt_tokens": [1_000] * len(starts_s)}))
    due, _ = equal(flows)
    alone = due[0, :, 5_380 // TICK_S]  # 20 s before a run of 1,000 tokens in each of five seconds
    assert 0.7 * 500.0 < alone.max() <= 500.0
