"""API tenants: a steady stream of short single calls, whose prompts now and then grow forty-fold."""

from dataclasses import dataclass

import numpy as np

from data.workload.calls import NONE, Calls, Cause, Floats, Sender, limit_of, single_calls
from data.workload.lengths import draw_tokens
from data.workload.rhythm import arrivals, day_curve, moments
from data.workload.settings import Settings, stream

TENANTS = 2
PROMPT_TOKENS = 200
OUTPUT_TOKENS = 60
SIGMA = np.array([0.4, 0.5])
MAX_TOKENS = 32_768
DAY_SHARE = 0.3
"""How far the stream follows the day curve; the rest of it is flat."""

STORMS_PER_DAY = 12.0
STORM_PROMPT_TOKENS = 8_000
RISE_S = (20.0, 90.0)
HOLD_S = (60.0, 300.0)
FALL_S = 20.0


@dataclass(frozen=True, slots=True)
class Storm:
    """Prompts of one API tenant grow over ``rise_s`` and stay long for ``hold_s``."""

    tenant: int
    start_s: float
    rise_s: float
    hold_s: float


def api_senders() -> list[Sender]:
    """The senders of the API tenants."""
    return [Sender(f"api-{i}", "standard", "small") for i in range(TENANTS)]


def mean_work_tokens() -> float:
    """Expected work of an API call outside storms, tokens."""
    return float((np.array([PROMPT_TOKENS, OUTPUT_TOKENS]) * np.exp(SIGMA**2 / 2)).sum())


def call_api(settings: Settings, requests_per_s: float, first_sender: int) -> tuple[list[Calls], list[Cause]]:
    """Calls of all API tenants, ``requests_per_s`` together in the mean, storms included."""
    storms = _draw_storms(settings)
    parts, causes = [], []
    for i, sender in enumerate(api_senders()):
        random = stream(settings.seed, f"api {i}")
        curve = day_curve(
            random, settings.start, settings.span_s, growth_per_day=settings.figures.growth_per_day
        )
        curve = DAY_SHARE * curve / curve.mean() + 1 - DAY_SHARE
        at_s = arrivals(random, curve, requests_per_s / TENANTS * settings.span_s)
        grown = np.zeros(len(at_s))
        for storm in (storm for storm in storms if storm.tenant == i):
            grown = np.maximum(grown, _growth(at_s, storm))
            first = int(np.searchsorted(at_s, storm.start_s))
            if first < len(at_s):
                length = f"rise_s={storm.rise_s:.0f} hold_s={storm.hold_s:.0f}"
                causes.append(Cause(float(at_s[first]), "storm", sender.tenant, length))
        ln_prompt = np.log(PROMPT_TOKENS) + grown * np.log(STORM_PROMPT_TOKENS / PROMPT_TOKENS)
        prompt = draw_tokens(random, ln_prompt, np.full(len(at_s), SIGMA[0]), MAX_TOKENS)
        output = draw_tokens(
            random, np.full(len(at_s), np.log(OUTPUT_TOKENS)), np.full(len(at_s), SIGMA[1]), MAX_TOKENS
        )
        limit = np.where(random.random(len(at_s)) < 0.8, limit_of(np.array([OUTPUT_TOKENS]))[0], NONE)
        parts.append(single_calls(random, np.full(len(at_s), first_sender + i), at_s, prompt, output, limit))
    return parts, causes


def _draw_storms(settings: Settings) -> list[Storm]:
    random = stream(settings.seed, "storms")
    return [
        Storm(int(random.integers(TENANTS)), at_s, random.uniform(*RISE_S), random.uniform(*HOLD_S))
        for at_s in moments(random, STORMS_PER_DAY, settings.span_s).tolist()
    ]


def _growth(at_s: Floats, storm: Storm) -> Floats:
    """How far prompts have grown, 0 to 1 on the log scale."""
    edges = storm.start_s + np.cumsum([0.0, storm.rise_s, storm.hold_s, FALL_S])
    grown: Floats = np.interp(at_s, edges, [0.0, 1.0, 1.0, 0.0])
    return grown
