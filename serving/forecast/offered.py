"""Offered load: what arrives, admitted or not, feeds the features and the live labels alike."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl
from numpy import float32
from numpy.typing import NDArray

from features.online import OnlineFeatures
from features.watermark import WATERMARK_S
from serving.forecast.live_work import LiveWork

US = 1_000_000
AHEAD_S = 5
"""An event may carry a time this far ahead of our clock; more is skew that its source must mend."""
BEHIND_S = WATERMARK_S
"""An event this far behind the last tick still counts in its own second; others are late."""
REPLAY_BEHIND_S = 30
"""Until the first tick, events older than this are history being replayed, and ticks wait for its end..."""
REPLAY_PATIENCE_S = 30.0
"""...or until no event has come for this long."""

Refusal = Literal["ahead", "late"]

REFUSED = ("shed", "failed")
"""Outcomes without an answer."""

_MARKS = ("tenant", "lane", "model", "log_type", "session")
_FACTS = (
    pl.col("arrived_at", "finished_at").to_physical(),
    pl.col("prompt_tokens", "cached_tokens", "output_tokens"),
    pl.col(_MARKS),
    pl.col("outcome").is_in(REFUSED).fill_null(False),
)


@dataclass(slots=True)
class Offer:
    """An offered request whose end is not known yet."""

    second: int
    flow: int
    prompt_tokens: int
    counted_tokens: int
    session: str | None = None


class OfferedLoad:
    """Requests as they arrive and end, by second since the first one.

    Live requests always fall into the second under way. Events that were observed elsewhere come with their
    own time: up to `BEHIND_S` behind the last tick the next one knows them as if they had come in time; they
    may be refused as too late or too far ahead. What happened up to `BEHIND_S` before the first arrival told
    counts in the first second.
    """

    def __init__(self) -> None:
        self.live = OnlineFeatures()
        self.work = LiveWork()
        self.ticked_s = 0
        self._newest_us: int | None = None
        self._heard_s = float("-inf")

    @property
    def origin_us(self) -> int | None:
        """Time of the first arrival, microseconds since the Unix epoch; none before it."""
        return self.live.origin_us

    def second(self, at_us: int) -> int:
        """Whole seconds from the first arrival to ``at_us``."""
        return 0 if self.origin_us is None else (at_us - self.origin_us) // US

    def refusal(self, at_us: int, now_us: int) -> Refusal | None:
        """Say why an event of that time can't be taken in; none when it can."""
        if at_us > now_us + AHEAD_S * US:
            return "ahead"
        return "late" if self.second(at_us) < self.ticked_s - BEHIND_S else None

    def arrive(
        self,
        at_us: int,
        heard_s: float,
        prompt_tokens: int,
        *,
        tenant: str | None,
        lane: str | None,
        model: str | None,
        log_type: str | None,
        session: str | None = None,
    ) -> Offer:
        """Count an arrival at ``at_us``; ``heard_s`` is our monotonic time.

        One that is later than `BEHIND_S` counts for the labels, which may still hear of it, while features
        leave it out and count it as late.
        """
        at_us = self._counted_us(at_us)
        flow = self.live.arrive(
            at_us, prompt_tokens, tenant=tenant, lane=lane, model=model, log_type=log_type, session=session
        )
        self._newest_us = max(at_us, self._newest_us or at_us)
        self._heard_s = heard_s
        second = self.second(at_us)
        counted = self.work.arrive(second, flow, prompt_tokens)
        return Offer(second, flow, prompt_tokens, counted, session)

    def completed(self, requests: pl.DataFrame, heard_s: float) -> None:
        """Count whole requests as `arrive` and `finish` would, first those whose output is known.

        Args:
            requests: columns of the lake's requests; arrivals and ends are known.
            heard_s: our monotonic time.

        """
        told = requests.filter(pl.col("output_tokens").is_not_null())
        if told.height:
            self._heard_s = heard_s
            self._told(told.with_columns(pl.col("cached_tokens").fill_null(0)))
        for fact in requests.filter(pl.col("output_tokens").is_null()).select(_FACTS).iter_rows():
            at_us, end_us, prompt, cached, _, *marks, refused = fact
            offer = self.arrive(at_us, heard_s, prompt, **dict(zip(_MARKS, marks, strict=True)))
            self.finish(offer, end_us, None, cached, refused=refused)

    def _told(self, requests: pl.DataFrame) -> None:
        """Count whole requests whose every count is known."""
        origin_us = requests["arrived_at"].to_physical()[0] if self.origin_us is None else self.origin_us
        # As `_counted_us` has it, for all at once.
        first_us = origin_us - BEHIND_S * US
        for name in ("arrived_at", "finished_at"):
            at_us = pl.col(name).to_physical()
            shortly_before = (at_us >= first_us) & (at_us < origin_us)
            requests = requests.with_columns(
                pl.when(shortly_before).then(origin_us).otherwise(at_us).alias(name)
            )
        live, flows = self.live, []
        for fact in requests.select(_FACTS).iter_rows():
            at, end, prompt, cached, output, *marks, refused = fact
            flow = live.arrive(at, prompt, **dict(zip(_MARKS, marks, strict=True)))
            live.finish(end, flow, prompt, cached, output, refused=refused, session=marks[-1])
            flows.append(flow)
        newest_us = int(requests["arrived_at"].max())  # type: ignore[arg-type]
        self._newest_us = max(newest_us, self._newest_us or newest_us)
        realised = requests["prompt_tokens"] - requests["cached_tokens"] + requests["output_tokens"]
        self.work.completed(
            ((requests["arrived_at"] - origin_us) // US).to_numpy(),
            np.array(flows),
            realised.to_numpy(),
            requests["output_tokens"].to_numpy(),
        )

    def finish(
        self, offer: Offer, at_us: int, output_tokens: int | None, cached_tokens: int | None, *, refused: bool
    ) -> None:
        """Count how a request ended; an end without output tokens (shed) leaves the expectation standing.

        Labels take an end whenever it comes; features count one that is later than `BEHIND_S` as late.
        """
        self.live.finish(
            self._counted_us(at_us),
            offer.flow,
            offer.prompt_tokens,
            cached_tokens or 0,
            output_tokens or 0,
            refused=refused,
            session=offer.session,
        )
        if output_tokens is not None:
            realised = offer.prompt_tokens - (cached_tokens or 0) + output_tokens
            self.work.finish(offer.second, offer.flow, offer.counted_tokens, realised, output_tokens)

    def features(self, t_s: int) -> NDArray[float32]:
        """Features of the tick at second ``t_s``; closes every second before it."""
        self.ticked_s = max(self.ticked_s, t_s)
        return self.live.features(t_s)

    def replaying(self, now_us: int, now_s: float) -> bool:
        """History is being posted: no tick yet, the newest event is old, and more may come."""
        if self._newest_us is None or self.ticked_s > 0:
            return False
        return now_us - self._newest_us > REPLAY_BEHIND_S * US and now_s - self._heard_s < REPLAY_PATIENCE_S

    def _counted_us(self, at_us: int) -> int:
        """When an event counts: at its own time, or with the first arrival told if it was shortly before."""
        origin_us = self.origin_us
        if origin_us is not None and origin_us - BEHIND_S * US <= at_us < origin_us:
            return origin_us
        return at_us
