"""The whole workload: every component, put together in order of arrival."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from data.errors import InputError
from data.schema import OUTCOMES, POLARS_REQUESTS, UTC_US
from data.workload.agents import run_agents
from data.workload.api import api_senders, call_api, mean_work_tokens
from data.workload.calls import NONE, Calls, Cause, Ints, Sender, join
from data.workload.echoes import shed_and_retry
from data.workload.jobs import draw_jobs, run_jobs
from data.workload.rhythm import arrivals, day_curve
from data.workload.sessions import ChatTenants, chat_tenants, hold_sessions
from data.workload.settings import Settings, stream
from data.workload.surges import ramp_crowds, strike_shocks

API_SHARE = 0.22
CHAT_SHARE = 0.55
"""Shares of all requests that causes are sized by. Chat then makes up the rest, whatever causes came to."""
MIN_CHAT_SHARE = 0.2
LEAD_S = 3600
"""Conversations begin this long before the workload, so that its first minutes are as busy as the others."""
CAUSES = ("cron", "fan_out", "ramp", "storm", "retry_echo", "shock")
CAUSE_SCHEMA = {
    "at": UTC_US,
    "t_s": pl.Float64(),
    "cause": pl.String(),
    "tenant": pl.String(),
    "detail": pl.String(),
}


@dataclass(frozen=True, slots=True)
class Workload:
    """A synthetic workload and the truth about it.

    Attributes:
        requests: in the schema of requests, sorted by arrived_at.
        causes: what sends bursts of work, sorted by at: when it starts to send, t_s the same in seconds from
            the first request, its name (one of CAUSES), the tenant (of several, the one with most requests),
            and its figures as "name=value" pairs.

    """

    requests: pl.DataFrame
    causes: pl.DataFrame


def generate(settings: Settings) -> Workload:
    """Make the workload of these settings; 3 days at 8.5 requests/s are about 2.2 million requests."""
    chat = chat_tenants(settings)
    rate = settings.requests_per_s
    load = rate * (CHAT_SHARE * chat.mean_work_tokens + API_SHARE * mean_work_tokens())
    senders = chat.senders + api_senders()
    api, storms = call_api(settings, API_SHARE * rate, len(chat.senders))
    runs, cron, job_senders = _scheduled(settings, load, chat.senders, len(senders))
    senders += job_senders
    episodes, fan_outs, agent_senders = run_agents(settings, load, len(senders))
    senders += agent_senders
    crowds, ramps = ramp_crowds(settings, chat, CHAT_SHARE * rate, first_session=0)
    shots, shocks = strike_shocks(settings, senders, load)

    others = _within(join([*api, *runs, *episodes, *crowds, *shots]), settings.span_s)
    chat_requests = max(rate * settings.span_s - len(others), MIN_CHAT_SHARE * rate * settings.span_s)
    usual = _usual_conversations(settings, chat, chat_requests, int(others.session.max(initial=NONE)) + 1)
    calls = _without_leaver(settings, chat, join([others, _within(usual, settings.span_s)]))
    if not len(calls):
        raise InputError("These settings give no request at all; raise days or requests_per_s.")
    calls = calls.take(np.argsort(calls.arrived_s, kind="stable"))
    calls, retries, retry_of, echoes = shed_and_retry(settings, calls, senders, load)
    origin_us = int(settings.start.timestamp()) * 1_000_000 + settings.start.microsecond
    requests = _requests(join([calls, retries]), len(calls), retry_of, senders, origin_us, _source(settings))
    return Workload(
        requests, _causes([*cron, *fan_outs, *ramps, *storms, *echoes, *shocks], origin_us, requests)
    )


def _scheduled(
    settings: Settings, load_tokens_per_s: float, chat: list[Sender], first_sender: int
) -> tuple[list[Calls], list[Cause], list[Sender]]:
    """Runs of all jobs; where schedules change, of the old ones until then, then of the new."""
    change = settings.figures.change
    eras = [("", (0.0, change))] + ([("-new", (change, 1.0))] if change < 1.0 else [])
    calls: list[Calls] = []
    causes: list[Cause] = []
    senders: list[Sender] = []
    for era, share in eras:
        jobs, owners = draw_jobs(settings, load_tokens_per_s, chat, first_sender + len(senders), era)
        runs, found = run_jobs(settings, jobs, era, share)
        calls, causes, senders = calls + runs, causes + found, senders + owners
    return calls, causes, senders


def _without_leaver(settings: Settings, chat: ChatTenants, calls: Calls) -> Calls:
    """Drop what the largest chat tenant would have sent after it left."""
    leave = settings.figures.leave
    gone = (calls.sender == int(chat.share.argmax())) & (calls.arrived_s >= leave * settings.span_s)
    return calls.take(~gone) if leave < 1.0 else calls


def _within(calls: Calls, span_s: float) -> Calls:
    return calls.take((calls.arrived_s >= 0) & (calls.arrived_s < span_s))


def _usual_conversations(settings: Settings, chat: ChatTenants, requests: float, first_session: int) -> Calls:
    """Independent sessions along each tenant's day curve, ``requests`` turns in all in the mean."""
    starts, owners = [], []
    for i in range(len(chat.senders)):
        random = stream(settings.seed, f"chat {i}")
        curve = day_curve(random, settings.start, settings.span_s, LEAD_S, settings.figures.growth_per_day)
        found = arrivals(random, curve, requests * chat.share[i] / chat.turns[i], LEAD_S)
        starts.append(found)
        owners.append(np.full(len(found), i))
    random = stream(settings.seed, "conversations")
    return hold_sessions(random, chat, np.concatenate(owners), np.concatenate(starts), first_session)


def _requests(
    calls: Calls, first_tries: int, retry_of: Ints, senders: list[Sender], origin_us: int, source: str
) -> pl.DataFrame:
    """Name the calls; those from ``first_tries`` on are retries of the calls at ``retry_of``."""
    repeats = np.concatenate([np.full(first_tries, NONE), retry_of])
    order = np.argsort(np.floor(calls.arrived_s * 1e6), kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    calls, repeats = calls.take(order), repeats[order]
    ids = pl.Series(np.arange(len(order))).cast(pl.String)
    names = pl.DataFrame(senders, schema=["tenant", "lane", "model"], orient="row")
    numbers = pl.DataFrame(
        {
            "request": ids,
            "session_number": calls.session,
            "repeats": np.where(repeats == NONE, NONE, place[repeats]),
            "arrived_us": origin_us + np.floor(calls.arrived_s * 1e6).astype(np.int64),
            "finished_us": origin_us + np.ceil(calls.finished_s * 1e6).astype(np.int64),
            "prompt_tokens": calls.prompt,
            "cached_tokens": calls.cached,
            "limit": calls.limit,
            "output_tokens": calls.output,
        }
    )
    frame = pl.concat([numbers, names[calls.sender]], how="horizontal").with_columns(
        source=pl.lit(source),
        request_id="r" + pl.col("request"),
        arrived_at=pl.col("arrived_us").cast(UTC_US),
        finished_at=pl.col("finished_us").cast(UTC_US),
        session=pl.when(pl.col("session_number") != NONE).then(
            "s" + pl.col("session_number").cast(pl.String)
        ),
        max_tokens=pl.when(pl.col("limit") != NONE).then("limit"),
        outcome=pl.Series(OUTCOMES).gather(calls.outcome),
        retry_of=pl.when(pl.col("repeats") != NONE).then("r" + pl.col("repeats").cast(pl.String)),
        **{
            name: pl.lit(None, dtype=POLARS_REQUESTS[name])
            for name in ("log_type", "block_hashes", "block_tokens", "images")
        },
    )
    return frame.select(pl.col(name).cast(kind) for name, kind in POLARS_REQUESTS.items())


def _source(settings: Settings) -> str:
    family = "" if settings.family == "base" else f"{settings.family}-"
    return f"synthetic-{family}{settings.seed}"


def _causes(causes: list[Cause], origin_us: int, requests: pl.DataFrame) -> pl.DataFrame:
    """Causes that start within the span of the requests, in order."""
    first, last = requests["arrived_at"].to_physical()[[0, -1]]
    frame = pl.DataFrame(
        causes, schema=list(Cause._fields), orient="row", schema_overrides={"at_s": pl.Float64}
    )
    at_us = origin_us + (pl.col("at_s") * 1e6).floor().cast(pl.Int64)
    return (
        frame.with_columns(at_us=at_us)
        .filter(pl.col("at_us").is_between(first, last))
        .sort("at_us", "cause", "tenant", "detail")
        .select(
            at=pl.col("at_us").cast(UTC_US),
            t_s=((pl.col("at_us") - first) / 1e6).round(6),
            cause="cause",
            tenant="tenant",
            detail="detail",
        )
        .match_to_schema(CAUSE_SCHEMA)
    )
