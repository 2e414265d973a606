"""Continuations: what is kept of an answer that was clamped, so that its rest counts as the same request.

The client gets an opaque handle with the clamped answer and sends it back with the prompt and the answer so
far. The rest is judged in the lane of the first part, goes to its model and its pool, and isn't asked again
to wait for others. A handle is good for one admission, for its own tenant, and for a limited time.
"""

from collections import OrderedDict
from dataclasses import dataclass
from random import Random

from serving.controller.degradation import Pool


@dataclass(frozen=True, slots=True)
class Continuation:
    """Rest of a clamped answer.

    Attributes:
        tenant: who may redeem it.
        lane: lane that the first part was judged in.
        model: smaller model that stood in; None for the model asked for.
        pool: pool that it was routed to; None where nothing was routed.
        left_tokens: output that the request may still take.
        paid_tokens: prompt and output that the parts before were charged; they come back as prompt.
        expires_s: end of its time.

    """

    tenant: str | None
    lane: str
    model: str | None
    pool: Pool | None
    left_tokens: int
    paid_tokens: int
    expires_s: float


class Continuations:
    """The latest ``most`` continuations, each for ``live_s`` after it was issued.

    >>> kept = Continuations(most=2, live_s=600.0, random=Random(1))
    >>> handle = kept.issue(0.0, "acme", "batch", None, None, left_tokens=976, paid_tokens=1_524)
    >>> len(handle), kept.find(handle, "acme", 1.0).left_tokens, kept.find(handle, "other", 1.0)
    (32, 976, None)
    >>> kept.redeem(handle)
    >>> kept.find(handle, "acme", 2.0), kept.unknown
    (None, 2)
    """

    def __init__(self, most: int, live_s: float, random: Random) -> None:
        self.unknown = 0
        self.unredeemed = 0
        self._most = most
        self._live_s = live_s
        self._random = random
        self._open: OrderedDict[str, Continuation] = OrderedDict()  # by time: all live equally long

    def __len__(self) -> int:
        return len(self._open)

    def issue(
        self,
        now_s: float,
        tenant: str | None,
        lane: str,
        model: str | None,
        pool: Pool | None,
        left_tokens: int,
        paid_tokens: int,
    ) -> str | None:
        """Handle for the rest of an answer, 32 characters; None where nothing is left."""
        if left_tokens <= 0:
            return None
        self.forget(now_s)
        if len(self._open) >= self._most:
            self._drop_oldest()
        handle = f"{self._random.getrandbits(128):032x}"
        self._open[handle] = Continuation(
            tenant, lane, model, pool, left_tokens, paid_tokens, now_s + self._live_s
        )
        return handle

    def find(self, handle: str, tenant: str | None, now_s: float) -> Continuation | None:
        """What the handle stands for; None, and counted, when it is unknown, used, expired or another's."""
        kept = self._open.get(handle)
        if kept is None or kept.tenant != tenant or kept.expires_s <= now_s:
            self.unknown += 1
            return None
        return kept

    def redeem(self, handle: str) -> None:
        """Use a handle up; once its request is admitted, and not before.

        It may have made room for others that were let in just ahead of that request.
        """
        self._open.pop(handle, None)

    def forget(self, now_s: float) -> None:
        """Drop the handles whose time is over."""
        while self._open and next(iter(self._open.values())).expires_s <= now_s:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        self._open.popitem(last=False)
        self.unredeemed += 1
