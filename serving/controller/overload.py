"""What an overloaded engine changes in a decision: the ladder's measures, and the rest of clamped answers.

Requests are judged by the ladder of the rules alone: where it stands, a lane that has no room for a whole
answer takes a clamped one before it refuses. The forecast's ladder clamps and reroutes what the rules admit,
and refuses what is very large; it never lets more in. It leaves protected lanes alone, and the rules' own
clamps them and keeps them in the hot pool.
"""

from random import Random
from typing import NamedTuple

from serving.controller.continuations import Continuation, Continuations
from serving.controller.decision import RequestFacts
from serving.controller.degradation import CLAMP, SWAP, TIERS, Degradation, DegradationRules, Pool


class Measures(NamedTuple):
    """What is done to an admitted request; the last fields of a decision."""

    degradation: int = 0
    clamp_output_tokens: int | None = None
    continuation: str | None = None
    model: str | None = None
    pool: Pool | None = None


NO_MEASURES = Measures()


class Overload:
    """Both ladders and the continuations; ``degraded`` is False where no ladder stands over 0."""

    def __init__(self, rules: DegradationRules, random: Random) -> None:
        self.rules = rules
        self.degraded = False
        self.ladders = Degradation(rules)
        self.continuations = Continuations(rules.max_continuations, rules.continuation_s, random)

    def observe(
        self, now_s: float, tightening: float, queue_depth: float | None, gpu_util: float | None
    ) -> None:
        """Take what the engine says; None is unknown, and impossible values are dropped."""
        self.ladders.observe(now_s, tightening, queue_depth, gpu_util)
        self.degraded = self.ladders.step(now_s, tightening) > 0

    def own_step(self, now_s: float) -> int:
        """Step of the rules alone."""
        return self.ladders.own_step(now_s)

    def step(self, now_s: float, tightening: float, *, protected: bool) -> int:
        """Step that holds for a lane."""
        return self.ladders.own_step(now_s) if protected else self.ladders.step(now_s, tightening)

    def judged_tokens(self, output_tokens: int, own_step: int) -> int:
        """Output of one answer that a request is judged by."""
        return min(output_tokens, self.rules.clamp_output_tokens) if own_step >= CLAMP else output_tokens

    def rest(self, request: RequestFacts, now_s: float) -> Continuation | None:
        """What the request continues; None where it is a request of its own."""
        if request.continuation is None:
            return None
        return self.continuations.find(request.continuation, request.tenant, now_s)

    def measures(
        self,
        request: RequestFacts,
        lane: str,
        limit_tokens: int | None,
        size_tokens: int,
        step: int,
        rest: Continuation | None,
        now_s: float,
        *,
        protected: bool,
    ) -> Measures:
        """What is done to a request that is admitted; redeems its continuation and issues the next.

        Args:
            request: the request.
            lane: lane that admits it.
            limit_tokens: limit on the output of one answer.
            size_tokens: prompt and expected output, all answers together.
            step: step that holds for the lane.
            rest: what it continues.
            now_s: monotonic seconds.
            protected: of the lane.

        """
        rules = self.rules
        model, pool = None, None
        if rest is not None and request.continuation is not None:
            self.continuations.redeem(request.continuation)
            model, pool = rest.model, rest.pool
        else:
            if step >= SWAP and not protected and request.model is not None:
                model = rules.smaller_models.get(request.model)
            if step >= TIERS:
                pool = rules.pool(request.prompt_tokens, request.cached_tokens, size_tokens)
                pool = "hot" if protected else pool
        clamp = None if rest is None else limit_tokens
        handle = None
        if step >= CLAMP and (limit_tokens is None or limit_tokens > rules.clamp_output_tokens):
            clamp = rules.clamp_output_tokens
            if max(request.n or 1, request.best_of or 1) == 1:  # several answers have no one rest
                most = rules.most_request_tokens
                left_tokens = (most if limit_tokens is None else min(limit_tokens, most)) - clamp
                paid_tokens = max(request.prompt_tokens, 0) + clamp
                handle = self.continuations.issue(
                    now_s, request.tenant, lane, model, pool, left_tokens, paid_tokens
                )
        return Measures(step, clamp, handle, model, pool)


def capped(limit_tokens: int | None, most_tokens: int | None) -> int | None:
    """The smaller limit; None where there is none.

    >>> capped(None, 1_024), capped(500, 1_024), capped(500, None), capped(None, None)
    (1024, 500, 500, None)
    """
    if limit_tokens is None or most_tokens is None:
        return most_tokens if limit_tokens is None else limit_tokens
    return min(limit_tokens, most_tokens)
