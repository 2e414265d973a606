"""Backpressure B in [0, 1]: how full the engine is, from our own count and from what it says of itself."""

import math

from serving.controller.rules import Rules


class Backpressure:
    """B = alpha * batch + beta * queue + gamma * KV misses, over the terms that are known.

    The batch term is the larger of our own reservations over the capacity and the engine's batch over its
    maximum, so it is always known. A term that the engine does not report, reports out of range, or has not
    reported for a while is left out and the weights of the others are scaled up: unknown is never zero.

    >>> pressure = Backpressure(Rules(capacity_tokens=1_000))
    >>> pressure.score(held_tokens=500, now_s=0.0)
    0.5
    >>> pressure.observe(0.0, queue_depth=5_000, batch_tokens=None, kv_miss_rate=0.5)
    >>> round(pressure.score(held_tokens=500, now_s=1.0), 3), pressure.score(held_tokens=500, now_s=60.0)
    (0.65, 0.5)
    """

    def __init__(self, rules: Rules) -> None:
        self.dropped = 0
        self._alpha, self._beta, self._gamma = rules.alpha, rules.beta, rules.gamma
        self._capacity_tokens = rules.capacity
        self._max_batch_tokens = rules.max_batch_tokens or rules.capacity
        self._queue_capacity = rules.queue_capacity
        self._stale_s = rules.engine_stale_s
        self._known_until_s = -math.inf
        self._batch = 0.0
        self._others = 0.0
        self._weight = self._alpha

    def observe(
        self,
        now_s: float,
        *,
        queue_depth: float | None,
        batch_tokens: float | None,
        kv_miss_rate: float | None,
    ) -> None:
        """Take what the engine says at ``now_s``; None is unknown, and impossible values are dropped."""
        batch = self._term(batch_tokens, math.inf, self._max_batch_tokens)
        queue = self._term(queue_depth, math.inf, self._queue_capacity)
        miss = self._term(kv_miss_rate, 1.0, 1.0)
        self._known_until_s = now_s + self._stale_s
        self._batch = 0.0 if batch is None else batch  # our own count stands in: the larger one counts
        self._others = 0.0
        self._weight = self._alpha
        if queue is not None:
            self._others += self._beta * queue
            self._weight += self._beta
        if miss is not None:
            self._others += self._gamma * miss
            self._weight += self._gamma

    def score(self, held_tokens: int, now_s: float) -> float:
        """B with ``held_tokens`` reserved."""
        own = held_tokens / self._capacity_tokens
        if own > 1.0:  # the capacity has shrunk
            own = 1.0
        if now_s > self._known_until_s:
            return own
        if own < self._batch:
            own = self._batch
        return (self._alpha * own + self._others) / self._weight

    def resize(self, capacity_tokens: int) -> None:
        """Measure what is held against another capacity."""
        self._capacity_tokens = capacity_tokens

    def excess_tokens(self, score: float, threshold: float, now_s: float) -> float:
        """Tokens that must leave the batch before B falls from ``score`` to ``threshold``."""
        weight = self._alpha if now_s > self._known_until_s else self._weight
        return max(0.0, score - threshold) * weight / self._alpha * self._capacity_tokens

    def _term(self, value: float | None, highest: float, full: float) -> float | None:
        if value is None:
            return None
        if not 0 <= value <= highest or value == math.inf:
            self.dropped += 1
            return None
        return min(1.0, value / full)
