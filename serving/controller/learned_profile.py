"""An engine's profile, learned while it serves: slow, bounded, and moved only a little by any one reading.

The two numbers of c + d * batch move by stochastic approximation (Robbins and Monro, 1951) towards the median
step time at every batch size: a reading over the line raises each number by a hundredth of its share in the
line, one under it lowers them alike, however far away it lies. Prefill keeps the shape of its line and learns
one factor in the same way.
"""

import math
from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

from serving.controller.engine_model import EngineProfile

STEP = 0.01
"""Relative step of one reading."""
FARTHEST = 4.0
"""Nothing moves farther than by this factor from where it started, up or down."""
ENOUGH_READINGS = 150
"""Readings before a line counts: as many as a change by the farthest factor needs."""
ENOUGH_ERROR = 0.25
"""Mean relative error, over about the last fifty readings, under which a line counts."""
ERROR_MEMORY = 1 / 50


@dataclass(frozen=True, slots=True)
class Learned:
    """How much is known of one line.

    Attributes:
        readings: readings that it rests on.
        error: mean relative distance of the latest readings from the line; None before the first.
        enough: the line is used in place of the one to start from.

    """

    readings: int
    error: float | None
    enough: bool


class EngineReadings(TypedDict, total=False):
    """Readings of one sample, named as in engine_samples; None or absent is unknown."""

    running: float | None
    waiting: float | None
    output_tokens_per_s: float | None
    tpot_mean_s: float | None
    ttft_mean_s: float | None
    queue_time_mean_s: float | None
    prompt_tokens_per_s: float | None
    requests_per_s: float | None
    prefix_hit_rate: float | None


class _Error:
    """Running mean of relative errors."""

    __slots__ = ("mean", "readings")

    def __init__(self) -> None:
        self.readings = 0
        self.mean = 0.0

    def add(self, seen_s: float, expected_s: float) -> None:
        self.readings += 1
        error = min(1.0, abs(seen_s / expected_s - 1.0))
        self.mean += (error - self.mean) * max(1.0 / self.readings, ERROR_MEMORY)

    def learned(self) -> Learned:
        enough = self.readings >= ENOUGH_READINGS and self.mean <= ENOUGH_ERROR
        return Learned(self.readings, self.mean if self.readings else None, enough)


class LearnedProfile:
    """The profile to start from, and what readings of the engine have made of it.

    >>> from serving.controller.engine_model import A100, H100
    >>> learned = LearnedProfile(H100)
    >>> for number in range(600):
    ...     batch = 1 + number * 37 % 128
    ...     learned.observe(running=batch, tpot_mean_s=A100.decode_step_s(batch))
    >>> learned.decode.enough, learned.prefill.enough
    (True, False)
    >>> profile = learned.profile
    >>> round(profile.decode_step_s(64) / A100.decode_step_s(64), 2), profile.prefill_s_per_token
    (1.0, 9.1e-05)
    """

    def __init__(self, start: EngineProfile) -> None:
        self.start = start
        self.dropped = 0
        self._profile = start
        self._base_s = start.decode_base_s
        self._per_request_s = start.decode_s_per_request
        self._prefill = 1.0
        self._decode_error = _Error()
        self._prefill_error = _Error()

    @property
    def profile(self) -> EngineProfile:
        """The profile with the lines that enough is known of; the one to start from until then."""
        return self._profile

    @property
    def decode(self) -> Learned:
        """How much is known of decode steps."""
        return self._decode_error.learned()

    @property
    def prefill(self) -> Learned:
        """How much is known of prefill."""
        return self._prefill_error.learned()

    def observe(self, **readings: Unpack[EngineReadings]) -> None:
        """Learn from one sample of one engine; None is unknown, and impossible values are dropped.

        A decode step is the time per output token, or else the time in which the running requests make one
        token each. Prefill is the time to first token less the time in the queue, where that is known or
        nobody waits; its tokens are those that a request brings and the cache doesn't hold.
        """
        batch = self._possible(readings.get("running"))
        step_s = self._possible(readings.get("tpot_mean_s"))
        made_per_s = self._possible(readings.get("output_tokens_per_s"))
        if batch and not step_s and made_per_s:
            step_s = batch / made_per_s
        changed = bool(batch and step_s and self._learn_step(batch, step_s))

        ttft_s = self._possible(readings.get("ttft_mean_s"))
        queued_s = self._possible(readings.get("queue_time_mean_s"))
        if queued_s is None and self._possible(readings.get("waiting")) == 0:
            queued_s = 0.0
        hit = self._possible(readings.get("prefix_hit_rate"), 1.0)
        prompts_per_s = self._possible(readings.get("prompt_tokens_per_s"))
        requests = self._possible(readings.get("requests_per_s"))
        if ttft_s is not None and queued_s is not None and hit is not None and prompts_per_s and requests:
            changed |= self._learn_prefill(prompts_per_s / requests * (1.0 - hit), ttft_s - queued_s)
        if changed:
            self._profile = self._learned()

    def _learn_step(self, batch: float, step_s: float) -> bool:
        start = self.start
        expected_s = self._base_s + self._per_request_s * batch
        self._decode_error.add(step_s, expected_s)
        towards = STEP * _sign(step_s - expected_s)
        share = self._base_s / expected_s
        self._base_s = _within(self._base_s * math.exp(towards * share), start.decode_base_s)
        self._per_request_s = _within(
            self._per_request_s * math.exp(towards * (1.0 - share)), start.decode_s_per_request
        )
        return True

    def _learn_prefill(self, tokens: float, prefill_s: float) -> bool:
        if prefill_s <= 0 or not math.isfinite(tokens):
            return False
        expected_s = self._prefill * self.start.prefill_s(tokens)
        self._prefill_error.add(prefill_s, expected_s)
        self._prefill = _within(self._prefill * math.exp(STEP * _sign(prefill_s - expected_s)), 1.0)
        return True

    def _learned(self) -> EngineProfile:
        start, profile = self.start, self.start
        if self.decode.enough:
            profile = replace(profile, decode_base_s=self._base_s, decode_s_per_request=self._per_request_s)
        if self.prefill.enough:
            profile = replace(
                profile,
                prefill_base_s=start.prefill_base_s * self._prefill,
                prefill_s_per_token=start.prefill_s_per_token * self._prefill,
                prefill_floor_s=start.prefill_floor_s * self._prefill,
            )
        return profile

    def _possible(self, value: float | None, highest: float = math.inf) -> float | None:
        if value is None or (0 <= value <= highest and value < math.inf):
            return value
        self.dropped += 1
        return None


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _within(value: float, start: float) -> float:
    return min(start * FARTHEST, max(start / FARTHEST, value))
