"""Retry echoes: what an overloaded engine refuses comes back when its Retry-After has passed."""

import numpy as np

from data.workload.calls import NONE, SHED, Calls, Cause, Floats, Ints, Sender, end, service_s
from data.workload.settings import Settings, stream

CAPACITY = 5.5
"""Work per second that the engine takes in the mean of 10 s, as a multiple of the mean base load."""
WINDOW_S = 10
MAX_SHED = 0.8
EPISODE_GAP_S = 30.0
JITTER = 0.2
"""Clients come back up to this share later than they were told."""
COME_BACK = 0.85


def shed_and_retry(
    settings: Settings, calls: Calls, senders: list[Sender], load_tokens_per_s: float
) -> tuple[Calls, Calls, Ints, list[Cause]]:
    """Refuse calls while the load is over capacity, and let most of them come again.

    Conversations under way and the premium lane are spared. Calls must be in order of arrival.

    Returns:
        The calls with the refused ones marked, the retries, for each retry the index of the call that it
        repeats, and a cause for each wave of retries.

    """
    random = stream(settings.seed, "echoes")
    excess = _excess(calls, settings.span_s, CAPACITY * load_tokens_per_s)
    premium = np.array([sender.lane == "premium" for sender in senders])[calls.sender]
    spared = premium | (calls.session != NONE)
    chance = np.minimum(excess, MAX_SHED)[np.floor(calls.arrived_s).astype(np.int64)]
    refused = np.flatnonzero(~spared & (random.random(len(calls)) < chance))
    at_s = calls.arrived_s[refused]
    episode = np.cumsum(np.diff(at_s, prepend=-np.inf) > EPISODE_GAP_S) - 1
    told_s = np.round(
        random.uniform(*settings.figures.retry_after_s, int(episode[-1]) + 1 if len(episode) else 0)
    )
    wait_s = told_s[episode] * (1 + JITTER * random.random(len(refused)))
    back = (random.random(len(refused)) < COME_BACK) & (at_s + wait_s < settings.span_s)
    retried = refused[back]
    again = _again(random, calls.take(retried), at_s[back] + wait_s[back])
    return (
        _mark_shed(random, calls, refused),
        again,
        retried,
        _causes(again, episode[back], told_s, senders),
    )


def _excess(calls: Calls, span_s: float, capacity_tokens_per_s: float) -> Floats:
    """Share of each second's calls beyond capacity."""
    second = np.floor(calls.arrived_s).astype(np.int64)
    work = np.bincount(
        second, weights=calls.prompt - calls.cached + calls.output, minlength=int(np.ceil(span_s))
    )
    total = np.cumsum(np.concatenate([np.zeros(WINDOW_S), work]))
    load = (total[WINDOW_S:] - total[:-WINDOW_S]) / WINDOW_S
    share: Floats = np.maximum(1 - capacity_tokens_per_s / np.maximum(load, 1.0), 0.0)
    return share


def _mark_shed(random: np.random.Generator, calls: Calls, refused: Ints) -> Calls:
    output, outcome, finished_s = calls.output.copy(), calls.outcome.copy(), calls.finished_s.copy()
    output[refused], outcome[refused] = 0, SHED
    finished_s[refused] = calls.arrived_s[refused] + random.uniform(0.002, 0.05, len(refused))
    return Calls(
        calls.sender,
        calls.arrived_s,
        calls.prompt,
        calls.cached,
        calls.limit,
        output,
        calls.session,
        outcome,
        finished_s,
    )


def _again(random: np.random.Generator, first: Calls, arrived_s: Floats) -> Calls:
    outcome, output = end(random, first.output)
    finished_s = arrived_s + service_s(random, first.prompt - first.cached, output)
    return Calls(
        first.sender,
        arrived_s,
        first.prompt,
        first.cached,
        first.limit,
        output,
        first.session,
        outcome,
        finished_s,
    )


def _causes(again: Calls, episode: Ints, told_s: Floats, senders: list[Sender]) -> list[Cause]:
    found = []
    for i in np.unique(episode):
        wave = again.take(episode == i)
        tenant = senders[int(np.bincount(wave.sender).argmax())].tenant
        work = int((wave.prompt - wave.cached + wave.output).sum())
        detail = f"retry_after_s={told_s[i]:.0f} calls={len(wave)} work_tokens={work}"
        found.append(Cause(float(wave.arrived_s.min()), "retry_echo", tenant, detail))
    return found
