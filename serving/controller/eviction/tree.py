"""The prefix tree as spans: who owns which block, and which blocks must stay because others follow them."""

from collections import Counter
from collections.abc import Callable, Sequence

from data.errors import InputError
from serving.controller.eviction.shelf import Shelf
from serving.controller.eviction.spans import Key, Span

Stretches = list[tuple[Span, int]]
"""Spans that own a known prefix, in the order of the prompt, each with the place where its part ends."""


class PrefixTree:
    """Cached and remembered blocks. Spans whose tail may leave stand on their tenant's shelf.

    A block stays while a request holds it or a cached span follows it; so a prefix never leaves before what
    depends on it, and to hold the last block of a chain is to hold all of it.
    """

    def __init__(self, shelf_of: Callable[[str], Shelf]) -> None:
        self.cached_blocks = 0
        self.gone_blocks = 0
        """Blocks that left and are remembered."""
        self._shelf_of = shelf_of
        self._owner: dict[Key, Span] = {}
        self._stays: Counter[Key] = Counter()

    def owner(self, key: Key) -> Span | None:
        """Span of the block; None where it is unknown."""
        return self._owner.get(key)

    def match(self, keys: Sequence[Key]) -> int:
        """Blocks of the longest cached prefix."""
        for index, key in enumerate(keys):
            span = self._owner.get(key)
            if span is None or index >= span.cached_end:
                return index
        return len(keys)

    def known(self, keys: Sequence[Key]) -> int:
        """Blocks of the longest known prefix, cached or remembered.

        Raises:
            InputError: a key that repeats, or that stood after another block before.

        """
        if len(set(keys)) != len(keys):
            raise InputError(
                "Block keys of a prompt must differ: each names its whole prefix; got one twice."
            )
        known = len(keys)
        for index, key in enumerate(keys):
            span = self._owner.get(key)
            if span is None:
                known = min(known, index)
            elif index >= known or not _follows(span, index, keys):
                if index < span.cached_end and key in span.keys[span.start : span.cached_end]:
                    raise InputError(
                        f"Block key {key!r} must always stand after the same block, since it names its whole "
                        f"prefix; got it at place {index} after another one."
                    )
                self.forget(span)  # what it followed was forgotten before it
                return self.known(keys)
        return known

    def stretches(self, keys: Sequence[Key], known: int) -> Stretches:
        """Spans that own the first ``known`` blocks."""
        stretches: Stretches = []
        index = 0
        while index < known:
            span = self._owner[keys[index]]
            end = min(known, span.known_end)
            while self._owner[keys[end - 1]] is not span:
                end -= 1
            stretches.append((span, end))
            index = end
        return stretches

    def take_over(self, stretches: Stretches) -> None:
        """Take these blocks from their spans, for a span to `add`; `settle` these spans afterwards."""
        for span, end in stretches:
            self._cut_head(span, end)

    def add(self, span: Span) -> None:
        """Take in a new span, all of whose blocks are cached; `settle` it afterwards."""
        for key in span.keys[span.start : span.cached_end]:
            self._owner[key] = span
        self._count(span, span.cached)
        self._follow(span, +1)

    def settle(self, span: Span) -> None:
        """Put the span on its shelf where its tail may leave, and take it off where not."""
        shelf = self._shelf_of(span.tenant)
        shelf.take(span)
        if span.cached > 0 and span.tail not in self._stays:
            shelf.put(span)

    def keep(self, key: Key) -> None:
        """Keep a cached block, and all before it, until it is let go of as often as it was kept."""
        self._stays[key] += 1
        self.settle(self._owner[key])

    def let_go(self, key: Key) -> None:
        """Undo one `keep`."""
        self._unstay(key)
        self.settle(self._owner[key])

    def drop_tail(self, span: Span, most: int) -> list[Key]:
        """Up to so many of the span's cached blocks leave, last first, and are remembered."""
        end = span.cached_end
        stop = max(span.start, end - most)
        while end > stop and span.keys[end - 1] not in self._stays:
            end -= 1
        gone = list(span.keys[end : span.cached_end])
        gone.reverse()
        span.cached_end = end
        self._count(span, -len(gone))
        self.gone_blocks += len(gone)
        if span.cached == 0 or span.tail in self._stays:
            self._shelf_of(span.tenant).take(span)
        if span.cached == 0 and span.start:
            self.let_go(span.keys[span.start - 1])
        return gone

    def forget(self, span: Span) -> None:
        """Remember the span's blocks that left no longer."""
        for key in span.keys[span.cached_end : span.known_end]:
            del self._owner[key]
        self.gone_blocks -= span.gone
        span.known_end = span.cached_end

    def _cut_head(self, span: Span, end: int) -> None:
        """The span's blocks before ``end`` have a new owner to come."""
        self._shelf_of(span.tenant).take(span)
        self._follow(span, -1)
        cached_end = max(span.cached_end, end)
        self._count(span, -(min(span.cached_end, end) - span.start))
        self.gone_blocks -= cached_end - span.cached_end
        span.start, span.cached_end = end, cached_end
        self._follow(span, +1)

    def _follow(self, span: Span, change: int) -> None:
        """The block before a cached span stays."""
        if span.start and span.cached > 0:
            parent = span.keys[span.start - 1]
            if change > 0:
                self._stays[parent] += 1
            else:
                self._unstay(parent)

    def _unstay(self, key: Key) -> None:
        self._stays[key] -= 1
        if not self._stays[key]:
            del self._stays[key]

    def _count(self, span: Span, change: int) -> None:
        self.cached_blocks += change
        self._shelf_of(span.tenant).blocks += change


def _follows(span: Span, index: int, keys: Sequence[Key]) -> bool:
    """True where the span knows the key at this place, after the same block."""
    if not span.start <= index < span.known_end or span.keys[index] != keys[index]:
        return False
    return index == 0 or span.keys[index - 1] == keys[index - 1]
