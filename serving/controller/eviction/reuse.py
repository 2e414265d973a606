"""How likely blocks are used again: a life table by kind and age, learned as requests come.

A conversation comes back after a think time: the chance that its blocks are used in the next second is small
at first, rises, and falls again. Blocks are worth keeping not by how young they are but by what they will
earn for the room that they hold: the largest ratio, over all times to wait, of expected reuses to expected
block-seconds (the Gittins index; for caches in steady state the same order as Whittle's index).
"""

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

AGE_EDGES_S = (0.0, *(2.0**power for power in range(12)))
"""Seconds since the last use at which the age classes begin: doubling, because think times spread so."""
AGES = len(AGE_EDGES_S)
HORIZON_S = 2 * AGE_EDGES_S[-1]
"""Nothing is expected of a block that has not been used for this long."""

TURN_CLASSES = 4
"""First turn, second and third, fourth to seventh, later ones."""
FORK, PARTIAL, KINDS = 2 * TURN_CLASSES, 2 * TURN_CLASSES + 1, 2 * TURN_CLASSES + 2
"""Kinds after those of `kind_of`: prefixes that several chains share, and partly filled blocks."""

PRIOR_BLOCKS = 200.0
"""Weight of what all kinds together show, and of the prior in that; about ten requests' worth of blocks."""
PRIOR_REUSE = 0.2
"""Chance of reuse within any age class before anything is known: per second, it falls with age, as in LRU."""


def kind_of(turn: int, short: bool) -> int:
    """Kind of the blocks of a request: its turn in the conversation, and whether it brought little new.

    >>> [kind_of(turn, short=False) for turn in (1, 2, 3, 4, 8, 100)]
    [1, 3, 3, 5, 7, 7]
    >>> kind_of(1, short=True)
    0
    """
    return 2 * min(TURN_CLASSES - 1, turn.bit_length() - 1) + (not short)


class ReuseTable:
    """Blocks that reached each age, blocks that were used again at it, and what follows from both.

    Counts lose half their weight every ``half_life_s``, so that habits may change.

    >>> table = ReuseTable()
    >>> before = table.value(kind=1, age=7)
    >>> table.expose(kind=1, ages=range(8), blocks=10_000)
    >>> table.reuse(kind=1, age=7, blocks=6_000)
    >>> table.learn(now_s=0.0)
    >>> table.value(kind=1, age=7) > before
    True
    >>> round(table.chance(kind=1, age=7), 1), table.chance(kind=1, age=0) > 0.5
    (0.9, True)
    """

    def __init__(self, half_life_s: float = 3_600.0) -> None:
        self._half_life_s = half_life_s
        self._learned_s = math.nan
        self._exposed: NDArray[np.float64] = np.zeros((KINDS, AGES))
        self._reused: NDArray[np.float64] = np.zeros((KINDS, AGES))
        self._value: list[list[float]] = []
        self._chance: list[list[float]] = []
        self._best_wait_s: list[list[float]] = []
        self.learn(math.nan)

    def expose(self, kind: int, ages: Iterable[int], blocks: int) -> None:
        """Count blocks that reached these ages."""
        for age in ages:
            self._exposed[kind, age] += blocks

    def reuse(self, kind: int, age: int, blocks: int) -> None:
        """Count blocks that were used again at this age."""
        self._reused[kind, age] += blocks

    def value(self, kind: int, age: int) -> float:
        """Reuses per block-second that keeping such a block earns, until the best time to let go of it."""
        return self._value[kind][age]

    def chance(self, kind: int, age: int) -> float:
        """Chance that such a block is used again at all, within the horizon."""
        return self._chance[kind][age]

    def best_wait_s(self, kind: int, age: int) -> float:
        """Seconds after which such a block, not used again, has become worth less than it is now."""
        return self._best_wait_s[kind][age]

    def learn(self, now_s: float) -> None:
        """Take all counts so far into values and chances; O(kinds * ages^2), so call it now and then."""
        if now_s > self._learned_s:
            kept = 0.5 ** ((now_s - self._learned_s) / self._half_life_s)
            self._exposed *= kept
            self._reused *= kept
        self._learned_s = now_s
        pooled = (self._reused.sum(axis=0) + PRIOR_BLOCKS * PRIOR_REUSE) / (
            self._exposed.sum(axis=0) + PRIOR_BLOCKS
        )
        reused = (self._reused + PRIOR_BLOCKS * pooled) / (self._exposed + PRIOR_BLOCKS)
        self._price(np.clip(reused, 0.0, 1.0))

    def _price(self, reused: NDArray[np.float64]) -> None:
        """Values and chances from the chance of reuse within each age class, shape (kinds, ages)."""
        width_s = np.diff([*AGE_EDGES_S, HORIZON_S])
        value, chance, wait_s = np.zeros_like(reused), np.zeros_like(reused), np.zeros_like(reused)
        for age in range(AGES):
            left = np.cumprod(1 - reused[:, age:], axis=1)
            alive = np.column_stack([np.ones(KINDS), left[:, :-1]])
            held_s = np.cumsum(alive * width_s[age:] * (1 - reused[:, age:] / 2), axis=1)
            per_s = (1 - left) / held_s
            value[:, age] = per_s.max(axis=1)
            chance[:, age] = 1 - left[:, -1]
            wait_s[:, age] = np.cumsum(width_s[age:])[per_s.argmax(axis=1)]
        self._value, self._chance, self._best_wait_s = value.tolist(), chance.tolist(), wait_s.tolist()
