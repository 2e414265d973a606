"""Agents: a long planning call and, half a minute later, most of the time, the calls that it asks for."""

import numpy as np

from data.workload.calls import (
    DECODE_S_PER_TOKEN,
    NONE,
    PREFILL_S,
    PREFILL_S_PER_TOKEN,
    SERVED,
    Calls,
    Cause,
    Sender,
    single_calls,
)
from data.workload.rhythm import arrivals, day_curve
from data.workload.settings import Settings, stream
from data.workload.volleys import sizes, volleys

EPISODES_PER_HOUR = (2.0, 4.0)
FOLLOWED = 0.8
"""Share of planning calls that calls really follow."""
SPREAD_S = (5.0, 15.0)
PLAN_PROMPT_TOKENS = (15_000, 40_000)
PLAN_OUTPUT_TOKENS = (200, 3_000)
CALL_PROMPT_TOKENS = (1_500, 3_000)
CALL_OUTPUT_TOKENS = (100, 400)
FAN_OUT_LOAD = (1.6, 3.4)
"""Median work of a fan-out in its ten busiest seconds, as a multiple of the mean base load, by agent."""
MAX_CALLS = 20_000


def run_agents(
    settings: Settings, load_tokens_per_s: float, first_sender: int
) -> tuple[list[Calls], list[Cause], list[Sender]]:
    """Draw 4-7 agents and their episodes; every agent plans on one sender and fans out on the next."""
    random = stream(settings.seed, "agents")
    count = int(random.integers(4, 8))
    per_hour = random.uniform(*EPISODES_PER_HOUR) * random.dirichlet(np.full(count, 3.0))
    parts, causes, senders = [], [], []
    for i in range(count):
        tenant = f"agent-{i}"
        senders += [
            Sender(tenant, "standard", "large"),
            Sender(tenant, "standard", str(random.choice(["large", "small"]))),
        ]
        calls, found = _episodes(
            stream(settings.seed, f"agent {i}"),
            settings,
            tenant,
            first_sender + 2 * i,
            per_hour[i],
            load_tokens_per_s,
        )
        parts += calls
        causes += found
    return parts, causes, senders


def _episodes(
    random: np.random.Generator,
    settings: Settings,
    tenant: str,
    sender: int,
    per_hour: float,
    load_tokens_per_s: float,
) -> tuple[list[Calls], list[Cause]]:
    growth = settings.figures.growth_per_day
    curve = day_curve(random, settings.start, settings.span_s, growth_per_day=growth)
    plan_s = arrivals(random, curve, per_hour * settings.span_s / 3600)
    delay_s = random.uniform(*settings.figures.delay_s, len(plan_s))
    low, high = np.log(PLAN_PROMPT_TOKENS)
    prompt = np.exp(random.uniform(low, high, len(plan_s))).astype(np.int64)
    # The calls that follow are read from the plan, so it must have been written by then.
    decode_s = delay_s - random.uniform(1, 4, len(plan_s)) - PREFILL_S - PREFILL_S_PER_TOKEN * prompt
    written = decode_s / (DECODE_S_PER_TOKEN[1] * 1.15)
    output = np.clip(written, *PLAN_OUTPUT_TOKENS).astype(np.int64)
    plans = single_calls(
        random, np.full(len(plan_s), sender), plan_s, prompt, output, np.full(len(plan_s), NONE)
    )

    follows = (random.random(len(plan_s)) < FOLLOWED) & (plans.outcome == SERVED)
    ln_median = np.log([random.uniform(*CALL_PROMPT_TOKENS), random.uniform(*CALL_OUTPUT_TOKENS)])
    sigma = np.array([0.3, 0.5])
    median_tokens = random.uniform(*FAN_OUT_LOAD) * load_tokens_per_s * 10
    median_calls = median_tokens / float(np.exp(ln_median + sigma**2 / 2).sum())
    counts = np.rint(median_calls * np.exp(0.35 * random.standard_normal(len(plan_s))))
    counts = np.clip(counts, 2, MAX_CALLS).astype(np.int64)[follows]
    start_s = (plan_s + delay_s)[follows]
    spread_s = random.uniform(*SPREAD_S, len(counts))
    calls = volleys(random, np.full(len(counts), sender + 1), start_s, counts, spread_s, ln_median, sigma)
    causes = [
        Cause(at, "fan_out", tenant, f"planned_s_before={before:.1f} {figures}")
        for at, before, figures in zip(
            start_s.tolist(), delay_s[follows].tolist(), sizes(calls, counts), strict=True
        )
    ]
    return [plans, calls], causes
