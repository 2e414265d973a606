"""What an operator may set of eviction, and the hints that a request may bring; checked when made."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from data.errors import InputError

DEFAULT_PRIORITY = 35
"""Priority of blocks without a hint, as in TensorRT-LLM."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How dearly a request asks for its blocks to be kept.

    Blocks of a lower priority leave wholly before those of a higher one.

    Attributes:
        priority: 0 to 100; 35 is that of blocks without a hint.
        duration_s: after it the priority is 35 again; None never ends.

    >>> Retention(priority=80, duration_s=30.0)
    Retention(priority=80, duration_s=30.0)

    """

    priority: int = DEFAULT_PRIORITY
    duration_s: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.priority <= 100 or self.priority != int(self.priority):
            raise InputError(
                f"Retention priority must be a whole number from 0 to 100; got {self.priority!r}."
            )
        if self.duration_s is not None and not 0 < self.duration_s < math.inf:
            raise InputError(
                f"Retention duration_s must be over 0 and finite, or None; got {self.duration_s!r}."
            )


@dataclass(frozen=True, slots=True)
class TenantBlocks:
    """Blocks that a tenant keeps at least, against others' needs, and those that it may hold at most."""

    floor: int = 0
    ceiling: int | None = None

    def __post_init__(self) -> None:
        if self.floor < 0:
            raise InputError(f"Tenant floor must be 0 blocks or more; got {self.floor!r}.")
        if self.ceiling is not None and self.ceiling < self.floor:
            raise InputError(
                f"Tenant ceiling must not be under its floor ({self.floor!r}); got {self.ceiling!r}."
            )


@dataclass(frozen=True, slots=True)
class LoadBands:
    """Which blocks may leave ahead of need, by load.

    A block whose chance of being used again is under the floor of the band may leave even where nobody
    waits for its room; so blocks under the lowest floor always may. Tightening moves one band higher.

    Attributes:
        edges: loads at which the second and the third band begin.
        floors: chance of reuse under which blocks may leave, by band; it rises with load.

    """

    edges: tuple[float, float] = (0.50, 0.85)
    floors: tuple[float, float, float] = (0.05, 0.15, 0.30)

    def __post_init__(self) -> None:
        if not 0 < self.edges[0] < self.edges[1] <= 1:
            raise InputError(f"Load band edges must rise within (0, 1]; got {self.edges!r}.")
        if not 0 <= self.floors[0] <= self.floors[1] <= self.floors[2] <= 1:
            raise InputError(f"Load band floors must not fall and must be in [0, 1]; got {self.floors!r}.")

    def floor(self, load: float, tightening: float = 0.0) -> float:
        """Chance of reuse under which a block may leave; an unknown load (NaN) is that of the lowest band.

        >>> [LoadBands().floor(load) for load in (0.2, 0.5, 0.85)]
        [0.05, 0.15, 0.3]
        >>> LoadBands().floor(0.2, tightening=0.4), LoadBands().floor(0.9, tightening=0.4)
        (0.15, 0.3)
        """
        band = sum(load >= edge for edge in self.edges) + (tightening > 0)
        return self.floors[min(band, 2)]


def equal_cost(depth: int) -> float:
    """Rebuild cost where prefill time is linear in tokens: every full block costs the same."""
    return 1.0


@dataclass(frozen=True, slots=True)
class EvictionRules:
    """Settings of the policy.

    Attributes:
        bands: which blocks may leave ahead of need.
        tenants: floors and ceilings by tenant; others share what is left.
        block_tokens: tokens in a full block.
        short_tokens: a request that brings at most so many new tokens is of the short kind.
        rebuild_cost: cost of computing a block anew by its depth in the prompt, in blocks from 1; over 0.
        remembered_blocks: evicted blocks that the policy still knows, to learn from their return.

    """

    bands: LoadBands = field(default_factory=LoadBands)
    tenants: Mapping[str, TenantBlocks] = field(default_factory=dict)
    block_tokens: int = 16
    short_tokens: int = 2_048
    rebuild_cost: Callable[[int], float] = equal_cost
    remembered_blocks: int = 65_536

    def __post_init__(self) -> None:
        for name in ("block_tokens", "short_tokens"):
            if getattr(self, name) <= 0:
                raise InputError(f"Eviction rule {name} must be over 0; got {getattr(self, name)!r}.")
        if self.remembered_blocks < 0:
            raise InputError(
                f"Eviction rule remembered_blocks must be 0 or more; got {self.remembered_blocks!r}."
            )

    def cost_class(self, depth: int) -> int:
        """Rebuild cost of a block at this depth, in half powers of two.

        >>> EvictionRules(rebuild_cost=lambda depth: 8.0 * depth).cost_class(depth=2)
        8
        """
        cost = self.rebuild_cost(depth)
        if not 0 < cost < math.inf:
            raise InputError(f"Rebuild cost must be over 0 and finite; got {cost!r} at depth {depth} blocks.")
        return round(2 * math.log2(cost))
