"""Output tokens to expect of a request: a running high quantile for each tenant and model.

The quantile moves by stochastic approximation (Robbins and Monro, 1951): up by a step when an output exceeds
it, down by a smaller one when not, so that in the long run the wanted share of outputs lies below. It keeps
two numbers a flow and no samples.
"""

import math
from collections import OrderedDict

FIRST_OUTPUTS = 8
"""Until a flow has shown this many outputs, what is usual for all traffic stands, unless it was exceeded."""
LAST_STEP = 0.05
"""Relative step in the long run: the quantile follows drift, and wavers by about a tenth."""
LAST_STEP_AFTER = 4.0 / LAST_STEP


class OutputQuantile:
    """Running quantile of output tokens.

    >>> learned = OutputQuantile(0.9)
    >>> for tokens in [200] * 500:
    ...     learned.learn(tokens, censored=False)
    >>> 190 < learned.value(512) < 215
    True
    """

    __slots__ = ("_count", "_down", "_up", "settled", "tokens")

    def __init__(self, quantile: float) -> None:
        self.settled = False  # enough was seen: no prior counts any more
        self.tokens = 0.0
        self._up = quantile
        self._down = 1.0 - quantile
        self._count = 0

    def value(self, prior: float) -> float:
        """Quantile in tokens; at least ``prior`` while little is known."""
        if self._count < FIRST_OUTPUTS and self.tokens < prior:
            return prior
        return self.tokens

    def learn(self, tokens: float, *, censored: bool) -> None:
        """Learn an output; a censored one stopped at its limit and would have been longer."""
        if censored and tokens <= self.tokens:
            return
        self._count += 1
        if self._count <= FIRST_OUTPUTS:
            self.tokens = max(self.tokens, tokens, 1.0)
            self.settled = self._count == FIRST_OUTPUTS
            return
        step = 4.0 / self._count if self._count < LAST_STEP_AFTER else LAST_STEP
        if tokens > self.tokens:
            self.tokens *= 1.0 + step * self._up
        else:
            self.tokens = max(1.0, self.tokens * (1.0 - step * self._down))


class OutputTable:
    """Quantiles of the latest ``max_flows`` flows, (tenant, model), and one of all traffic as their prior."""

    def __init__(self, prior_tokens: int, quantile: float, max_flows: int) -> None:
        self.evicted = 0
        self._prior_tokens = prior_tokens
        self._quantile = quantile
        self._max_flows = max_flows
        self._all = OutputQuantile(quantile)
        self._flows: OrderedDict[tuple[str | None, str | None], OutputQuantile] = OrderedDict()

    def __len__(self) -> int:
        return len(self._flows)

    def flow(self, tenant: str | None, model: str | None) -> OutputQuantile:
        """Quantile of a flow; a new flow takes the place of the one unused for longest."""
        key = (tenant, model)
        flows = self._flows
        flow = flows.get(key)
        if flow is None:
            flow = flows[key] = OutputQuantile(self._quantile)
            if len(flows) > self._max_flows:
                flows.popitem(last=False)
                self.evicted += 1
        else:
            flows.move_to_end(key)
        return flow

    def expected_tokens(self, flow: OutputQuantile, limit_tokens: int | None) -> int:
        """Tokens that one answer of the flow is expected to need, at most its limit."""
        if flow.settled:
            expected = math.ceil(flow.tokens)
        else:
            expected = math.ceil(flow.value(self._all.value(self._prior_tokens)))
        return expected if limit_tokens is None or expected < limit_tokens else limit_tokens

    def learn(self, flow: OutputQuantile, tokens: float, limit_tokens: int | None) -> None:
        """Learn the output tokens of one answer of the flow."""
        censored = limit_tokens is not None and tokens >= limit_tokens
        flow.learn(tokens, censored=censored)
        self._all.learn(tokens, censored=censored)


def limit_of(max_tokens: int | None, max_completion_tokens: int | None) -> int | None:
    """The limit that counts: the larger of those given; None without one, and below 1 is none.

    >>> limit_of(1, 5_000), limit_of(None, 300), limit_of(None, None), limit_of(0, None)
    (5000, 300, None, None)
    """
    limit = max(max_tokens or 0, max_completion_tokens or 0)
    return limit if limit >= 1 else None
