"""Requests and answers of the HTTP API; unknown is null, and a value out of range is refused."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    model_validator,
)

from serving.forecast.predictor import State

MAX_TOKENS = 10_000_000
"""More tokens than any one request has; a larger number is a fault of its sender."""
NAME_LENGTH = 256
MAX_RETRIES = 1_000

Lane = Literal["premium", "standard", "batch"]
Outcome = Literal["served", "failed", "shed", "aborted"]
# Not every catalog of a lake can hold a NUL.
Name = Annotated[str, Field(min_length=1, max_length=NAME_LENGTH, pattern=r"^[^\x00]*$")]
Tokens = Annotated[int, Field(ge=0, le=MAX_TOKENS, strict=True)]
Limit = Annotated[int, Field(ge=1, strict=True)]
Share = Annotated[float, Field(ge=0, le=1)]
# What no engine counts to is refused in its row: the lake could not hold it, nor anything told with it.
Count = Annotated[float, Field(ge=0, le=1e12)]
Capacity = Annotated[float, Field(gt=0, le=1e12)]


def _instant(value: Any) -> Any:
    # A bare number would be read as a date of some unit, silently.
    if not isinstance(value, str | datetime):
        raise ValueError("must be a time in ISO 8601 with its zone, such as 2026-01-31T12:00:00Z")
    return value


Instant = Annotated[AwareDatetime, BeforeValidator(_instant)]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class AdmitRequest(_Message):
    """One inference request that asks to be let in."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"tenant": "acme", "lane": "standard", "prompt_tokens": 1200, "max_tokens": 512}]
        }
    )

    prompt_tokens: Tokens = Field(description="Tokens in the prompt, cached ones included.")
    tenant: Name | None = Field(None, description="Who pays.")
    lane: Lane | None = Field(None, description="SLO class; standard where it is not said.")
    model: Name | None = Field(None, description="Model asked for.")
    session: Name | None = Field(None, description="Conversation that the request continues.")
    max_tokens: Limit | None = Field(None, description="Client's limit on output tokens.")
    max_completion_tokens: Limit | None = Field(None, description="The newer name of max_tokens.")
    n: int = Field(1, ge=1, le=128, strict=True, description="Answers asked for.")
    cached_tokens: Tokens | None = Field(
        default=None, description="Prompt tokens that are expected in cache."
    )
    continuation: Name | None = Field(
        default=None,
        description="Handle of a clamped answer, when its rest is asked for: one request, not two.",
    )
    deadline_ms: float | None = Field(
        None, gt=0, description="Time to first token after which the answer is worthless to the client."
    )
    max_wait_ms: float | None = Field(
        default=None,
        gt=0,
        description="Longest that the answer may take where there is no room yet: the request then waits for "
        "its turn, up to the longest wait of the rules. Without it the answer comes at once.",
    )
    request_id: Name | None = Field(None, description="The gateway's name for the request.")
    retry_of: Name | None = Field(
        default=None, description="request_id of the attempt that this one repeats, where that is known."
    )
    retry_count: int | None = Field(
        default=None,
        ge=0,
        le=MAX_RETRIES,
        strict=True,
        description="Attempts before this one, as the client counts them (x-stainless-retry-count).",
    )
    log_type: Name | None = Field(None, description="The source's own mark, such as 'search'.")


class Degraded(_Message):
    """What an overloaded engine asks of an admitted request."""

    step: int = Field(description="1 clamps, 2 swaps models too, 3 routes to pools too; 0 ends an answer.")
    clamp_output_tokens: int | None = Field(description="Set the output limit of one answer to this.")
    continuation: str | None = Field(
        description="Hand it to the client with the clamped answer; it asks for the rest with it."
    )
    model: str | None = Field(description="Smaller model to send it to.")
    pool: Literal["hot", "cold"] | None = Field(description="Pool to send it to.")


class AdmitResponse(_Message):
    """The request may go to the engine; settle the reservation when it has ended."""

    admitted: Literal[True] = True
    reservation_id: str = Field(description="Name it in POST /v1/settle.")
    lane: str = Field(description="SLO class that it was judged in.")
    expected_output_tokens: int = Field(description="Output tokens reserved.")
    tightening: float = Field(description="Level in [0, 1] that the forecast applies to the rules.")
    backpressure: float = Field(description="B in [0, 1], over those of its terms that are known.")
    lease_s: float = Field(description="Unsettled, the reservation is released after this time.")
    degraded: Degraded | None = Field(default=None, description="How to send it on; null sends it as it is.")


class OpenAIError(_Message):
    """The error that OpenAI clients read."""

    message: str
    type: str
    param: None = None
    code: str


class Refusal(_Message):
    """Body of a 429."""

    error: OpenAIError


class SettleRequest(_Message):
    """How an admitted request ended."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"reservation_id": "r-1", "output_tokens": 240, "outcome": "served"}]}
    )

    reservation_id: Name
    output_tokens: Tokens | None = Field(
        None, description="Tokens generated, also when the client left early; null when nobody counted."
    )
    cached_tokens: Tokens | None = Field(None, description="Prompt tokens served from the prefix cache.")
    outcome: Outcome = Field(
        description="served, failed, shed (by the engine) or aborted (by the client); what failed or was "
        "shed costs its tenant nothing."
    )
    ttft_ms: float | None = Field(
        default=None, ge=0, description="Time to first token; null when nobody measured it."
    )
    estimated: bool = Field(
        default=False,
        description="output_tokens is an estimate: it is charged, and nothing is learned from it.",
    )


class CancelRequest(_Message):
    """An admitted request that never reached the engine."""

    reservation_id: Name


class SettleResponse(_Message):
    """Settling twice, or after the lease, changes nothing and is no error."""

    settled: bool = Field(description="False when the reservation is unknown, settled or expired.")


class EngineSample(_Message):
    """What an engine reports about itself; leave out what is not known."""

    at: Instant | None = Field(None, description="When it was read; now where it is not said.")
    queue_depth: Count | None = Field(None, description="Requests waiting.")
    queue_capacity: Capacity | None = Field(None, description="Requests that may wait.")
    batch_tokens: Count | None = Field(None, description="Tokens in the running batch.")
    max_batch_tokens: Capacity | None = Field(None, description="Tokens that the batch can hold.")
    kv_cache_hit_rate: Share | None = Field(None, description="Share of prompt tokens found in cache.")
    kv_cache_usage: Share | None = Field(None, description="Share of KV blocks in use; shown in /metrics.")
    gpu_util: Share | None = Field(None, description="Share of time the GPU was busy.")
    preemptions_per_s: Count | None = Field(
        default=None, description="Requests that lost their KV blocks since the sample before."
    )
    kv_allocation_failures: Count | None = Field(
        default=None, description="Counter of allocations that found no KV blocks; it may restart."
    )


class Arrived(_Message):
    """A request that was offered elsewhere: history, or a gateway that doesn't ask here."""

    event: Literal["arrived"]
    request_id: Name
    prompt_tokens: Tokens
    at: Instant | None = None
    source: Name | None = None
    tenant: Name | None = None
    lane: Lane | None = None
    model: Name | None = None
    session: Name | None = None
    log_type: Name | None = None


class Finished(_Message):
    """How a request that was reported as arrived ended."""

    event: Literal["finished"]
    request_id: Name
    outcome: Outcome
    at: Instant | None = None
    source: Name | None = None
    output_tokens: Tokens | None = None
    cached_tokens: Tokens | None = None


class Completed(_Message):
    """A request that was offered elsewhere, from its arrival to its end in one row."""

    event: Literal["request"]
    request_id: Name
    prompt_tokens: Tokens
    at: Instant
    finished_at: Instant
    outcome: Outcome
    source: Name | None = None
    output_tokens: Tokens | None = None
    cached_tokens: Tokens | None = None
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS, strict=True)] | None = None
    tenant: Name | None = None
    lane: Lane | None = None
    model: Name | None = None
    session: Name | None = None
    log_type: Name | None = None
    retry_of: Name | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.finished_at < self.at:
            raise ValueError("finished_at must not lie before at")
        if self.cached_tokens is not None and self.cached_tokens > self.prompt_tokens:
            raise ValueError("cached_tokens must not be over prompt_tokens")
        return self


ENGINE_SAMPLE: TypeAdapter[EngineSample] = TypeAdapter(EngineSample)
REQUEST_EVENT: TypeAdapter[Arrived | Finished | Completed] = TypeAdapter(
    Annotated[Arrived | Finished | Completed, Field(discriminator="event")]
)


class RefusedRow(_Message):
    """A row that was not taken in."""

    row: int = Field(description="Its place in the body, from 0.")
    reason: str


class TelemetryResponse(_Message):
    """What became of the rows; those that were not refused were taken in, now or before."""

    accepted: int
    duplicates: int = Field(description="Requests that were taken in before; they changed nothing.")
    refused: int
    refused_rows: list[RefusedRow] = Field(
        description="The first 1,000 of them; with a lake, all are in its quarantine."
    )
    stored: bool = Field(description="All that was accepted is in the lake; false where none is kept.")
    clock_ahead_s: float | None = Field(
        description="How far the sender's clock is ahead of this service's; null without x-tidegate-sent-at."
    )


class ForecastResponse(_Message):
    """What the last tick saw; unknown is null."""

    tick_at: datetime | None = Field(description="The tick that all this belongs to.")
    tick_age_s: float | None = Field(description="Time since a tick last succeeded.")
    next_tick_in_s: float
    p_onset: float | None = Field(description="Probability of a burst onset within the next 60 s.")
    peak_load_tokens_per_s: dict[str, float] | None = Field(
        description="Quantiles of the highest load in the next 60 s."
    )
    baseline_tokens_per_s: float | None = Field(description="Load known as normal.")
    score: float | None = Field(
        description="Log odds that an alarm which starts or stands now meets an onset; the threshold's scale."
    )
    threshold: float | None = Field(description="An alarm needs a score over it; null while advisory.")
    alarm: bool = Field(description="The forecast tightens the gate.")
    denied: bool = Field(description="Over the threshold, and the false-alarm budget refused.")
    would_alarm: bool = Field(description="Threshold and budget let an alarm stand, advisory or not.")
    tightening_target: float
    tightening: float = Field(description="Where the gate stands on its way to the target.")
    advisory: bool = Field(description="The forecast is reported and doesn't tighten.")
    state: State
    reason: str
    retrain: bool = Field(description="The guard's trip wire is crossed: only a new bundle helps.")


class Counts(_Message):
    """What the rates of a report rest on."""

    ticks: int
    eligible_ticks: int
    negative_ticks: int
    late_ticks: int
    positive_ticks: int
    false_alarm_ticks: int
    releasing_negative_ticks: int = Field(
        description="No alarm, and the gate not yet back from the one before."
    )
    onsets: int
    anticipated_onsets: int
    alarm_episodes: int
    right_alarm_episodes: int


class Interval(_Message):
    """Ends of a 90 % interval, by a bootstrap over hours."""

    low: float
    high: float


class Intervals(_Message):
    """How far the rates of a report can be relied on.

    Null where nothing has matured, or what is counted (calm ticks, onsets, episodes) lies in fewer than 5
    hours: these say too little about the spread between hours. Where all hours agree the interval has no
    width; how little that may rest on stands in ``rests_on``.
    """

    false_alarm_rate: Interval | None
    strict_false_alarm_rate: Interval | None
    recall: Interval | None
    precision: Interval | None


class LedgerReport(_Message):
    """The false-alarm budget."""

    share_by_window: dict[str, float | None] = Field(
        description="Alarms charged over calm ticks, by window length; null where no tick was calm."
    )
    limit_by_window: dict[str, float]
    remaining_alarm_ticks: int
    charges: int
    denials: int = Field(description="Alarms that the budget refused, those while advisory included.")


class SkillReport(_Message):
    """Whether would-be alarms anticipate the latest onsets better than chance; closed, none tightens."""

    open: bool
    onsets: int = Field(description="Latest onsets that count, those of calibration included.")
    anticipated_onsets: int
    recall: float | None
    random_recall: float | None = Field(description="Recall of the same alarms, moved by a random time.")
    luck: float = Field(description="Probability of so many anticipated onsets by luck alone.")
    reason: str | None = Field(description="Why the gate is closed; null while it is open.")


class WireReport(_Message):
    """Whether scores are over the threshold so often that they have left their calibration."""

    tripped: bool = Field(description="Muted until a new bundle is loaded.")
    evidence: float = Field(description="Wealth of a bet against a rate within the limits.")
    trips_at: float
    over_threshold_rate: float | None = Field(description="Of calm ticks, over the latest day of them.")
    strict_over_threshold_rate: float | None = Field(description="Late ticks in alarm too late included.")
    reason: str | None = Field(description="Why it has tripped; null while it has not.")


class ReportResponse(_Message):
    """How good the alarms were over the last day, from outcomes that have matured."""

    false_alarm_rate: float | None
    strict_false_alarm_rate: float | None = Field(description="The same over negative and late ticks.")
    recall: float | None = Field(description="Share of onsets that an alarm 60 to 30 s ahead stood through.")
    random_recall: float | None = Field(description="Recall of the same alarms, moved by a random time.")
    base_rate: float | None = Field(description="Share of eligible ticks with an onset 30 to 60 s ahead.")
    alarm_share: float | None = Field(description="Share of eligible ticks in alarm.")
    precision: float | None = Field(description="Share of alarm episodes that an onset followed in 75 s.")
    lead_s: dict[str, float] | None = Field(
        description="Quantiles of alarm start to onset, over the anticipated onsets."
    )
    intervals: Intervals
    rests_on: str = Field(
        description="What recall, precision and false-alarm rate were counted over, for people."
    )
    counts: Counts
    matures_after_s: int = Field(description="A tick is judged this long after it.")
    advisory: bool
    state: State
    reason: str
    retrain: bool = Field(description="The guard's trip wire is crossed: only a new bundle helps.")
    ledger: LedgerReport
    skill_gate: SkillReport | None
    trip_wire: WireReport | None
    late_rows: int = Field(
        description="Arrivals and ends over 60 s behind the last tick: the forecast leaves them out."
    )


class ReadyResponse(_Message):
    """Ready to decide, and by what."""

    ready: bool
    deciding_by: Literal["rules", "rules and forecast"]
    bundle: str = Field(description="Version of the loaded bundle.")
    providers: list[str] = Field(description="Execution providers that run the model.")
    lake: str | None = Field(description="'ok', or why the lake can't be written; null where none is kept.")
    predictor: State
    reason: str
    retrain: bool = Field(description="The guard's trip wire is crossed: only a new bundle helps.")


class Problem(BaseModel):
    """An error that is not a refusal, as RFC 9457 has it."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[str] | None = None
