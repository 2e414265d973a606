import numpy as np
import pytest

from data.workload import Settings
from data.workload.calls import Sender
from data.workload.sessions import chat_tenants
from data.workload.surges import ramp_crowds, strike_shocks

SETTINGS = Settings(days=20)
CHAT = chat_tenants(SETTINGS)


def test_crowds_rise_over_minutes_to_their_peak() -> None:
    parts, causes = ramp_crowds(SETTINGS, CHAT, 4.0, first_session=100)
    assert 3 <= len(causes) / 20 <= 8
    names = [sender.tenant for sender in CHAT.senders]
    reached = []
    for calls, cause in zip(parts, causes, strict=True):
        figures = dict(pair.split("=") for pair in cause.detail.split())
        group = [names.index(name) for name in figures["group"].split("+")]
        assert set(calls.sender) <= set(group)
        rise_s, hold_s = float(figures["rise_s"]), float(figures["hold_s"])
        assert 120 <= rise_s <= 480
        after_s = calls.arrived_s - cause.at_s
        assert after_s.min() >= 0
        usual_per_s = 4.0 * CHAT.share[group].sum()
        plateau = (after_s > rise_s) & (after_s < rise_s + hold_s)
        reached.append(plateau.sum() / hold_s / usual_per_s / (float(figures["peak"]) - 1))
    # Every later turn of a session comes a think time later, so requests lag behind session starts.
    assert 0.65 < np.mean(reached) < 1
    sessions = np.concatenate([calls.session for calls in parts])
    assert sessions.min() == 100
    assert len(np.unique(sessions)) == sessions.max() - 99


def test_shocks_strike_at_any_time_and_any_tenant() -> None:
    senders = [Sender(f"t-{i}", "standard", "small") for i in range(40)]
    parts, causes = strike_shocks(SETTINGS, senders, 4_000.0)
    assert len(causes) / 20 == pytest.approx(9, abs=2)
    assert len({cause.tenant for cause in causes}) > 25
    for calls, cause in zip(parts, causes, strict=True):
        assert calls.arrived_s.min() == cause.at_s
        assert np.ptp(calls.arrived_s) <= 25
        assert (calls.prompt + calls.output).sum() > 40_000
