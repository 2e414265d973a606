"""Features of one tick at a time, from requests as they arrive and finish."""

from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from data.schema import LANES
from features.bursts import BASELINE_LAG_S, LOAD_WINDOW_S, MEAN_WINDOW_S, MEDIAN_WINDOW_S, MIN_HISTORY_S
from features.engine_state import EngineState
from features.flows import DEFAULT_LANE, LONG_PROMPT_CLASS, MAX_FLOWS, PROMPT_CLASSES
from features.learned import Endings, Learned, sum_up
from features.scenarios import Level
from features.ticks import TICK_S
from features.watermark import Watermark
from features.windows import (
    CHANNELS,
    HALF_TICKS,
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
_AHEAD = np.arange(1, HALVES * HALF_TICKS + 1).reshape(HALVES, HALF_TICKS)
RING_TICKS = int(_CYCLES.max()) + 1
"""Ticks whose load over baseline is kept: the longest look back at earlier cycles."""

FlowKey = tuple[str | None, str, str | None, str | None, int]
_Order = tuple[int, tuple[tuple[bool, str], ...], int]
SessionKey = tuple[int, str]
"""Number of the tenant and its name for the session."""
_NEVER_US = 1 << 63


@dataclass(frozen=True, slots=True)
class _Flow:
    tenant: int
    caller: int
    lane: int
    long_prompt: bool


@dataclass(slots=True)
class _Rows:
    """What came in a second.

    Attributes:
        arrived: requests and prompt tokens by flow.
        told: flow, prompt, cached and output tokens of requests that finished since the second last closed.
        finished: by flow, what finished of those told before.
        refused: how many were shed or failed.
        came: sessions of the arrivals.
        left: sessions of the requests that ended.

    """

    arrived: dict[int, tuple[int, int]] = field(default_factory=dict)
    told: list[tuple[int, int, int, int]] = field(default_factory=list)
    finished: dict[int, Endings] = field(default_factory=dict)
    refused: int = 0
    came: list[SessionKey] = field(default_factory=list)
    left: list[SessionKey] = field(default_factory=list)


class OnlineFeatures:
    """Keeps what ``features.batch`` computes, second by second; equal to it on a replayed trace.

    Seconds count from the first arrival told. A second closes when a later one is asked for. Rows may be told
    in any order, up to `WATERMARK_S` after their second has closed: the next tick is what it would be, had
    they come in time. Later ones, and those from before the first arrival told, are counted in ``late`` and
    change nothing.
    """

    def __init__(self) -> None:
        self.origin_us: int | None = None
        self.engines = EngineState()
        self._learned = Learned()
        self._past = Watermark(self._learned, _Rows)
        self._rows = self._past.rows
        self._flows: list[_Flow] = []
        # Flows of a second are taken in order of their first arrival, as in a batch, whoever was told first.
        self._order: list[_Order] = []
        self._numbers: dict[FlowKey, int] = {}
        self._tenants: dict[str, int] = {}
        self._callers: dict[tuple[str | None, ...], int] = {}
        # Column t mod RING_S holds each channel's sum over all seconds before t. Seconds that close anew
        # write their columns and ratios again: snapshots need neither.
        self._cumulative = np.zeros((len(CHANNELS), RING_S), dtype=np.int64)
        # Entry t / TICK_S mod RING_TICKS holds tick t's highest load over its baseline.
        self._ratios = np.full(RING_TICKS, np.nan)
        self._latest = 0, self._level(0)  # the last tick that closed, and its level

    @property
    def late(self) -> int:
        """Arrivals and finishes that came too late to count."""
        return self._past.late

    def arrive(
        self,
        at_us: int,
        prompt_tokens: int,
        *,
        tenant: str | None = None,
        lane: str | None = None,
        model: str | None = None,
        log_type: str | None = None,
        session: str | None = None,
    ) -> int:
        """Take in an offered request, admitted or not; returns the number of its flow."""
        if self.origin_us is None:
            self.origin_us = at_us
        size = bisect_left(PROMPT_CLASSES, prompt_tokens)
        flow = self._flow((tenant, lane or DEFAULT_LANE, model, log_type, size))
        second = (at_us - self.origin_us) // 1_000_000
        past = self._past
        if second < past.closed_s and not past.takes(second):
            return flow
        if at_us < self._order[flow][0] and flow < MAX_FLOWS:
            self._order[flow] = (at_us, *self._order[flow][1:])
        rows = self._rows[second]
        if session is not None:
            rows.came.append((self._flows[flow].tenant, session))
        arrived = rows.arrived
        sums = arrived.get(flow)
        arrived[flow] = (1, prompt_tokens) if sums is None else (sums[0] + 1, sums[1] + prompt_tokens)
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
        session: str | None = None,
    ) -> None:
        """Take in how a request of a flow ended; ``refused`` when it was shed or failed."""
        # Without an arrival there is no first second: the end lies before it.
        second = -1 if self.origin_us is None else (at_us - self.origin_us) // 1_000_000
        past = self._past
        if second < past.closed_s and not past.takes(second):
            return
        rows = self._rows[second]
        if session is not None:
            rows.left.append((self._flows[flow].tenant, session))
        if refused:
            rows.refused += 1
        else:
            rows.told.append((flow, prompt_tokens, cached_tokens, output_tokens))

    def features(self, t_s: int) -> NDArray[np.float32]:
        """Features of the tick ``t_s`` seconds after the first arrival, a multiple of 5, shape (features,).

        Closes every second before it; ticks must not go backwards. All NaN until 60 s of history.
        """
        until_s = max(t_s, self._past.closed_s)
        self._learned = self._past.rewound(self._learned)
        while self._past.closed_s < until_s:
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
        names = tuple((name is not None, name or "") for name in key[:-1])  # what is unknown comes first
        self._order.append((_NEVER_US, names, size))
        return number

    def _close(self) -> None:
        """Close one second: expected work by what had finished before it, then its own finishes."""
        second, learned = self._past.closed_s, self._learned
        sums = [0] * len(CHANNELS)
        rows = self._rows.get(second)
        by_tenant: dict[int, int] = {}
        if rows is not None:
            for number in sorted(rows.arrived, key=self._order.__getitem__):
                requests, prompt = rows.arrived[number]
                flow = self._flows[number]
                work = learned.expected_work(number, requests, prompt)
                sums[_REQUESTS] += requests
                sums[_WORK] += work
                sums[_PROMPT] += prompt
                sums[_LONG_PROMPTS] += requests * flow.long_prompt
                sums[_LANE_WORK + flow.lane] += work
                by_tenant[flow.tenant] = by_tenant.get(flow.tenant, 0) + work
                learned.recurrence.observe(second, number, flow.caller, flow.tenant, work)
            sums[_SQUARES] = sums[_REQUESTS] ** 2
            sums[_REFUSALS] = rows.refused
            if rows.told:
                sum_up(rows.told, rows.finished)
                rows.told.clear()
            learned.finished(rows.finished)
        learned.tenants.close(second, by_tenant)
        learned.returns.close(second, rows.came if rows else (), rows.left if rows else ())
        t_s = second + 1
        self._cumulative[:, t_s % RING_S] = self._cumulative[:, second % RING_S] + sums
        if t_s % 3600 == 0:
            learned.hour(t_s)
        if t_s % TICK_S == 0:
            highest = self._loads(t_s - TICK_S, t_s).max() / LOAD_WINDOW_S
            self._latest = t_s, self._level(t_s)
            self._ratios[t_s // TICK_S % RING_TICKS] = highest / self._latest[1][0, 0]
        self._past.close(learned)

    def _before(self, t_s: NDArray[np.int64]) -> NDArray[np.int64]:
        """Each channel's sum over all seconds before each of ``t_s``."""
        return self._cumulative[:, np.maximum(t_s, 0) % RING_S]

    def _work_before(self, t_s: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.asarray(self._cumulative[_WORK, np.maximum(t_s, 0) % RING_S])

    def _level(self, t_s: int) -> NDArray[np.float64]:
        """Baseline known at a tick and the median in it, (2, 1)."""
        hour_end = max(t_s - BASELINE_LAG_S, 0)
        hour = self._work_before(np.array([hour_end, hour_end - MEAN_WINDOW_S]))
        median = np.nan
        if hour_end >= MIN_HISTORY_S:
            loads = np.sort(self._loads(max(hour_end - MEDIAN_WINDOW_S, 0), hour_end))
            median = (loads[(len(loads) - 1) // 2] + loads[len(loads) // 2]) / 2.0 / LOAD_WINDOW_S
        return baseline_of(np.array([median]), hour[:1] - hour[1:], np.array([t_s]))

    def _loads(self, first_s: int, until_s: int) -> NDArray[np.int64]:
        """Work of the 10 s that end with each of the seconds [first, until)."""
        ends = np.arange(first_s, until_s) + 1
        return np.asarray(self._work_before(ends) - self._work_before(ends - LOAD_WINDOW_S))

    def _known(self, t_s: int) -> Known:
        now = self._before(np.array([t_s]))
        edges = self._before(t_s - LAG_S * np.arange(LAGS + 1))[_WORK]
        at = t_s // TICK_S - _CYCLES[:, None, None] + _AHEAD
        ratios = np.where(at >= 0, self._ratios[at % RING_TICKS], np.nan)
        level = self._latest[1] if self._latest[0] == t_s else self._level(t_s)
        ticks, sums = np.array([t_s]), (now - self._before(t_s - _WINDOWS))[:, :, None]
        learned = self._learned
        ended = np.array(learned.ended) - np.array(learned.ended_by_hour[day_before(t_s)])
        line = line_of(level[0], ended[:, None])
        known = Level(level[0], usual_of(level, sums, ticks), line)
        due, chances = learned.recurrence.around(t_s, known)
        return Known(
            ticks,
            np.array([(self.origin_us or 0) / 1e6 + float(t_s)]),
            sums,
            (edges[:-1] - edges[1:])[:, None],
            level,
            due,
            line,
            chances,
            ratios.max(axis=2)[:, :, None],
            learned.tenants.tell(t_s)[:, None],
            learned.returns.waiting(t_s)[:, None],
            self.engines.tell((self.origin_us or 0) + t_s * 1_000_000)[:, None],
        )
