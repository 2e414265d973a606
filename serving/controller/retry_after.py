"""When a refused client should come back: by what must drain first, and not all at once."""

import math
from random import Random

LEAST_S = 0.5
"""No advice is shorter; as Retry-After it is one second."""
MOST_S = 30.0
"""No advice is longer, whatever the drain rate: clients give up on long delays."""
RETURNS_PER_S = 100
"""Clients of one lane that are told to come back in the same second, where the bound of 30 s leaves room."""


def wait_s(backlog_tokens: float, drain_tokens_per_s: float) -> float:
    """Seconds until ``backlog_tokens`` have drained; at most 30, also where nothing drains.

    >>> wait_s(60_000, 10_000.0), wait_s(500, 0.0)
    (6.0, 30.0)
    """
    if backlog_tokens <= 0:
        return 0.0
    return MOST_S if drain_tokens_per_s <= 0 else min(MOST_S, backlog_tokens / drain_tokens_per_s)


def jittered_ms(delay_s: float, random: Random) -> int:
    """Milliseconds from ``delay_s`` upward by up to a sixth, or to the next whole second if that is more.

    Clients wait exactly as long as they are told, so the spread must come from here. Advice stays within
    30 s; at the bound it spreads over the last second.

    >>> jittered_ms(0.05, Random(1)) <= 1_000, 6_000 <= jittered_ms(6.0, Random(1)) <= 7_000
    (True, True)
    """
    if delay_s >= MOST_S - 1.0:
        return int(MOST_S * 1_000) - int(random.random() * 1_000)
    delay_s = max(LEAST_S, delay_s)
    spread_s = min(max(math.ceil(delay_s) - delay_s, delay_s / 6.0), MOST_S - delay_s)
    return math.ceil((delay_s + random.random() * spread_s) * 1_000)


def quota_wait_ms(delay_s: float, random: Random) -> int:
    """Milliseconds from ``delay_s`` upward by up to a sixth, at least a second and at most half a minute.

    A quota is free again when its window says so, be it hours; many are at the same full hour.

    >>> 600_000 <= quota_wait_ms(600.0, Random(1)) <= 630_000
    True
    """
    return math.ceil((delay_s + random.random() * min(30.0, max(1.0, delay_s / 6.0))) * 1_000)


class Returns:
    """Return times that one lane has given away.

    Refused clients queue for their turn: each is told to come back when the tokens ahead of it, those of
    clients refused before it included, have drained, and at most 100 in a second. Where the line is longer
    than 30 s nobody can be told the truth: such a client comes back at a random point in the last third of
    them and stands in line then.

    Attributes:
        in_line: the last advice was a turn in the line.

    """

    def __init__(self, random: Random) -> None:
        self.in_line = False
        self._random = random
        self._next_s = -math.inf

    def advise_ms(
        self,
        backlog_tokens: float,
        request_tokens: float,
        drain_tokens_per_s: float,
        now_s: float,
        *,
        first: bool = False,
    ) -> int:
        """Milliseconds after which to come back with a request of that size.

        An infinite backlog says that nothing that drains will help: it gets the longest advice and no turn.
        With ``first`` its turn has come: it stands before all that were told later than it.
        """
        self.in_line = False
        if backlog_tokens == math.inf:
            return jittered_ms(MOST_S, self._random)
        earliest_s = now_s + wait_s(backlog_tokens, drain_tokens_per_s)
        latest_s = now_s + MOST_S - 1.0
        turn_s = earliest_s if first else max(earliest_s, self._next_s)
        if turn_s > latest_s:
            from_s = max(min(earliest_s, latest_s), now_s + MOST_S * 2 / 3)
            return jittered_ms(from_s + self._random.random() * (latest_s - from_s) - now_s, self._random)
        self.in_line = True
        if not first:
            self._next_s = turn_s + max(1.0 / RETURNS_PER_S, wait_s(request_tokens, drain_tokens_per_s))
        return jittered_ms(turn_s - now_s, self._random)
