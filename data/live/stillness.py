"""Gauges that stand still while the token counters say that they can't: frozen, so not to be believed.

An engine that stops updating its gauges leaves the last ones standing, such as a full KV cache after all its
requests were aborted; whoever believes them never sends work there again. See
https://github.com/vllm-project/vllm/issues/29928.
"""

from collections.abc import Mapping

FROZEN_AFTER_S = 60.0
GAUGES = ("waiting", "running", "kv_cache_usage")
FLOW_TOKENS_PER_S = 1_000.0
"""More output than one sequence can have: several are always running, and their KV use changes."""
FULL = 0.95
"""A KV cache as full as this may honestly stay so under load."""


class Stillness:
    """Since when each gauge and the token counters have stood still; times are monotonic seconds.

    >>> still = Stillness()
    >>> full, tokens = {"kv_cache_usage": 0.99}, {"output_tokens": 5e6}
    >>> [still.frozen(at_s, full, tokens) for at_s in (0.0, 30.0, 60.0)]
    [None, None, 'kv_cache_usage stood at 0.99 for 60 s while no token was counted']
    >>> still.standing(60.0)
    {'kv_cache_usage'}
    >>> still.frozen(65.0, {"kv_cache_usage": 0.2}, tokens) is None
    True
    """

    def __init__(self) -> None:
        self._since: dict[str, tuple[float, float, float | None]] = {}  # value, since when, output then
        self._tokens: dict[str, float] = {}
        self._tokens_since_s = 0.0

    def forget(self) -> None:
        """Start anew, after a restart or a gap."""
        self._since.clear()
        self._tokens = {}

    def frozen(self, now_s: float, gauges: Mapping[str, float], counters: Mapping[str, float]) -> str | None:
        """Why the gauges of this reading are frozen; None when nothing speaks against them."""
        tokens = {name: counters[name] for name in ("prompt_tokens", "output_tokens") if name in counters}
        if tokens != self._tokens:
            self._tokens, self._tokens_since_s = tokens, now_s
        for name in GAUGES:
            value, known = gauges.get(name), self._since.get(name)
            if value is None:
                self._since.pop(name, None)
            elif known is None or known[0] != value:
                self._since[name] = (value, now_s, tokens.get("output_tokens"))
        return next((why for name in self._since if (why := self._judge(name, now_s))), None)

    def standing(self, now_s: float) -> set[str]:
        """Gauges that have stood long enough to be frozen."""
        return {name for name, (_, since_s, _) in self._since.items() if now_s - since_s >= FROZEN_AFTER_S}

    def _judge(self, name: str, now_s: float) -> str | None:
        value, since_s, output_then = self._since[name]
        stood_s = now_s - since_s
        if not self._tokens or stood_s < FROZEN_AFTER_S:
            return None
        stood = f"{name} stood at {value:g} for {stood_s:.0f} s while"
        # An idle engine holds nothing and may stand still for ever.
        if value > 0 and now_s - self._tokens_since_s >= FROZEN_AFTER_S:
            return f"{stood} no token was counted"
        output = self._tokens.get("output_tokens")
        if name == "kv_cache_usage" and value < FULL and output is not None and output_then is not None:
            flow_tokens_per_s = (output - output_then) / stood_s
            if flow_tokens_per_s > FLOW_TOKENS_PER_S:
                return f"{stood} {flow_tokens_per_s:.0f} tokens/s were generated"
        return None
