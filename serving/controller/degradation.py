"""Degradation: a ladder of measures that an overloaded engine climbs at once and comes down from slowly.

1. Answers are clamped and handed a continuation; single requests that are very large are refused.
2. Models that have a smaller one configured are swapped for it.
3. Requests are routed to a hot pool, where short ones and known prefixes stay, and a cold one.

Two ladders stand side by side. The rules' own goes by the engine alone. The forecast's goes by thresholds
that tightening lowers, and counts only while tightening is over 0: then the higher of the two holds.
"""

import math
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Literal

from data.errors import InputError

CLAMP, SWAP, TIERS = 1, 2, 3
"""Steps of the ladder; 0 is none."""

Pool = Literal["hot", "cold"]


@dataclass(frozen=True, slots=True)
class DegradationRules:
    """When the ladder is climbed, and what its steps do.

    Attributes:
        queue_depth_above: waiting requests in the engine over which it climbs.
        gpu_util_above: GPU use over which it climbs.
        cut: part of both thresholds that full tightening takes away.
        calm_below: part of both thresholds under which the engine is calm.
        climb_s: time over a threshold at one step before the next; the first is taken at once.
        calm_s: time of calm at one step before the one below; also time without a reading before all is off.
        clamp_output_tokens: output of one answer before it must be continued.
        most_request_tokens: prompt and expected output over which a request is refused.
        smaller_models: model to the smaller one that stands in for it.
        hot_tokens: work that the hot pool still takes: prompt not in cache and expected output.
        hot_prefix_share: share of the prompt in cache from which the request stays in the hot pool.
        continuation_s: how long a continuation may be redeemed.
        max_continuations: continuations that are remembered; the oldest make room.

    """

    queue_depth_above: float = 5_000
    gpu_util_above: float = 0.92
    cut: float = 0.1
    calm_below: float = 0.9
    climb_s: float = 10.0
    calm_s: float = 30.0
    clamp_output_tokens: int = 1_024
    most_request_tokens: int = 32_000
    smaller_models: Mapping[str, str] = field(default_factory=dict)
    hot_tokens: int = 4_096
    hot_prefix_share: float = 0.5
    continuation_s: float = 600.0
    max_continuations: int = 10_000

    def __post_init__(self) -> None:
        for name in _OVER_ZERO:
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise InputError(f"Rule degradation.{name} must be over 0 and finite; got {value!r}.")
        for name in ("cut", "calm_below", "hot_prefix_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"Rule degradation.{name} must be in [0, 1]; got {getattr(self, name)!r}.")
        if self.clamp_output_tokens > self.most_request_tokens:
            raise InputError(
                "Rule degradation.clamp_output_tokens must not be over most_request_tokens "
                f"({self.most_request_tokens!r}); got {self.clamp_output_tokens!r}."
            )
        swapped_twice = [model for model in self.smaller_models.values() if model in self.smaller_models]
        if swapped_twice:
            raise InputError(
                "Rule degradation.smaller_models must not swap what stands in for another; "
                f"got {swapped_twice[0]!r} on both sides."
            )

    def pool(self, prompt_tokens: int, cached_tokens: int | None, size_tokens: int) -> Pool:
        """Pool of a request of ``size_tokens``, prompt and output; unknown cached tokens save no work.

        >>> rules = DegradationRules()
        >>> rules.pool(1_000, None, 1_512), rules.pool(8_000, None, 8_512), rules.pool(8_000, 4_000, 8_512)
        ('hot', 'cold', 'hot')
        """
        cached = max(0, min(cached_tokens or 0, prompt_tokens))
        small = size_tokens - cached <= self.hot_tokens
        return "hot" if small or cached >= self.hot_prefix_share * max(prompt_tokens, 1) else "cold"


_OVER_ZERO = (
    "queue_depth_above",
    "gpu_util_above",
    "climb_s",
    "calm_s",
    "clamp_output_tokens",
    "most_request_tokens",
    "hot_tokens",
    "continuation_s",
    "max_continuations",
)


class Ladder:
    """One ladder: a step in 0..3.

    It climbs from nothing at the first reading over a threshold, and on after ``climb_s`` over it. It comes
    down a step after ``calm_s`` under the lower thresholds. Between them it stands. Only a known reading over
    a threshold ever raises it, and after ``calm_s`` without any known reading it is at 0.

    >>> ladder, steps = Ladder(DegradationRules()), []
    >>> for now_s, queue_depth in ((0.0, 4_000), (5.0, 5_001), (10.0, 5_001), (15.0, 5_001), (20.0, 4_000)):
    ...     ladder.observe(now_s, queue_depth, None)
    ...     steps.append(ladder.step(now_s))
    >>> steps
    [0, 1, 1, 2, 2]
    >>> ladder.observe(49.9, 4_000, None)
    >>> ladder.observe(50.0, 4_000, None)
    >>> ladder.step(50.0), ladder.step(80.1)
    (1, 0)
    """

    def __init__(self, rules: DegradationRules) -> None:
        self._rules = rules
        self._step = 0
        self._changed_s = -math.inf
        self._known_s = -math.inf
        self._over_since_s: float | None = None
        self._calm_since_s: float | None = None

    def step(self, now_s: float) -> int:
        """Step at ``now_s``."""
        return self._step if now_s <= self._known_s + self._rules.calm_s else 0

    def observe(
        self, now_s: float, queue_depth: float | None, gpu_util: float | None, tightening: float = 0.0
    ) -> None:
        """Take possible readings, None where unknown; ``tightening`` lowers the thresholds."""
        if queue_depth is None and gpu_util is None:
            return
        rules = self._rules
        if self.step(now_s) < self._step:
            self._step = 0
            self._changed_s = self._known_s + rules.calm_s
            self._over_since_s = self._calm_since_s = None
        self._known_s = now_s
        full = max(
            0.0 if queue_depth is None else queue_depth / rules.queue_depth_above,
            0.0 if gpu_util is None else gpu_util / rules.gpu_util_above,
        )
        above = 1.0 - rules.cut * tightening
        self._over_since_s = _since(self._over_since_s, now_s, still=full > above)
        self._calm_since_s = _since(self._calm_since_s, now_s, still=full < rules.calm_below * above)
        if self._over_since_s is not None:
            steady_s = now_s - max(self._over_since_s, self._changed_s)
            if self._step == 0 or (self._step < TIERS and steady_s >= rules.climb_s):
                self._move(1, now_s)
        elif self._calm_since_s is not None and self._step > 0:
            steady_s = now_s - max(self._calm_since_s, self._changed_s)
            if steady_s >= rules.calm_s:
                self._move(-1, now_s)

    def _move(self, by: int, now_s: float) -> None:
        self._step += by
        self._changed_s = now_s


class Degradation:
    """The rules' own ladder and the forecast's."""

    def __init__(self, rules: DegradationRules) -> None:
        self.rules = rules
        self.dropped = 0
        self._own = Ladder(rules)
        self._ahead: Ladder | None = None

    def observe(
        self, now_s: float, tightening: float, queue_depth: float | None, gpu_util: float | None
    ) -> None:
        """Take what the engine says; None is unknown, and impossible values are dropped."""
        queue_depth = self._possible(queue_depth, math.inf)
        gpu_util = self._possible(gpu_util, 1.0)
        if tightening <= 0.0:
            self._ahead = None
        elif self._ahead is None:
            self._ahead = copy(self._own)
        self._own.observe(now_s, queue_depth, gpu_util)
        if self._ahead is not None:
            self._ahead.observe(now_s, queue_depth, gpu_util, tightening)

    def own_step(self, now_s: float) -> int:
        """Step of the rules alone."""
        return self._own.step(now_s)

    def step(self, now_s: float, tightening: float) -> int:
        """Step that holds; that of the rules alone where nothing is tightened."""
        own = self._own.step(now_s)
        if self._ahead is None or tightening <= 0.0:
            return own
        return max(own, self._ahead.step(now_s))

    def _possible(self, value: float | None, highest: float) -> float | None:
        if value is None or (0 <= value <= highest and value < math.inf):
            return value
        self.dropped += 1
        return None


def _since(since_s: float | None, now_s: float, *, still: bool) -> float | None:
    if not still:
        return None
    return now_s if since_s is None else since_s
