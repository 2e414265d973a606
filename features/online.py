"""Features of one tick at a time, from requests as they arrive and finish."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.schema import LANES
from features.bursts import BASELINE_LAG_S, LOAD_WINDOW_S, MEAN_WINDOW_S, MEDIAN_WINDOW_S, MIN_HISTORY_S
from features.flows import DEFAULT_LANE, LONG_PROMPT_CLASS, MAX_FLOWS, MAX_SIZE, PROMPT_CLASSES
from features.recurrence import Recurrence
from features.scenarios import Level
from features.ticks import HORIZON_S, TICK_S
from features.windows import (
    CHANNELS,
    HALVES,
    LAG_S,
    LAGS,
    WINDOWS_S,
    Known,
    assemble,
    baseline_of,
    cycle_ticks,
    day_before,
    line_of,
    usual_of,
)

RING_S = 4096
"""Seconds of history kept: more than the longest window."""

_REQUESTS, _WORK, _PROMPT, _LONG_PROMPTS, _REFUSALS, _SQUARES = (
    CHANNELS.index(name) for name in ("requests", "work", "prompt", "long_prompts", "refusals", "squares")
)
_LANE_WORK = CHANNELS.index(f"{LANES[0]}_work")
_WINDOWS = np.array(WINDOWS_S)
_CYCLES = cycle_ticks()
_HALF = HORIZON_S[1] // TICK_S // HALVES
_AHEAD = np.arange(1, HALVES * _HALF + 1).reshape(HALVES, _HALF)
RING_TICKS = int(_CYCLES.max()) + 1
"""Ticks whose load over baseline is kept: the longest look back at earlier cycles."""

FlowKey = tuple[str | None, str, str | None, str | None, int]


@dataclass(slots=True)
class _Flow:
    tenant: int
    caller: int
    lane: int
    long_prompt: bool
    finished: int = 0
    prompt: int = 0
    cached: int = 0
    output: int = 0


class OnlineFeatures:
    """Keeps what ``features.batch`` computes, second by second; equal to it on a replayed trace.

    Seconds count from the first arrival. A second closes when a later one is asked for; a row for a closed
    second is counted in ``late`` and left out.
    """

    def __init__(self) -> None:
        self.origin_us: int | None = None
        self.late = 0
        self._closed_s = 0  # seconds before this one are closed
        self._flows: list[_Flow] = []
        self._numbers: dict[FlowKey, int] = {}
        self._tenants: dict[str, int] = {}
        self._callers: dict[tuple[str | None, ...], int] = {}
        self._everyone = _Flow(-1, -1, 0, False)
        self._arrived: defaultdict[int, dict[int, list[int]]] = defaultdict(dict)
        self._finished: defaultdict[int, list[tuple[int, int, int, int, bool]]] = defaultdict(list)
        # Column t mod RING_S holds each channel's sum over all seconds before t.
        self._cumulative = np.zeros((len(CHANNELS), RING_S), dtype=np.int64)
        # Entry t / TICK_S mod RING_TICKS holds tick t's highest load over its baseline.
        self._ratios = np.full(RING_TICKS, np.nan)
        # How many requests ended, their work and its squares: now, and at the start of each hour of the day.
        self._ended = np.zeros(3, dtype=np.int64)
        self._ended_by_hour = {0: self._ended.copy()}
        self._recurrence = Recurrence()

    def arrive(
        self,
        at_us: int,
        prompt_tokens: int,
        *,
        tenant: str | None = None,
        lane: str | None = None,
        model: str | None = None,
        log_type: str | None = None,
    ) -> int:
        """Take in an offered request, admitted or not; returns the number of its flow."""
        if self.origin_us is None:
            self.origin_us = at_us
        size = sum(prompt_tokens > bound for bound in PROMPT_CLASSES)
        flow = self._flow((tenant, lane or DEFAULT_LANE, model, log_type, size))
        second = (at_us - self.origin_us) // 1_000_000
        if second < self._closed_s:
            self.late += 1
            return flow
        entry = self._arrived[second].get(flow)
        if entry is None:
            self._arrived[second][flow] = [1, prompt_tokens]
        else:
            entry[0] += 1
            entry[1] += prompt_tokens
        return flow

    def finish(
        self,
        at_us: int,
        flow: int,
        prompt_tokens: int,
        cached_tokens: int,
        output_tokens: int,
        *,
        refused: bool = False,
    ) -> None:
        """Take in how a request of a flow ended; ``refused`` when it was shed or failed."""
        if self.origin_us is None:
            self.late += 1
            return
        second = (at_us - self.origin_us) // 1_000_000
        if second < self._closed_s:
            self.late += 1
            return
        self._finished[second].append((flow, prompt_tokens, cached_tokens, output_tokens, refused))

    def features(self, t_s: int) -> NDArray[np.float32]:
        """Features of the tick ``t_s`` seconds after the first arrival, a multiple of 5, shape (features,).

        Closes every second before it; ticks must not go backwards. All NaN until 60 s of history.
        """
        while self._closed_s < t_s:
            self._close()
        tick: NDArray[np.float32] = assemble(self._known(t_s))[0]
        return tick

    def _flow(self, key: FlowKey) -> int:
        number = self._numbers.get(key)
        if number is not None:
            return number
        if len(self._flows) > MAX_FLOWS:
            return MAX_FLOWS
        tenant, lane, _, _, size = key
        tenant_number = -1 if tenant is None else self._tenants.setdefault(tenant, len(self._tenants))
        number = self._numbers[key] = len(self._flows)
        caller = self._callers.setdefault(key[:-1], len(self._callers))
        self._flows.append(_Flow(tenant_number, caller, LANES.index(lane), size >= LONG_PROMPT_CLASS))
        return number

    def _close(self) -> None:
        """Close one second: expected work by what had finished before it, then its own finishes."""
        second = self._closed_s
        sums = [0] * len(CHANNELS)
        for number, (requests, prompt) in sorted(self._arrived.pop(second, {}).items()):
            flow = self._flows[number]
            work = self._expected_work(flow, requests, prompt)
            sums[_REQUESTS] += requests
            sums[_WORK] += work
            sums[_PROMPT] += prompt
            sums[_LONG_PROMPTS] += requests * flow.long_prompt
            sums[_LANE_WORK + flow.lane] += work
            self._recurrence.observe(second, number, flow.caller, flow.tenant, work)
        sums[_SQUARES] = sums[_REQUESTS] ** 2
        for number, prompt, cached, output, refused in self._finished.pop(second, ()):
            sums[_REFUSALS] += refused
            if refused:
                continue
            for total in (self._flows[number], self._everyone):
                total.finished += 1
                total.prompt += prompt
                total.cached += cached
                total.output += output
            size = min(max(prompt - cached + output, 0), MAX_SIZE)
            self._ended += 1, size, size * size
        self._cumulative[:, (second + 1) % RING_S] = self._cumulative[:, second % RING_S] + sums
        self._closed_s = t_s = second + 1
        if t_s % 3600 == 0:
            self._ended_by_hour[t_s] = self._ended.copy()
            self._ended_by_hour.pop(day_before(t_s) - 3600, None)
        if t_s % TICK_S == 0:
            highest = self._loads(t_s - TICK_S, t_s).max() / LOAD_WINDOW_S
            self._ratios[t_s // TICK_S % RING_TICKS] = highest / self._level(t_s)[0, 0]

    def _expected_work(self, flow: _Flow, requests: int, prompt: int) -> int:
        known = flow if flow.finished else self._everyone
        uncached = prompt - prompt * (known.cached / max(known.prompt, 1))
        return int(np.floor(uncached + requests * (known.output / max(known.finished, 1)) + 0.5))

    def _before(self, t_s: NDArray[np.int64]) -> NDArray[np.int64]:
        """Each channel's sum over all seconds before each of ``t_s``."""
        return self._cumulative[:, np.maximum(t_s, 0) % RING_S]

    def _level(self, t_s: int) -> NDArray[np.float64]:
        """Baseline known at a tick and the median in it, (2, 1)."""
        hour_end = max(t_s - BASELINE_LAG_S, 0)
        hour = self._before(np.array([hour_end, hour_end - MEAN_WINDOW_S]))[_WORK]
        median = np.nan
        if hour_end >= MIN_HISTORY_S:
            loads = self._loads(max(hour_end - MEDIAN_WINDOW_S, 0), hour_end)
            median = float(np.median(loads)) / LOAD_WINDOW_S
        return baseline_of(np.array([median]), hour[:1] - hour[1:], np.array([t_s]))

    def _loads(self, first_s: int, until_s: int) -> NDArray[np.int64]:
        """Work of the 10 s that end with each of the seconds [first, until)."""
        ends = np.arange(first_s, until_s) + 1
        return np.asarray(self._before(ends)[_WORK] - self._before(ends - LOAD_WINDOW_S)[_WORK])

    def _known(self, t_s: int) -> Known:
        now = self._before(np.array([t_s]))
        edges = self._before(t_s - LAG_S * np.arange(LAGS + 1))[_WORK]
        at = t_s // TICK_S - _CYCLES[:, None, None] + _AHEAD
        ratios = np.where(at >= 0, self._ratios[at % RING_TICKS], np.nan)
        level = self._level(t_s)
        ticks, sums = np.array([t_s]), (now - self._before(t_s - _WINDOWS))[:, :, None]
        line = line_of(level[0], (self._ended - self._ended_by_hour[day_before(t_s)])[:, None])
        known = Level(float(level[0, 0]), float(usual_of(level, sums, ticks)[0]), float(line[0]))
        due = self._recurrence.expected(t_s, known.baseline)
        return Known(
            ticks,
            np.array([(self.origin_us or 0) / 1e6 + float(t_s)]),
            sums,
            (edges[:-1] - edges[1:])[:, None],
            level,
            due[:, :, None],
            line,
            self._recurrence.crossings(t_s, known)[:, None],
            ratios.max(axis=2)[:, :, None],
        )
