import numpy as np
import pytest

from data.workload import Settings
from data.workload.agents import run_agents
from data.workload.calls import SERVED


@pytest.mark.parametrize("seed", [0, 1])
def test_fan_outs_follow_their_plan_by_20_to_60_s(seed: int) -> None:
    parts, causes, senders = run_agents(Settings(days=6, seed=seed), 4_000.0, first_sender=5)
    assert 4 <= len(senders) / 2 <= 7
    plans, followed, total = parts[::2], 0, 0
    for i, (plan, calls) in enumerate(zip(plans, parts[1::2], strict=True)):
        assert set(plan.sender) == {5 + 2 * i}
        assert set(calls.sender) <= {6 + 2 * i}
        mine = [cause for cause in causes if cause.tenant == senders[2 * i].tenant]
        for cause in mine:
            before_s = float(cause.detail.split()[0].removeprefix("planned_s_before="))
            assert 20 <= before_s <= 60
            at = int(np.argmin(np.abs(plan.arrived_s - (cause.at_s - before_s))))
            assert plan.arrived_s[at] == pytest.approx(cause.at_s - before_s, abs=0.06)
            assert plan.outcome[at] == SERVED
            assert plan.finished_s[at] < cause.at_s + 1
        assert plan.prompt.min() >= 15_000
        followed, total = followed + len(mine), total + len(plan)
    assert followed / total == pytest.approx(0.8, abs=0.06)
    assert 1.5 <= total / (6 * 24) <= 4.5


def test_a_fan_out_is_tens_of_short_calls_within_seconds() -> None:
    parts, causes, _ = run_agents(Settings(days=3), 4_000.0, first_sender=0)
    counts = [int(cause.detail.split("calls=")[1].split()[0]) for cause in causes]
    assert 10 <= np.median(counts) <= 100
    assert sum(counts) == sum(len(calls) for calls in parts[1::2])
    prompts = np.concatenate([calls.prompt for calls in parts[1::2]])
    assert 1_000 <= np.median(prompts) <= 4_000
