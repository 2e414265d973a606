"""Three lanes share one budget of tokens: each has its weighted share and may borrow what others leave.

A protected lane, premium, can always reach its share: the others together hold at most what is left of the
capacity. The others lend to one another. A lane that is refused while it holds less than its share calls
the loan back: until its client was told to return, nobody borrows what is freed. So lanes that are all
backlogged come to their weights, and a lane over its budget is refused alone.
"""

import math
from collections import Counter
from random import Random

from data.schema import LANES
from serving.controller.breach import Breach
from serving.controller.claims import Claims
from serving.controller.decision import Reason
from serving.controller.drain import Drain
from serving.controller.retry_after import Returns
from serving.controller.rules import LaneRule, Rules

REFERENCE_PROMPT_TOKENS, REFERENCE_OUTPUT_TOKENS, REFERENCE_BATCH = 1_024, 256, 64
"""Requests that the engine model's drain rate is taken for, until settlements have shown the real one."""


class Lane:
    """State of one lane."""

    __slots__ = (
        "admitted",
        "breach",
        "called_back_until_s",
        "claims",
        "drain",
        "held_tokens",
        "most_tokens",
        "name",
        "refused",
        "returns",
        "rule",
        "share_tokens",
        "tightened",
        "ttft_met",
        "ttft_missed",
    )

    def __init__(self, name: str, rule: LaneRule, rules: Rules, most_tokens: int, random: Random) -> None:
        self.name = name
        self.rule = rule
        self.share_tokens = round(rule.weight * rules.capacity)
        self.most_tokens = most_tokens
        self.held_tokens = 0
        self.called_back_until_s = -math.inf
        engine_tokens_per_s = rules.engine.drain_tokens_per_s(
            REFERENCE_PROMPT_TOKENS, REFERENCE_OUTPUT_TOKENS, REFERENCE_BATCH
        )
        self.drain = Drain(rule.weight * engine_tokens_per_s, rules.drain_memory_s, self.share_tokens // 2)
        self.returns = Returns(random)
        self.claims = Claims()
        self.breach = Breach(rules.breach)
        self.admitted = 0
        self.refused: Counter[Reason] = Counter()
        self.tightened = 0
        self.ttft_met = 0
        self.ttft_missed = 0


class Lanes:
    """The lanes and who may hold how much."""

    def __init__(self, rules: Rules, random: Random) -> None:
        self._rules = rules
        capacity = rules.capacity
        self.resize(capacity)
        self.part = 1.0  # of the lanes' shares that this replica may use, where replicas share them
        self.shared_held_tokens = 0
        self._called_back_until_s = -math.inf  # the last of all lanes
        self.by_name = {
            name: Lane(name, rule, rules, capacity if rule.protected else self.shared_tokens, random)
            for name, rule in ((name, rules.lane(name)) for name in LANES)
        }

    def resize(self, capacity_tokens: int) -> None:
        """Share out another capacity: the protected lane keeps its weight of it for itself."""
        protected = sum(
            round(self._rules.lane(name).weight * capacity_tokens)
            for name in LANES
            if self._rules.lane(name).protected
        )
        self.shared_tokens = capacity_tokens - protected

    def allot(self, tokens: int, of_tokens: int) -> None:
        """Go by this replica's part of what the lanes without protection share."""
        self.shared_tokens = tokens
        self.part = tokens / of_tokens if of_tokens else 0.0

    def overflow_tokens(self, lane: Lane, tokens: int, tightening: float, now_s: float) -> int:
        """Tokens that must leave before the lane's budget has room for ``tokens``; 0 when it has.

        Tightening cuts the lane's share and the most that it may hold with what it borrows.
        """
        if lane.rule.protected:
            return 0
        left = (1.0 - lane.rule.cut * tightening) * self.part
        most_tokens, share_tokens = lane.most_tokens, lane.share_tokens
        if left != 1.0:
            most_tokens, share_tokens = round(most_tokens * left), round(share_tokens * left)
        held = lane.held_tokens + tokens
        over = held - most_tokens
        over_shared = self.shared_held_tokens + tokens - self.shared_tokens
        if over_shared > over:
            over = over_shared
        borrowed = held - share_tokens
        if now_s < self._called_back_until_s and borrowed > max(over, 0) and self._called_back(lane, now_s):
            return borrowed
        return over if over > 0 else 0

    def take(self, lane: Lane, tokens: int, now_s: float) -> None:
        """Hold ``tokens`` in the lane."""
        held_tokens = lane.held_tokens
        lane.drain.change(held_tokens, now_s)
        lane.held_tokens = held_tokens + tokens
        if not lane.rule.protected:
            self.shared_held_tokens += tokens
        lane.admitted += 1

    def give_back(self, lane: Lane, tokens: int, now_s: float) -> None:
        """Free ``tokens`` that a settled or cancelled request held."""
        held_tokens = lane.held_tokens
        lane.drain.change(held_tokens, now_s, tokens)
        lane.held_tokens = held_tokens - tokens
        if not lane.rule.protected:
            self.shared_held_tokens -= tokens

    def expire(self, lane: Lane, tokens: int, now_s: float) -> None:
        """Free ``tokens`` of a request that was never heard of again: nothing says that the engine did."""
        lane.drain.change(lane.held_tokens, now_s)
        self.hold(lane, -tokens)

    def call_back(self, lane: Lane, tokens: int, until_s: float) -> None:
        """Stop loans until ``until_s`` where the lane was refused ``tokens`` within its own share."""
        if not lane.rule.protected and lane.held_tokens + tokens <= lane.share_tokens * self.part:
            lane.called_back_until_s = max(lane.called_back_until_s, until_s)
            self._called_back_until_s = max(self._called_back_until_s, until_s)

    def hold(self, lane: Lane, tokens: int) -> None:
        """Count ``tokens`` as held, below 0 as free, by no request."""
        lane.held_tokens += tokens
        if not lane.rule.protected:
            self.shared_held_tokens += tokens

    def _called_back(self, borrower: Lane, now_s: float) -> bool:
        return any(
            lane is not borrower and lane.called_back_until_s > now_s for lane in self.by_name.values()
        )
