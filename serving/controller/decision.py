"""What the controller is asked and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from serving.controller.degradation import Pool

Reason = Literal[
    "deadline",
    "too_large",
    "tenant_quota",
    "degraded",
    "saturated",
    "backpressure",
    "lane_budget",
    "waiting_ahead",
    "queue_full",
    "wait_expired",
]
"""Why a request was refused, in the order in which the rules are asked; then the three of waiting."""

ADMITPERF_REASONS: Mapping[Reason, str] = {
    "deadline": "deadline_infeasible",
    "too_large": "predicted_length",
    "tenant_quota": "tenant_quota",
    "degraded": "predicted_length",
    "saturated": "capacity_reserved",
    "backpressure": "queue_depth",
    "lane_budget": "capacity_reserved",
    "waiting_ahead": "wait_estimate_exceeded",
    "queue_full": "queue_depth",
    "wait_expired": "wait_estimate_exceeded",
}
"""The same in the vocabulary of AdmitPerf's decision log (https://pypi.org/project/admitperf/)."""


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What is known of a request when it arrives.

    Attributes:
        prompt_tokens: tokens in the prompt, or the gateway's estimate of them.
        tenant: who pays.
        model: model asked for.
        lane: premium, standard or batch; standard where it is absent or unknown.
        max_tokens: a client's limit on the output; of several limits the largest counts.
        max_completion_tokens: the same under its newer name.
        n: answers asked for.
        best_of: answers generated to choose from.
        deadline_ms: time to first token after which the answer is worthless to the client.
        cached_tokens: prompt tokens that are expected in cache; None is unknown.
        continuation: handle of a clamped answer that this request asks the rest of.

    """

    prompt_tokens: int
    tenant: str | None = None
    model: str | None = None
    lane: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    deadline_ms: float | None = None
    cached_tokens: int | None = None
    continuation: str | None = None


class Decision(NamedTuple):
    """The controller's answer; immutable, and made on every call, so a tuple: a frozen dataclass costs 1 µs.

    Attributes:
        admitted: let through; the tokens are reserved.
        lane: the lane that it was judged in.
        reason: why it was refused; None when admitted.
        reservation_id: to settle, renew or cancel by; None when refused.
        retry_after_ms: when to come back; None when admitted and where coming back is of no use.
        retry: a refused client may come back; False where the same request can never be admitted.
        tightening: level that the decision was made under.
        backpressure: score that it was made under.
        tightened: refused by the forecast: with tightening 0 it would have been admitted.
        expected_output_tokens: output that was, or would have been, reserved.
        degradation: step of the ladder that held, 0 to 3.
        clamp_output_tokens: limit to set on the output of one answer; None leaves the client's.
        continuation: handle by which the client asks for the rest of a clamped answer.
        model: smaller model to send it to; None for the model asked for.
        pool: pool to send it to; None for any.

    """

    admitted: bool
    lane: str
    reason: Reason | None
    reservation_id: str | None
    retry_after_ms: int | None
    retry: bool
    tightening: float
    backpressure: float
    tightened: bool
    expected_output_tokens: int
    degradation: int = 0
    clamp_output_tokens: int | None = None
    continuation: str | None = None
    model: str | None = None
    pool: Pool | None = None

    @property
    def retry_after_s(self) -> int | None:
        """Whole seconds for Retry-After, rounded up: it never disagrees with the milliseconds.

        >>> Decision(False, "batch", "saturated", None, 6_480, True, 0.0, 0.9, False, 512).retry_after_s
        7
        """
        return None if self.retry_after_ms is None else -(-self.retry_after_ms // 1_000)

    @property
    def admitperf_reason(self) -> str | None:
        """The reason in AdmitPerf's vocabulary; None when admitted."""
        return None if self.reason is None else ADMITPERF_REASONS[self.reason]
