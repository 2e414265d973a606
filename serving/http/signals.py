"""Scaling signals: offered load, now and as forecast, for whoever decides how many engines run.

An autoscaler takes a number at its word: a 0 that stands for "not known" removes a fleet at its peak. So an
answer is whole or it is 503 without a number; a 0 means that nothing arrived. Numbers are quantities as
Kubernetes writes them, such as "41.5", never NaN, infinite or negative. The forecast is never under the
load of now: it may ask for more engines, not for fewer.

Totals need no ratio: with KEDA's AverageValue the autoscaler divides them by its own replicas. Values by GPU
are given while every engine that is scraped tells. Where several replicas of this service run, each tells
what it was asked for: ask them all and add up, or the fleet is scaled for a part of its load.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query
from pydantic import BaseModel, ConfigDict, Field

from serving.forecast.live_work import LiveWork
from serving.forecast.offered import OfferedLoad
from serving.forecast.predictor import Predictor
from serving.http import problems
from serving.metrics import Gauges, Live
from serving.service import Service

WINDOW_S = 60
"""The load of now is a mean over so many seconds, all of which must have been watched."""
MIX_S = 600
MIX_REQUESTS = 30
"""What a request weighs is told by the last MIX_S if so many came in them, else by the last day."""
MOST_PER_S = 1e12
"""No fleet has more; a larger number is a fault."""
RETRY_AFTER_S = 5

GpusPerEngine = Annotated[int, Query(ge=1, le=1024, description="GPUs behind each engine that is scraped.")]


class UnknownError(Exception):
    """A signal can't be given; its text says why."""


class Load(BaseModel):
    """Load on both axes; quantities as Kubernetes writes them."""

    model_config = ConfigDict(frozen=True)

    requests_per_s: str
    tokens_per_s: str = Field(
        description="Prompt and output tokens of what arrives; the output of what still runs, as requests "
        "of the same kind had it that were settled, and the prompt alone until one was."
    )


class Now(Load):
    """Offered load of the last minute, admitted or not."""

    per_gpu: Load | None = Field(None, description="Left out unless every engine that is scraped tells.")


class Forecast(BaseModel):
    """Highest offered load of the next minute: the 90 % quantile, and never under the load of now."""

    model_config = ConfigDict(frozen=True)

    requests_per_s_p90: str = Field(description="That load in requests of the present mix.")
    tokens_per_s_p90: str
    per_gpu: Load | None = Field(None, description="Left out unless every engine that is scraped tells.")
    advisory: bool = Field(description="The forecaster has yet to show that it beats chance here.")


def router(service: Service) -> APIRouter:
    """Routes of the signals of ``service``; its registry gets the same numbers as gauges."""
    service.metrics.registry.register(Live(lambda: gauges(service)))
    unknown: dict[int | str, dict[str, Any]] = {
        503: {"description": "Not known now; the reason stands in `detail`."}
    }
    routes = APIRouter(prefix="/v1/signals", responses=problems.documented(422) | unknown)

    @routes.get("/now", response_model_exclude_none=True)
    async def now(gpus_per_engine: GpusPerEngine = 1) -> Now:
        """Offered load of the last minute."""
        try:
            gpus = _gpus(service, gpus_per_engine)
            requests, tokens = load_now(service.offered, service.clock.wall_us(), service.clock.monotonic_s())
            load = _load(requests, tokens)
            per_gpu = None if gpus is None else _load(requests / gpus, tokens / gpus)
        except UnknownError as error:
            raise _unavailable(error) from error
        return Now(requests_per_s=load.requests_per_s, tokens_per_s=load.tokens_per_s, per_gpu=per_gpu)

    @routes.get("/forecast", response_model_exclude_none=True)
    async def forecast(gpus_per_engine: GpusPerEngine = 1) -> Forecast:
        """Highest offered load of the next minute."""
        now_us, now_s = service.clock.wall_us(), service.clock.monotonic_s()
        try:
            gpus = _gpus(service, gpus_per_engine)
            requests, tokens = load_forecast(service.predictor, service.offered, now_us, now_s)
            load = _load(requests, tokens)
            per_gpu = None if gpus is None else _load(requests / gpus, tokens / gpus)
        except UnknownError as error:
            raise _unavailable(error) from error
        return Forecast(
            requests_per_s_p90=load.requests_per_s,
            tokens_per_s_p90=load.tokens_per_s,
            per_gpu=per_gpu,
            advisory=service.predictor.status(now_us, now_s).state != "active",
        )

    return routes


def load_now(offered: OfferedLoad, now_us: int, now_s: float) -> tuple[float, float]:
    """Requests/s and tokens/s of the last WINDOW_S full seconds.

    Raises:
        UnknownError: when they were not all watched.

    """
    end_s = offered.second(now_us)
    if offered.origin_us is None:
        raise UnknownError("No request has arrived since the start.")
    if offered.replaying(now_us, now_s):
        raise UnknownError("History is being replayed.")
    if end_s < WINDOW_S:
        raise UnknownError(f"The traffic of {max(end_s, 0)} of {WINDOW_S} s has been seen.")
    work: LiveWork = offered.work
    tokens = int(work.bins(end_s - WINDOW_S, end_s).work.sum())
    return work.requests(end_s - WINDOW_S, end_s) / WINDOW_S, tokens / WINDOW_S


def load_forecast(
    predictor: Predictor, offered: OfferedLoad, now_us: int, now_s: float
) -> tuple[float, float]:
    """Requests/s and tokens/s of the highest load in the next minute, at its 90 % quantile.

    Raises:
        UnknownError: when the forecaster is warming up, late or dead, or the load of now is unknown.

    """
    requests, tokens = load_now(offered, now_us, now_s)
    status = predictor.status(now_us, now_s)
    if status.state not in ("active", "advisory"):
        raise UnknownError(f"There is no forecast: {status.reason}.")
    seen = predictor.seen
    if seen is None or seen.peak_load is None:
        raise UnknownError("There is no forecast: features of the last tick are not known.")
    peak = _number(seen.peak_load["p90"])
    work_per_request = _mix(offered.work, offered.second(now_us))
    if work_per_request is not None:
        requests = max(requests, peak / work_per_request)
    return requests, max(tokens, peak)


def gauges(service: Service) -> Gauges:
    """The same numbers for /metrics; those that are not known are None."""
    now_us, now_s = service.clock.wall_us(), service.clock.monotonic_s()
    requests, tokens = _or_none(lambda: load_now(service.offered, now_us, now_s))
    peak_requests, peak_tokens = _or_none(
        lambda: load_forecast(service.predictor, service.offered, now_us, now_s)
    )
    return {
        "tidegate_offered_requests_per_second": ("Offered in the last minute.", requests),
        "tidegate_offered_tokens_per_second": ("Work offered in the last minute.", tokens),
        "tidegate_forecast_requests_per_second_p90": ("Highest of the next minute.", peak_requests),
        "tidegate_forecast_tokens_per_second_p90": ("Highest of the next minute.", peak_tokens),
    }


def quantity(per_s: float) -> str:
    """A quantity of Kubernetes, rounded up to thousandths so that little is not nothing.

    >>> quantity(41.5), quantity(52_000.0), quantity(0.00001), quantity(0.0)
    ('41.5', '52000', '0.001', '0')

    Raises:
        UnknownError: when it is not a finite number from 0 to MOST_PER_S.

    """
    thousandths = math.ceil(round(_number(per_s) * 1_000, 3))
    if thousandths == 0 and per_s > 0:
        thousandths = 1
    return f"{thousandths / 1_000:.3f}".rstrip("0").rstrip(".")


def _number(per_s: float) -> float:
    if not 0.0 <= per_s <= MOST_PER_S:  # NaN is neither
        raise UnknownError("A load that can't be right was computed; it is not given away.")
    return per_s


def _or_none(load: Callable[[], tuple[float, float]]) -> tuple[float, float] | tuple[None, None]:
    try:
        requests, tokens = load()
        return _number(requests), _number(tokens)
    except UnknownError:
        return None, None


def _load(requests_per_s: float, tokens_per_s: float) -> Load:
    return Load(requests_per_s=quantity(requests_per_s), tokens_per_s=quantity(tokens_per_s))


def _mix(work: LiveWork, end_s: int) -> float | None:
    """Tokens of a request, at least 1; None where none came in the last day."""
    start_s = max(0, end_s - MIX_S)
    bins, requests = work.bins(start_s, end_s), work.requests(start_s, end_s)
    mean = bins.work.sum() / requests if requests >= MIX_REQUESTS else bins.mean_work
    return None if math.isnan(mean) else max(1.0, float(mean))


def _gpus(service: Service, gpus_per_engine: int) -> int | None:
    """GPUs of all engines; None where that is not known."""
    if service.scraping is None:
        return None
    fleet = service.engine.fleet(service.clock.wall_us())
    if fleet.telling == 0:
        raise UnknownError("No engine that is scraped tells anything.")
    return fleet.telling * gpus_per_engine if fleet.telling == fleet.engines else None


def _unavailable(error: UnknownError) -> HTTPException:
    return HTTPException(503, str(error), {"retry-after": str(RETRY_AFTER_S)})
