"""Surges: crowds that ramp up, and shocks that nothing announces."""

import numpy as np

from data.workload.calls import Calls, Cause, Floats, Ints, Sender
from data.workload.rhythm import arrivals, hour_and_weekend, moments
from data.workload.sessions import ChatTenants, hold_sessions
from data.workload.settings import Settings, stream
from data.workload.volleys import sizes, volleys

RAMPS_PER_DAY = 8.0
PLATEAU_S = (120.0, 900.0)
DECAY_S = (300.0, 1200.0)
PEAK = (2.5, 5.0)
"""Rate of new sessions of the group at the plateau, as a multiple of its mean."""
GROUP_SHARE = (0.5, 0.9)
RAMP_HOURS = (7.0, 23.0)
STEP_S = 5

SHOCKS_PER_DAY = 9.0
SHOCK_LOAD = (2.0, 5.0)
SHOCK_SPREAD_S = (3.0, 25.0)
MAX_CALLS = 20_000


def ramp_crowds(
    settings: Settings, chat: ChatTenants, requests_per_s: float, first_session: int
) -> tuple[list[Calls], list[Cause]]:
    """Crowds on top of the usual conversations, which come to ``requests_per_s`` in the mean."""
    random = stream(settings.seed, "ramps")
    parts, causes = [], []
    for begin_s in moments(random, RAMPS_PER_DAY, settings.span_s):
        group = _group(random, chat.share)
        peak = random.uniform(*PEAK)
        rise_s, hold_s, decay_s = (
            random.uniform(*range_s) for range_s in (settings.figures.ramp_s, PLATEAU_S, DECAY_S)
        )
        hour, _ = hour_and_weekend(settings.start, np.array([begin_s]))
        if not RAMP_HOURS[0] <= hour[0] < RAMP_HOURS[1]:
            continue
        extra_per_s = (peak - 1) * requests_per_s * chat.share[group] / chat.turns[group]
        start_s, tenant = _crowd(random, extra_per_s, group, rise_s, hold_s, decay_s)
        if not len(start_s):
            continue
        calls = hold_sessions(random, chat, tenant, begin_s + start_s, first_session)
        first_session += len(start_s)
        parts.append(calls)
        names = "+".join(chat.senders[i].tenant for i in group)
        detail = (
            f"rise_s={rise_s:.0f} hold_s={hold_s:.0f} decay_s={decay_s:.0f} peak={peak:.2f} group={names}"
        )
        causes.append(Cause(float(begin_s + start_s[0]), "ramp", chat.senders[group[0]].tenant, detail))
    return parts, causes


def _group(random: np.random.Generator, share: Floats) -> Ints:
    """Tenants that crowd in together, the largest first: at random, up to a share of all conversations."""
    order = random.permutation(len(share))
    wanted = random.uniform(*GROUP_SHARE)
    group = order[: int(np.searchsorted(np.cumsum(share[order]), wanted)) + 1]
    return np.sort(group)


def _crowd(
    random: np.random.Generator,
    extra_per_s: Floats,
    group: Ints,
    rise_s: float,
    hold_s: float,
    decay_s: float,
) -> tuple[Floats, Ints]:
    """Starts of extra sessions after the ramp begins, in order, and the tenant of each."""
    at = np.arange(0, rise_s + hold_s + 3 * decay_s, STEP_S)
    shape = np.where(at < rise_s, at / rise_s, np.exp(-np.maximum(at - rise_s - hold_s, 0) / decay_s))
    start_s = arrivals(random, shape, extra_per_s.sum() * shape.sum() * STEP_S, grid_s=STEP_S)
    tenant = random.choice(group, len(start_s), p=extra_per_s / extra_per_s.sum())
    return start_s, tenant


def strike_shocks(
    settings: Settings, senders: list[Sender], load_tokens_per_s: float
) -> tuple[list[Calls], list[Cause]]:
    """Sudden bursts of random senders, without any warning."""
    random = stream(settings.seed, "shocks")
    parts, causes = [], []
    for at_s in moments(random, SHOCKS_PER_DAY, settings.span_s).tolist():
        sender = int(random.integers(len(senders)))
        spread_s = random.uniform(*SHOCK_SPREAD_S)
        ln_median = np.log([random.uniform(300, 4000), random.uniform(50, 400)])
        sigma = np.array([0.5, 0.6])
        tokens = random.uniform(*SHOCK_LOAD) * load_tokens_per_s * max(10.0, spread_s)
        wanted = tokens / float(np.exp(ln_median + sigma**2 / 2).sum())
        counts = np.array([int(np.clip(wanted, 2, MAX_CALLS))])
        calls = volleys(
            random, np.array([sender]), np.array([at_s]), counts, np.array([spread_s]), ln_median, sigma
        )
        parts.append(calls)
        causes.append(Cause(at_s, "shock", senders[sender].tenant, sizes(calls, counts)[0]))
    return parts, causes
