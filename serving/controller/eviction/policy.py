"""The policy object that a KV cache embeds: it hears which blocks requests use, and says which should leave.

Partly filled blocks leave first, then those of lower retention priority, then those of lower value density:
expected reuse rate times rebuild cost. No block leaves before those that follow it, nor while a request runs
on it or waits for it.
"""

import heapq
import math
from collections.abc import Sequence
from itertools import count

from data.errors import InputError
from serving.controller.eviction.ageing import Ageing
from serving.controller.eviction.reuse import FORK, PARTIAL, ReuseTable, kind_of
from serving.controller.eviction.settings import DEFAULT_PRIORITY, EvictionRules, Retention
from serving.controller.eviction.shelf import Shelf
from serving.controller.eviction.spans import Hint, Key, Span
from serving.controller.eviction.tree import PrefixTree, Stretches

LEARN_EVERY_S = 5.0
NO_HINT = Hint(DEFAULT_PRIORITY, math.inf)


class EvictionPolicy:
    """Which block of a prefix cache should leave next.

    A prompt is a sequence of block keys, each of which names its whole prefix, as the block hashes of vLLM
    and of Mooncake do. The cache keeps the blocks; the policy keeps what it knows of them.

    >>> policy = EvictionPolicy()
    >>> policy.use("r1", ["system", "a"], now_s=0.0)
    0
    >>> policy.use("r2", ["system", "b"], now_s=1.0)
    1
    >>> policy.free("r1")
    >>> policy.evict(5, now_s=2.0)  # r2 still runs on the others
    ['a']
    """

    def __init__(self, rules: EvictionRules | None = None) -> None:
        self.rules = rules or EvictionRules()
        self._reuse = ReuseTable()
        self._common = Shelf(self._reuse)
        self._own = {tenant: Shelf(self._reuse) for tenant in self.rules.tenants}
        self._shelves = [(0, self._common)] + [
            (limits.floor, self._own[tenant]) for tenant, limits in self.rules.tenants.items()
        ]
        self._tree = PrefixTree(lambda tenant: self._own.get(tenant, self._common))
        self._ageing = Ageing(self._tree, self._reuse, self.rules.remembered_blocks)
        self._held: dict[str, Key | None] = {}
        self._running: set[str] = set()
        self._hints: list[tuple[float, int, Span]] = []
        self._number = count()
        self._now_s = -math.inf
        self._learned_s = -math.inf

    @property
    def cached_blocks(self) -> int:
        """Blocks that count as cached."""
        return self._tree.cached_blocks

    def blocks_of(self, tenant: str) -> int:
        """Blocks whose last user was this tenant; only for tenants with a floor or a ceiling."""
        return self._own[tenant].blocks

    def match(self, keys: Sequence[Key]) -> int:
        """Blocks of the longest cached prefix."""
        return self._tree.match(keys)

    def use(
        self,
        request: str,
        keys: Sequence[Key],
        now_s: float,
        *,
        tenant: str = "",
        retention: Retention | None = None,
        partly_filled: bool = False,
    ) -> int:
        """A request runs on these blocks from now on; returns how many of them were cached.

        All of them count as cached afterwards and stay until `free`. A request that runs already grows by
        using its longer chain. ``partly_filled`` says that the last block isn't full.

        Raises:
            InputError: keys that repeat, or that stood after another block before.

        """
        self._pass_time(now_s)
        keys = tuple(keys)  # the caller's list may grow with its request
        known = self._tree.known(keys)
        hits = self._tree.match(keys)
        grows = request in self._running
        stretches = self._tree.stretches(keys, known)
        pieces = self._pieces(keys, stretches, tenant, self._hint(retention), partly_filled, grows)
        for span, end in stretches:
            if grows:
                self._ageing.grew(span, end - span.start)
            else:
                self._ageing.used_again(span, end - span.start)
        self._tree.take_over(stretches)
        for piece in pieces:
            self._tree.add(piece)
            self._ageing.add(piece)
            if piece.hint.until_s < math.inf:
                heapq.heappush(self._hints, (piece.hint.until_s, next(self._number), piece))
        self._hold(request, keys[-1] if keys else None)
        self._running.add(request)
        for span in (*pieces, *(span for span, _ in stretches)):
            self._tree.settle(span)
        return hits

    def hold(self, name: str, keys: Sequence[Key], now_s: float) -> int:
        """Keep the cached prefix of these blocks until ``name`` runs on it (`use`) or is freed.

        For requests that wait, and for prefixes that an operator pins. Returns how many blocks are held.
        """
        self._pass_time(now_s)
        if name in self._running:
            raise InputError(f"{name!r} must not be running when it is held; its blocks are kept already.")
        matched = self._tree.match(keys)
        self._hold(name, keys[matched - 1] if matched else None)
        return matched

    def free(self, name: str) -> None:
        """The request has run, was cancelled or waits no longer; an unknown name changes nothing."""
        self._running.discard(name)
        key = self._held.pop(name, None)
        if key is not None:
            self._tree.let_go(key)

    def evict(self, blocks: int, now_s: float) -> list[Key]:
        """Make room: up to so many keys, in the order in which they leave; they count as gone.

        Tenants over their ceiling lose blocks first. Fewer keys where all others are in use, held or within
        floors.
        """
        self._pass_time(now_s)
        gone: list[Key] = []
        self._drop_excess(gone, blocks)
        while len(gone) < blocks:
            offers = [
                (*lowest, shelf.blocks - floor)
                for floor, shelf in self._shelves
                if shelf.blocks > floor and (lowest := shelf.lowest())
            ]
            if not offers:
                break
            _, span, over_floor = min(offers, key=lambda offer: offer[0])
            gone += self._drop_tail(span, min(blocks - len(gone), over_floor))
        return gone

    def release(self, now_s: float, load: float, tightening: float = 0.0) -> list[Key]:
        """Keys that should leave ahead of need: over a ceiling, or under the reuse floor of the load."""
        self._pass_time(now_s)
        gone: list[Key] = []
        self._drop_excess(gone, self.cached_blocks)
        reuse_floor = self.rules.bands.floor(load, tightening)
        for floor, shelf in self._shelves:
            # A block that leaves may free the one before it, in another span: look until nothing is left.
            while spans := list(shelf.doubtful(reuse_floor)) if shelf.blocks > floor else []:
                for span in spans:
                    if span.cell is not None and shelf.blocks > floor:
                        gone += self._drop_tail(span, shelf.blocks - floor)
        return gone

    def advise(self, keys: Sequence[Key]) -> Retention | None:
        """Retention hint for engines that take hints, after a request used these blocks; None if unknown.

        The priority is the chance in per cent that the last full block is used again; the duration is how
        long it is worth waiting for that.
        """
        owners = (self._tree.owner(key) for key in reversed(keys))
        span = next((span for span in owners if span is not None and span.kind != PARTIAL), None)
        if span is None:
            return None
        chance = self._reuse.chance(span.kind, span.age)
        return Retention(round(100 * chance), self._reuse.best_wait_s(span.kind, span.age))

    def _pieces(
        self,
        keys: Sequence[Key],
        stretches: Stretches,
        tenant: str,
        asked: Hint | None,
        partly_filled: bool,
        grows: bool,
    ) -> list[Span]:
        """The request's blocks as spans, cut where the kind or the retention changes."""
        last, known = stretches[-1] if stretches else (None, 0)
        turn, fork_end = _place(last, known, grows)
        brought_tokens = (len(keys) - known) * self.rules.block_tokens
        kind = kind_of(turn, brought_tokens <= self.rules.short_tokens)
        full_end = len(keys) - partly_filled
        hints = [(len(keys), asked)] if asked else [(end, span.hint) for span, end in stretches]
        ends = {fork_end, full_end, len(keys)} - {0}
        if any(hint != NO_HINT for _, hint in hints):
            ends |= {end for end, _ in hints}
        pieces: list[Span] = []
        start = 0
        for end in sorted(ends):
            pieces.append(
                Span(
                    keys=keys,
                    start=start,
                    cached_end=end,
                    known_end=end,
                    used_s=self._now_s,
                    tenant=tenant,
                    kind=PARTIAL if end > full_end else FORK if end <= fork_end else kind,
                    cost_class=self.rules.cost_class(end),
                    hint=next((hint for until, hint in hints if end <= until), NO_HINT),
                    turn=turn,
                    fork_end=fork_end,
                )
            )
            start = end
        return pieces

    def _hint(self, retention: Retention | None) -> Hint | None:
        if retention is None:
            return None
        lasts_s = math.inf if retention.duration_s is None else retention.duration_s
        return Hint(retention.priority, self._now_s + lasts_s)

    def _hold(self, name: str, key: Key | None) -> None:
        before = self._held.get(name)
        self._held[name] = key
        if key is not None:
            self._tree.keep(key)
        if before is not None:
            self._tree.let_go(before)

    def _drop_excess(self, gone: list[Key], most: int) -> None:
        for tenant, shelf in self._own.items():
            ceiling = self.rules.tenants[tenant].ceiling
            while ceiling is not None and shelf.blocks > ceiling and len(gone) < most:
                lowest = shelf.lowest()
                if lowest is None:
                    break
                gone += self._drop_tail(lowest[1], min(shelf.blocks - ceiling, most - len(gone)))

    def _drop_tail(self, span: Span, most: int) -> list[Key]:
        gone = self._tree.drop_tail(span, most)
        self._ageing.left(span)
        return gone

    def _pass_time(self, now_s: float) -> None:
        """Everything that follows from the clock; one that steps back stands still."""
        if not math.isfinite(now_s):
            raise InputError(f"now_s must be a finite number of seconds; got {now_s!r}.")
        self._now_s = max(self._now_s, now_s)
        self._ageing.pass_time(self._now_s)
        while self._hints and self._hints[0][0] <= self._now_s:
            span = heapq.heappop(self._hints)[2]
            span.hint = NO_HINT
            self._tree.settle(span)
        if self._now_s >= self._learned_s + LEARN_EVERY_S:
            self._learned_s = self._now_s
            self._reuse.learn(self._now_s)
            for _, shelf in self._shelves:
                shelf.learned()


def _place(last: Span | None, known: int, grows: bool) -> tuple[int, int]:
    """Turn of a request and the end of what it shares with others, by the span where its known part ends.

    A request that goes on with more than half of an earlier one's blocks is its next turn; one that knows
    less has only a prefix in common with it, and the chains fork there.
    """
    if last is None:
        return 1, 0
    if grows or 2 * known > len(last.keys):
        return last.turn + (not grows), min(known, last.fork_end)
    return 1, known
