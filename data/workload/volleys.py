"""Volleys: many calls within seconds, the shape of job runs, fan-outs and shocks."""

import numpy as np

from data.workload.calls import NONE, Calls, Floats, Ints, limit_of, single_calls
from data.workload.lengths import draw_tokens

MAX_TOKENS = 16_384


def volleys(
    random: np.random.Generator,
    sender: Ints,
    start_s: Floats,
    counts: Ints,
    spread_s: Floats,
    ln_median: Floats,
    sigma: Floats,
) -> Calls:
    """Volleys of ``counts`` calls: the first of each at ``start_s``, the others at random after it.

    ``ln_median`` and ``sigma``, shape (2,), are the log-normal lengths of prompt and output; the other arrays
    have one entry a volley, all counts at least 1.
    """
    total = int(counts.sum())
    after_s = np.repeat(spread_s, counts) * random.random(total)
    after_s[np.cumsum(counts) - counts] = 0.0
    prompt = draw_tokens(random, np.full(total, ln_median[0]), np.full(total, sigma[0]), MAX_TOKENS)
    output = draw_tokens(random, np.full(total, ln_median[1]), np.full(total, sigma[1]), MAX_TOKENS)
    usual = limit_of(np.exp(ln_median[1:] + sigma[1:] ** 2 / 2))[0]
    limit = np.where(random.random(total) < 0.7, usual, NONE)
    arrived_s = np.repeat(start_s, counts) + after_s
    return single_calls(random, np.repeat(sender, counts), arrived_s, prompt, output, limit)


def sizes(calls: Calls, counts: Ints) -> list[str]:
    """What each volley came to, as text for the causes: calls and their work in tokens."""
    if not len(counts):
        return []
    work = np.add.reduceat(calls.prompt - calls.cached + calls.output, np.cumsum(counts) - counts)
    return [f"calls={n} work_tokens={w}" for n, w in zip(counts.tolist(), work.tolist(), strict=True)]
