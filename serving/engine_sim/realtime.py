"""The simulated engine in real time: steps end when the clock says so, and whoever waits is woken."""

import asyncio
import logging
from collections.abc import AsyncIterator, Hashable, Sequence

from serving.clock import Clock
from serving.engine_sim.core import EngineSim
from serving.engine_sim.metrics import Metrics
from serving.engine_sim.request import Request

log = logging.getLogger("tidegate")


class Live:
    """A request in flight: the tokens that it has, and a sign that there are more, or that it has ended."""

    def __init__(self, request: Request, reason: str) -> None:
        self.request = request
        self.reason = reason
        self.tokens = 0
        self.over = False  # told with the last tokens: the engine may be ahead of what was told
        self.last_s = request.arrived_s
        self.changed = asyncio.Event()

    async def growth(self) -> AsyncIterator[int]:
        """Count of tokens so far, each time that it has grown; ends with the request."""
        seen = 0
        while True:
            if self.tokens > seen:
                seen = self.tokens
                yield seen
            elif self.over:
                return
            else:
                self.changed.clear()
                await self.changed.wait()


class RealTime:
    """Runs an engine on a clock; what it does is observed by the metrics. `run` must run as a task."""

    def __init__(self, engine: EngineSim, clock: Clock, metrics: Metrics) -> None:
        self.engine = engine
        self.metrics = metrics
        self.failed = False
        self._clock = clock
        self._live: dict[Request, Live] = {}
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Let steps end until cancelled."""
        try:
            while True:
                due_s = self.engine.next_s
                if due_s is None:
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                # Steps that are late are caught up with, but others get their turn between them.
                await self._clock.sleep(max(0.0, due_s - self._clock.monotonic_s()))
                self.metrics.late_s.observe(max(0.0, self._clock.monotonic_s() - due_s))
                self._publish()
        except Exception:
            self.failed = True  # a fault of ours: /health says so, no one is left waiting
            log.exception("the simulated engine failed")
            for live in list(self._live.values()):
                live.request.state, live.over = "aborted", True
                live.changed.set()
            self._live.clear()
            raise

    def submit(
        self, *, prompt_tokens: int, output_tokens: int, prefix: Sequence[Hashable], reason: str
    ) -> Live:
        """Put a request in line; ``reason`` is how it ends if it isn't aborted: stop or length.

        Raises:
            Busy: when the line is full.
            InputError: when the engine could never hold the request.

        """
        request = self.engine.submit(
            self._clock.monotonic_s(),
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            prefix=prefix,
        )
        live = self._live[request] = Live(request, reason)
        self._wake.set()
        return live

    def abort(self, live: Live) -> None:
        """Take a request out and free its blocks; nothing happens where it has ended."""
        if self.engine.abort(live.request, self._clock.monotonic_s()):
            del self._live[live.request]
            self.metrics.ended["abort"].inc()
            live.over = True
            live.changed.set()

    def _publish(self) -> None:
        """Count and tell what steps have brought by now."""
        self.engine.advance(self._clock.monotonic_s())
        for live in list(self._live.values()):
            if self._observe(live):
                live.changed.set()
            if live.request.state == "finished":
                live.over = True
                del self._live[live.request]

    def _observe(self, live: Live) -> bool:
        request, metrics = live.request, self.metrics
        new = self.engine.generated(request) - live.tokens
        if not new:
            return False
        if not live.tokens and request.first_token_s is not None and request.scheduled_s is not None:
            metrics.ttft_s.observe(request.first_token_s - request.arrived_s)
            metrics.queue_s.observe(request.scheduled_s - request.arrived_s)
            live.last_s = request.first_token_s
        gaps = new if live.tokens else new - 1
        now_s = self.engine.now_s if request.finished_s is None else request.finished_s
        for _ in range(gaps):
            metrics.gap_s.observe((now_s - live.last_s) / gaps)
        live.last_s = now_s if gaps else live.last_s
        live.tokens += new
        if request.finished_s is not None:
            metrics.whole_s.observe(request.finished_s - request.arrived_s)
            metrics.ended[live.reason].inc()
        return True
