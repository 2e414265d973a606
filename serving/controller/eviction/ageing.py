"""Spans pass from age class to age class as time passes; what reaches an age is counted for learning."""

import math
from collections import deque

from serving.controller.eviction.reuse import AGE_EDGES_S, AGES, HORIZON_S, PARTIAL, ReuseTable
from serving.controller.eviction.spans import Span
from serving.controller.eviction.tree import PrefixTree

_LEAVES_AT_S = (*AGE_EDGES_S[1:], HORIZON_S)


class Ageing:
    """One queue of spans for each age class, oldest first, so that a step touches those that move alone."""

    def __init__(self, tree: PrefixTree, reuse: ReuseTable, remembered_blocks: int) -> None:
        self._tree = tree
        self._reuse = reuse
        self._remembered_blocks = remembered_blocks
        self._queues: list[deque[Span]] = [deque() for _ in range(AGES)]
        self._left: deque[Span] = deque()
        self._due_s = math.inf

    def add(self, span: Span) -> None:
        """A span of age 0."""
        self._queues[0].append(span)
        self._due_s = min(self._due_s, span.used_s + _LEAVES_AT_S[0])
        if span.kind != PARTIAL:
            self._reuse.expose(span.kind, (0,), span.known)

    def used_again(self, span: Span, blocks: int) -> None:
        """Blocks of the span were used by another request."""
        if span.kind != PARTIAL:
            self._reuse.reuse(span.kind, span.age, blocks)

    def grew(self, span: Span, blocks: int) -> None:
        """The request itself goes on with these blocks: they never waited, so nothing is learned."""
        if span.kind != PARTIAL:
            self._reuse.expose(span.kind, range(span.age + 1), -blocks)

    def left(self, span: Span) -> None:
        """Blocks of the span left; the oldest remembered ones are forgotten where they are too many."""
        if not span.remembered:
            span.remembered = True
            self._left.append(span)
        while self._left and (self._tree.gone_blocks > self._remembered_blocks or not self._left[0].gone):
            oldest = self._left.popleft()
            oldest.remembered = False
            self._tree.forget(oldest)

    def pass_time(self, now_s: float) -> None:
        """Move the spans that have reached the next age; past the horizon, what left is forgotten."""
        if now_s < self._due_s:
            return
        self._due_s = math.inf
        for age, queue in enumerate(self._queues):
            while queue and now_s >= queue[0].used_s + _LEAVES_AT_S[age]:
                span = queue.popleft()
                if not span.known:
                    continue
                if age + 1 == AGES:
                    self._tree.forget(span)
                    continue
                span.age = age + 1
                self._queues[age + 1].append(span)
                if span.kind != PARTIAL:
                    self._reuse.expose(span.kind, (span.age,), span.known)
                if span.cell is not None:
                    self._tree.settle(span)
            if queue:
                self._due_s = min(self._due_s, queue[0].used_s + _LEAVES_AT_S[age])
