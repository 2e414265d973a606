"""KV blocks of a simulated engine: private ones, shared ones, and idle ones that a prefix may find again."""

from collections import OrderedDict
from collections.abc import Hashable, Sequence


class KvBlocks:
    """A pool of blocks, with a prefix cache in it.

    A block is private to one request, or shared under a key by the requests that reference it, or idle: no
    request needs it, and it stays until its room is wanted, the one that was idle for the longest first. A
    key must name the block's place in its prefix as well as its content: a prefix is a chain of keys.

    >>> blocks = KvBlocks(4)
    >>> blocks.take(3)
    >>> blocks.share(["system", "tools"])
    >>> blocks.used, blocks.free
    (3, 1)
    >>> blocks.release(["system", "tools"], private=1)
    >>> blocks.used, blocks.match(["system", "tools", "question"])
    (0, 2)
    >>> blocks.take(3)
    >>> blocks.match(["system", "tools", "question"])  # the tail had to go, the head stays
    1

    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._private = 0
        self._references: dict[Hashable, int] = {}
        self._idle: OrderedDict[Hashable, None] = OrderedDict()

    @property
    def used(self) -> int:
        """Blocks that requests hold."""
        return self._private + len(self._references)

    @property
    def free(self) -> int:
        """Blocks that requests can still get; idle ones are among them."""
        return self.total - self.used

    def match(self, prefix: Sequence[Hashable]) -> int:
        """How many leading blocks of a prefix are there."""
        for count, key in enumerate(prefix):
            if key not in self._references and key not in self._idle:
                return count
        return len(prefix)

    def needed(self, matched: Sequence[Hashable], private: int) -> int:
        """Free blocks that a request would use up, which references these and takes some more."""
        return private + sum(key not in self._references for key in matched)

    def reference(self, matched: Sequence[Hashable]) -> None:
        """Hold blocks that `match` found."""
        for key in matched:
            self._idle.pop(key, None)
            self._references[key] = self._references.get(key, 0) + 1

    def take(self, count: int) -> None:
        """Make blocks private to a request; the caller has seen that they are free."""
        self._private += count
        while self.used + len(self._idle) > self.total:
            self._idle.popitem(last=False)

    def share(self, computed: Sequence[Hashable]) -> None:
        """Put private blocks under their keys; where another request was first, its block serves both."""
        self._private -= len(computed)
        self.reference(computed)

    def release(self, shared: Sequence[Hashable], private: int) -> None:
        """Let go of a request's blocks; its tail is the first to be evicted, since heads are shared."""
        self._private -= private
        for key in reversed(shared):
            self._references[key] -= 1
            if not self._references[key]:
                del self._references[key]
                self._idle[key] = None
