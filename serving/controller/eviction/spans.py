"""Spans: the blocks of one prompt whose last use was the same request, kept as one thing with one age.

A prompt is a chain of block keys, each of which names its whole prefix. A request takes over the known part
of its chain from earlier spans, so each span loses blocks at its head by use and at its tail by eviction:

    keys    k0 k1 k2 | k3 k4 k5 | k6 k7 | k8 ...
            taken by   cached     known   forgotten
            others     ^start     ^cached_end
                                          ^known_end
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Key = Hashable


class Hint(NamedTuple):
    """Retention in force: a priority, and when it ends."""

    priority: int
    until_s: float


@dataclass(slots=True, eq=False)
class Span:
    """A run of blocks with a common last use.

    Attributes:
        keys: the whole chain of the request, from the prompt's first block.
        start: index of the first block that no later request took over.
        cached_end: end of the blocks that are cached; they leave from here.
        known_end: end of the blocks that are remembered after they left.
        used_s: last use.
        tenant: who used it last.
        kind: what reuse is learned by.
        cost_class: rebuild cost, in half powers of two.
        hint: retention in force.
        turn: requests that continued one another up to this one.
        fork_end: end of the part of the chain that several chains share.
        age: age class.
        remembered: some of its blocks left, and it stands in the queue of those to forget.
        cell: where it stands on its shelf; None while its tail must stay.

    """

    keys: Sequence[Key]
    start: int
    cached_end: int
    known_end: int
    used_s: float
    tenant: str
    kind: int
    cost_class: int
    hint: Hint
    turn: int
    fork_end: int
    age: int = 0
    remembered: bool = False
    cell: tuple[int, int, int, int] | None = None

    @property
    def cached(self) -> int:
        """Blocks that are cached."""
        return self.cached_end - self.start

    @property
    def known(self) -> int:
        """Blocks that are cached or remembered."""
        return self.known_end - self.start

    @property
    def tail(self) -> Key:
        """The block that would leave first; only where any is cached."""
        return self.keys[self.cached_end - 1]

    @property
    def gone(self) -> int:
        """Blocks that left and are remembered."""
        return self.known_end - self.cached_end
