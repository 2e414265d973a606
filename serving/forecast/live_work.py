"""Work by second as the live labels see it: expected on arrival, realised once a request has ended."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from features.bins import WorkBins

KEEP_S = 7440
"""Seconds kept: an hour of burst seconds that each look back on a full baseline, and what matures."""
DAY_MINUTES = 1440


@dataclass(slots=True)
class _Outputs:
    requests: int = 0
    tokens: int = 0


class LiveWork:
    """The last two hours of work in tokens by second, and the moments of a request's work over a day.

    A request counts its prompt and the mean output of its flow's finished requests (of everyone's while the
    flow has none) until its own output is known; then the second of its arrival is corrected. A refused
    request never has an output: its expectation stands, so that a gate which sheds can't hide a burst.

    >>> work = LiveWork()
    >>> counted = work.arrive(0, flow=1, prompt_tokens=100)
    >>> work.finish(0, flow=1, counted_tokens=counted, realised_tokens=130, output_tokens=30)
    >>> work.arrive(2, flow=1, prompt_tokens=50)
    80
    >>> work.bins(0, 3).work.tolist()
    [130, 0, 80]
    """

    def __init__(self) -> None:
        self._work = np.zeros(KEEP_S, dtype=np.int64)
        self._requests = np.zeros(KEEP_S, dtype=np.int64)
        self._end_s = KEEP_S  # seconds before this one have a place, the last KEEP_S of them
        self._minutes: dict[int, list[int]] = {}  # minute: requests, work, squared work
        self._outputs: dict[int, _Outputs] = {}
        self._everyone = _Outputs()

    def arrive(self, second: int, flow: int, prompt_tokens: int) -> int:
        """Count an arrival; returns the tokens that it counts for now."""
        known = self._outputs.get(flow, self._everyone)
        expected = known.tokens // known.requests if known.requests else 0
        counted = prompt_tokens + expected
        self._add(second, counted, requests=1)
        moments = self._minutes.setdefault(second // 60, [0, 0, 0])
        moments[0] += 1
        moments[1] += counted
        moments[2] += counted * counted
        return counted

    def finish(
        self, second: int, flow: int, counted_tokens: int, realised_tokens: int, output_tokens: int
    ) -> None:
        """Replace what a request that arrived in ``second`` counted for by what it was."""
        self._add(second, realised_tokens - counted_tokens)
        moments = self._minutes.get(second // 60)
        if moments is not None:
            moments[1] += realised_tokens - counted_tokens
            moments[2] += realised_tokens * realised_tokens - counted_tokens * counted_tokens
        for outputs in (self._outputs.setdefault(flow, _Outputs()), self._everyone):
            outputs.requests += 1
            outputs.tokens += output_tokens

    def completed(
        self,
        seconds: NDArray[np.int64],
        flows: NDArray[np.int64],
        realised_tokens: NDArray[np.int64],
        output_tokens: NDArray[np.int64],
    ) -> None:
        """`arrive` and `finish` of whole requests, each array of shape (requests,)."""
        self._make_room(int(seconds.max()))
        kept = seconds >= self._end_s - KEEP_S
        np.add.at(self._work, seconds[kept] % KEEP_S, realised_tokens[kept])
        np.add.at(self._requests, seconds[kept] % KEEP_S, 1)
        minutes, at = np.unique(seconds // 60, return_inverse=True)
        sums = np.zeros((len(minutes), 3), dtype=np.int64)
        np.add.at(sums, at, np.column_stack([np.ones_like(at), realised_tokens, realised_tokens**2]))
        for minute, added in zip(minutes.tolist(), sums.tolist(), strict=True):
            moments = self._minutes.setdefault(minute, [0, 0, 0])
            moments[:] = [one + more for one, more in zip(moments, added, strict=True)]
        known, of = np.unique(flows, return_inverse=True)
        outputs = np.zeros(len(known), dtype=np.int64)
        np.add.at(outputs, of, output_tokens)
        for flow, requests, tokens in zip(
            known.tolist(), np.bincount(of).tolist(), outputs.tolist(), strict=True
        ):
            for learned in (self._outputs.setdefault(flow, _Outputs()), self._everyone):
                learned.requests += requests
                learned.tokens += tokens

    def bins(self, start_s: int, end_s: int) -> WorkBins:
        """Work of the seconds from ``start_s`` up to before ``end_s``, at most `KEEP_S` of the latest.

        The moments are those of the day before ``end_s``; NaN where no request arrived in it.
        """
        self._make_room(end_s - 1)
        for minute in [minute for minute in self._minutes if minute <= (end_s - 1) // 60 - DAY_MINUTES]:
            del self._minutes[minute]
        requests, work, squares = (
            sum(moments[kind] for moments in self._minutes.values()) for kind in range(3)
        )
        mean, mean_square = (work / requests, squares / requests) if requests else (np.nan, np.nan)
        return WorkBins(0, self._work[np.arange(start_s, end_s) % KEEP_S], mean, mean_square)

    def requests(self, start_s: int, end_s: int) -> int:
        """Requests that arrived in those seconds, at most `KEEP_S` of the latest."""
        self._make_room(end_s - 1)
        return int(self._requests[np.arange(start_s, end_s) % KEEP_S].sum())

    def _add(self, second: int, tokens: int, requests: int = 0) -> None:
        self._make_room(second)
        if second >= self._end_s - KEEP_S:
            self._work[second % KEEP_S] += tokens
            self._requests[second % KEEP_S] += requests

    def _make_room(self, second: int) -> None:
        if second < self._end_s:
            return
        fresh = np.arange(max(self._end_s, second - KEEP_S + 1), second + 1)
        self._work[fresh % KEEP_S] = 0
        self._requests[fresh % KEEP_S] = 0
        self._end_s = second + 1
