"""Plain textbook caches and the offline optimum, to measure eviction against.

A cache has `__contains__` and `touch(key)`, which inserts what is missing and evicts what must go.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from typing import Protocol

Key = Hashable
Prompts = Sequence[Sequence[Key]]


class Cache(Protocol):
    def __contains__(self, key: Key) -> bool: ...

    def touch(self, key: Key) -> None: ...


def hits(cache: Cache, prompts: Prompts) -> int:
    """Blocks of the longest cached prefix, summed; every prompt then touches all its blocks, head first."""
    total = 0
    for keys in prompts:
        total += next((index for index, key in enumerate(keys) if key not in cache), len(keys))
        for key in keys:
            cache.touch(key)
    return total


class LRU:
    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.order: OrderedDict[Key, None] = OrderedDict()

    def __contains__(self, key: Key) -> bool:
        return key in self.order

    def touch(self, key: Key) -> None:
        self.order[key] = None
        self.order.move_to_end(key)
        if len(self.order) > self.blocks:
            self.order.popitem(last=False)


class LFU:
    """Uses while cached; the least recent of equals leaves first."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.rank: dict[Key, tuple[int, int]] = {}
        self.heap: list[tuple[int, int, Key]] = []
        self.clock = 0

    def __contains__(self, key: Key) -> bool:
        return key in self.rank

    def touch(self, key: Key) -> None:
        self.clock += 1
        if key not in self.rank and len(self.rank) == self.blocks:
            while self.rank.get(self.heap[0][2]) != self.heap[0][:2]:
                heapq.heappop(self.heap)
            del self.rank[heapq.heappop(self.heap)[2]]
        rank = (self.rank.get(key, (0, 0))[0] + 1, self.clock)
        self.rank[key] = rank
        heapq.heappush(self.heap, (*rank, key))


class ARC:
    """Megiddo and Modha, FAST 2003: figure 4, with its names."""

    def __init__(self, blocks: int) -> None:
        self.c, self.p = blocks, 0.0
        self.t1, self.t2, self.b1, self.b2 = (OrderedDict[Key, None]() for _ in range(4))

    def __contains__(self, key: Key) -> bool:
        return key in self.t1 or key in self.t2

    def touch(self, key: Key) -> None:
        if key in self:
            self.t1.pop(key, None)
            self.t2.pop(key, None)
        elif key in self.b1:
            self.p = min(self.c, self.p + max(1.0, len(self.b2) / len(self.b1)))
            self._replace(in_b2=False)
            del self.b1[key]
        elif key in self.b2:
            self.p = max(0.0, self.p - max(1.0, len(self.b1) / len(self.b2)))
            self._replace(in_b2=True)
            del self.b2[key]
        else:
            self._make_room()
            self.t1[key] = None
            return
        self.t2[key] = None

    def _make_room(self) -> None:
        if len(self.t1) + len(self.b1) == self.c:
            if len(self.t1) < self.c:
                self.b1.popitem(last=False)
                self._replace(in_b2=False)
            else:
                self.t1.popitem(last=False)
            return
        known = len(self.t1) + len(self.t2) + len(self.b1) + len(self.b2)
        if known >= self.c:
            if known == 2 * self.c:
                self.b2.popitem(last=False)
            self._replace(in_b2=False)

    def _replace(self, in_b2: bool) -> None:
        if self.t1 and (len(self.t1) > self.p or (in_b2 and len(self.t1) == self.p)):
            self.b1[self.t1.popitem(last=False)[0]] = None
        else:
            self.b2[self.t2.popitem(last=False)[0]] = None


class S3FIFO:
    """Yang et al., SOSP 2023: a tenth for newcomers, what is used twice goes to the main queue."""

    def __init__(self, blocks: int) -> None:
        self.small_blocks = max(1, blocks // 10)
        self.main_blocks = blocks - self.small_blocks
        self.small: deque[Key] = deque()
        self.main: deque[Key] = deque()
        self.ghosts: OrderedDict[Key, None] = OrderedDict()
        self.uses: dict[Key, int] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self.uses

    def touch(self, key: Key) -> None:
        if key in self.uses:
            self.uses[key] = min(3, self.uses[key] + 1)
            return
        while len(self.uses) >= self.small_blocks + self.main_blocks:
            if len(self.small) >= self.small_blocks or not self.main:
                self._evict_small()
            else:
                self._evict_main()
        (self.main if key in self.ghosts else self.small).append(key)
        self.ghosts.pop(key, None)
        self.uses[key] = 0

    def _evict_small(self) -> None:
        key = self.small.popleft()
        if self.uses[key] > 1 and self.main_blocks:
            self.uses[key] = 0
            self.main.append(key)
            if len(self.main) > self.main_blocks:
                self._evict_main()
            return
        del self.uses[key]
        self.ghosts[key] = None
        if len(self.ghosts) > self.main_blocks:
            self.ghosts.popitem(last=False)

    def _evict_main(self) -> None:
        while self.uses[self.main[0]]:
            key = self.main.popleft()
            self.uses[key] -= 1
            self.main.append(key)
        del self.uses[self.main.popleft()]


def lru_tails_first_hits(prompts: Prompts, blocks: int) -> int:
    """LRU as engines keep it: within a prompt the tail is the older end."""
    cache, total = LRU(blocks), 0
    for keys in prompts:
        total += next((index for index, key in enumerate(keys) if key not in cache), len(keys))
        for key in reversed(keys):
            cache.touch(key)
    return total


def optimal_hits(prompts: Prompts, blocks: int) -> int:
    """Most hits that any policy could have had which knows the future (Belady, between prompts).

    After each prompt the blocks with the farthest next use leave, of equals the deeper one; a prefix is used
    whenever what follows it is, so it never leaves before that.
    """
    following: dict[Key, int] = {}
    next_uses = []
    for number in range(len(prompts) - 1, -1, -1):
        next_uses.append([following.get(key, len(prompts)) for key in prompts[number]])
        following |= dict.fromkeys(prompts[number], number)
    next_uses.reverse()

    cached: dict[Key, int] = {}
    farthest: list[tuple[int, int, Key]] = []
    total = 0
    for keys, uses in zip(prompts, next_uses, strict=True):
        total += next((index for index, key in enumerate(keys) if key not in cached), len(keys))
        for depth, (key, use) in enumerate(zip(keys, uses, strict=True)):
            cached[key] = use
            heapq.heappush(farthest, (-use, -depth, key))
        while len(cached) > blocks:
            use, _, key = heapq.heappop(farthest)
            if cached.get(key) == -use:
                del cached[key]
    return total
