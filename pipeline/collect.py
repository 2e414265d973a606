"""Collect telemetry: scrape engines and follow gateway logs into the lake until told to stop."""

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any

from data.config import Telemetry
from data.errors import Busy, InputError
from data.lake import Lake
from data.live.follow import follow_log
from data.live.samples import Sample, frame
from data.live.scrape import Scraper
from data.writer import LakeWriter
from serving.clock import SystemClock

Tell = Callable[[str], None]


def collect(telemetry: Telemetry, tell: Tell) -> None:
    """Collect until SIGTERM or SIGINT, then commit what waits. `tell` gets news, not every sample.

    Rows that the lake can't take are lost, counted and told; collecting goes on.

    Raises:
        InputError: when there is nothing to collect, the lake can't be opened, or a log can't be followed.

    """
    if not (telemetry.scrape or telemetry.logs):
        raise InputError(
            "There is nothing to collect: give scrape targets (telemetry.scrape) or logs (telemetry.logs)."
        )
    with Lake(telemetry.lake):
        pass  # a lake that can't be opened is told now, not with the first rows
    with LakeWriter(telemetry.lake) as writer:
        samples = Samples(writer, tell)
        jobs = [
            Scraper(telemetry.scrape, SystemClock(), samples.take).run(),
            *(follow_log(log, telemetry.lake, writer.put, tell) for log in telemetry.logs),
        ]
        tell(
            f"Collecting from {len(telemetry.scrape)} targets and {len(telemetry.logs)} logs "
            f"into {telemetry.lake}."
        )
        asyncio.run(_until_stopped(jobs))
    tell(f"Stopped: {samples.stored} engine samples stored, {samples.lost} lost.")


async def _until_stopped(jobs: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all of them until a signal; one that fails ends the others too."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(job) for job in jobs]

            def stop() -> None:
                for task in tasks:
                    task.cancel()

            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, stop)
    except BaseExceptionGroup as failures:  # a person's mistake is told as one, not as a group of faults
        mistakes, faults = failures.split(InputError)
        if faults or mistakes is None:
            raise
        raise mistakes.exceptions[0] from None


class Samples:
    """Hands samples to the lake, counts them, and tells when an engine or the lake changes its state."""

    def __init__(self, writer: LakeWriter, tell: Tell) -> None:
        self.stored = 0
        self.lost = 0
        self._writer = writer
        self._tell = tell
        self._states: dict[tuple[str, str], str] = {}
        self._losing = False
        self._lock = threading.Lock()  # the writer answers from its own thread

    def take(self, samples: Sequence[Sample]) -> None:
        """Hand over the samples of one scrape."""
        for sample in samples:
            engine = sample.source, sample.engine
            if self._states.get(engine) != sample.state:
                self._states[engine] = sample.state
                name = f"{sample.source} engine {sample.engine}" if sample.engine else sample.source
                why = "" if sample.state == "ok" else f": {sample.reason}"
                self._tell(f"{name} is {sample.state}{why}")
        try:
            done = self._writer.put("engine_samples", frame(samples))
        except Busy as error:
            self._noted(len(samples), error)
        else:
            done.add_done_callback(lambda done: self._done(len(samples), done))

    def _done(self, rows: int, done: Future[None]) -> None:
        self._noted(rows, done.exception())

    def _noted(self, rows: int, error: BaseException | None) -> None:
        with self._lock:
            losing, was_losing = error is not None, self._losing
            self._losing = losing
            if losing:
                self.lost += rows
            else:
                self.stored += rows
        if losing and not was_losing:
            self._tell(f"The lake takes no rows, they are lost: {error}")
        elif was_losing and not losing:
            self._tell("The lake takes rows again.")
