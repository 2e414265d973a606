"""Claims of clients that were told to come back: room is kept for them when their time has come.

A client that does as it was told finds its room taken by whoever came just before it, unless others are held
back. So a refused request has a claim to the room it asked for, from the time it was told until a little
later. It is known again by its tenant and the size of its prompt. How much is kept follows how many have come
back so far: where nobody does, nothing is kept.
"""

from collections import deque
from heapq import heappop, heappush

EARLY_S = 0.05
"""A client this much too early is still the one that was told."""
AHEAD_S = 0.3
"""Room is kept from this long before: who comes last must not take what is next."""
KEPT_S = 2.0
"""Retry-After is in whole seconds, rounded up; then the way to us."""
STEP = 0.05
"""Weight of one claim in the share of those that come back."""

Key = tuple[str | None, int]


class _Claim:
    __slots__ = ("due", "due_s", "key", "open", "tokens")

    def __init__(self, key: Key, tokens: int, due_s: float) -> None:
        self.key = key
        self.tokens = tokens
        self.due_s = due_s
        self.open = True
        self.due = False

    def __lt__(self, other: "_Claim") -> bool:
        return self.due_s < other.due_s


class Claims:
    """Claims of one lane; ``count`` of them are open.

    >>> claims = Claims()
    >>> for second in range(100):
    ...     claims.add("acme", 500, 1_000, due_s=second + 1.0)
    ...     came_back = claims.redeem("acme", 500, now_s=second + 1.0)
    >>> came_back, claims.count, round(claims.share, 2)
    (True, 0, 0.99)
    >>> claims.add("acme", 500, 1_000, due_s=200.0)
    >>> [round(claims.kept_tokens(now_s)) for now_s in (198.0, 200.0, 203.0)]
    [0, 994, 0]
    """

    __slots__ = ("_by_key", "_coming", "_due", "_due_tokens", "count", "share")

    def __init__(self) -> None:
        self.count = 0
        self.share = 0.0
        self._coming: list[_Claim] = []  # by the time they are due, and redeemed ones
        self._due: deque[_Claim] = deque()
        self._due_tokens = 0
        self._by_key: dict[Key, deque[_Claim]] = {}

    def add(self, tenant: str | None, prompt_tokens: int, tokens: int, due_s: float) -> None:
        """Note that a request for ``tokens`` was told to come back at ``due_s``."""
        claim = _Claim((tenant, prompt_tokens), tokens, due_s)
        heappush(self._coming, claim)
        self._by_key.setdefault(claim.key, deque()).append(claim)
        self.count += 1

    def redeem(self, tenant: str | None, prompt_tokens: int, now_s: float) -> bool:
        """Whether a request that comes now was told to; its claim is then used up."""
        self._pass(now_s)
        claims = self._by_key.get((tenant, prompt_tokens))
        if claims is None or claims[0].due_s > now_s + EARLY_S:
            return False
        self._close(claims[0], 1.0)
        return True

    def kept_tokens(self, now_s: float) -> float:
        """Tokens to keep for those whose time has come and who are likely to come."""
        self._pass(now_s)
        return self._due_tokens * self.share

    def _pass(self, now_s: float) -> None:
        while self._coming and self._coming[0].due_s <= now_s + AHEAD_S:
            claim = heappop(self._coming)
            if claim.open:
                claim.due = True
                self._due.append(claim)
                self._due_tokens += claim.tokens
        while self._due and (not self._due[0].open or self._due[0].due_s <= now_s - KEPT_S):
            claim = self._due.popleft()
            if claim.open:
                self._close(claim, 0.0)

    def _close(self, claim: _Claim, came: float) -> None:
        claim.open = False
        self.count -= 1
        self.share += STEP * (came - self.share)
        if claim.due:
            self._due_tokens -= claim.tokens
        claims = self._by_key[claim.key]
        claims.remove(claim)
        if not claims:
            del self._by_key[claim.key]
