import numpy as np
import pytest

from data.workload import Settings
from data.workload.api import api_senders, call_api, mean_work_tokens


def test_storms_lengthen_prompts_and_leave_the_rate_as_it_is() -> None:
    parts, causes = call_api(Settings(days=3), 2.0, first_sender=0)
    assert sum(len(calls) for calls in parts) == pytest.approx(2.0 * 3 * 86_400, rel=0.05)
    inside, during = [], []
    for cause in causes:
        rise_s, hold_s = (float(pair.split("=")[1]) for pair in cause.detail.split()[:2])
        assert 20 <= rise_s <= 90
        assert 60 <= hold_s <= 300
        calls = parts[[sender.tenant for sender in api_senders()].index(cause.tenant)]
        chosen = (calls.arrived_s > cause.at_s + rise_s) & (calls.arrived_s < cause.at_s + hold_s)
        inside.append(calls.prompt[chosen])
        during.append(chosen.sum() / max(hold_s - rise_s, 1))
    assert np.median(np.concatenate(inside)) == pytest.approx(8_000, rel=0.05)
    assert np.mean(during) == pytest.approx(1.0, rel=0.35)
    assert np.median(parts[0].prompt) == pytest.approx(200, rel=0.05)


def test_expected_work_is_that_of_calm() -> None:
    parts, _ = call_api(Settings(days=1), 2.0, first_sender=0)
    calm = np.concatenate([(p.prompt + p.output)[p.prompt < 1_000] for p in parts])
    assert calm.mean() == pytest.approx(mean_work_tokens(), rel=0.03)
