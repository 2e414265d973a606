"""Spans that may lose their tail, in the order in which they should: a heap over few cells of equal spans."""

import heapq
from collections.abc import Iterator

from serving.controller.eviction.reuse import PARTIAL, ReuseTable
from serving.controller.eviction.settings import DEFAULT_PRIORITY
from serving.controller.eviction.spans import Span

Cell = tuple[int, int, int, int]
"""Priority, kind, age class, cost class: all spans of a cell are worth the same per block."""


class Shelf:
    """Spans by worth. Within a cell the one that came first leaves first.

    There are at most kinds * ages cells for each priority and cost class in use, whatever the size of the
    cache, so a step takes O(log cells).
    """

    def __init__(self, reuse: ReuseTable) -> None:
        self.blocks = 0
        """Cached blocks of the shelf's tenants, whether their spans may leave or not."""
        self._reuse = reuse
        self._cells: dict[Cell, dict[Span, None]] = {}
        self._order: list[tuple[int, float, Cell]] = []

    def put(self, span: Span) -> None:
        """Offer the span's tail."""
        cell = (span.hint.priority, span.kind, span.age, span.cost_class)
        spans = self._cells.get(cell)
        if spans is None:
            spans = self._cells[cell] = {}
            heapq.heappush(self._order, self._rank(cell))
        spans[span] = None
        span.cell = cell

    def take(self, span: Span) -> None:
        """Offer it no longer."""
        if span.cell is not None:
            del self._cells[span.cell][span]
            span.cell = None

    def lowest(self) -> tuple[tuple[int, float, Cell], Span] | None:
        """Rank and span of least worth; None where no block may leave."""
        while self._order:
            rank = self._order[0]
            spans = self._cells[rank[2]]
            if spans:
                return rank, next(iter(spans))
            del self._cells[rank[2]]
            heapq.heappop(self._order)
        return None

    def doubtful(self, floor: float) -> Iterator[Span]:
        """Spans whose chance of reuse is under the floor, and partly filled blocks; hints above all keep."""
        for (priority, kind, age, _), spans in list(self._cells.items()):
            doubtful = kind == PARTIAL or self._reuse.chance(kind, age) < floor
            if doubtful and priority <= DEFAULT_PRIORITY:
                yield from list(spans)

    def learned(self) -> None:
        """Order anew, after values have changed."""
        self._cells = {cell: spans for cell, spans in self._cells.items() if spans}
        self._order = [self._rank(cell) for cell in self._cells]
        heapq.heapify(self._order)

    def _rank(self, cell: Cell) -> tuple[int, float, Cell]:
        priority, kind, age, cost_class = cell
        if kind == PARTIAL:
            return -1, 0.0, cell
        return priority, self._reuse.value(kind, age) * 2.0 ** (cost_class / 2), cell
