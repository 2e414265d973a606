from datetime import UTC, datetime, timedelta, timezone

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from data.schema import LANES, OUTCOMES, POLARS_REQUESTS
from data.workload import CAUSES, Settings, Workload, generate

CONVERSATION = pl.col("session").is_not_null()


def test_the_same_seed_gives_the_same_workload(settings: Settings, workload: Workload) -> None:
    again = generate(Settings(days=0.1, seed=3))
    assert again is not workload
    assert_frame_equal(again.requests, workload.requests)
    assert_frame_equal(again.causes, workload.causes)


def test_another_seed_gives_another_workload(workload: Workload) -> None:
    other = generate(Settings(days=0.1, seed=4))
    assert not other.requests.head(1000).equals(workload.requests.head(1000))


def test_requests_have_the_schema_and_the_order_of_arrival(workload: Workload) -> None:
    requests = workload.requests
    assert dict(requests.schema) == POLARS_REQUESTS
    assert requests["arrived_at"].is_sorted()
    assert requests["request_id"].is_unique().all()
    sometimes = ("log_type", "session", "max_tokens", "retry_of", "block_hashes", "block_tokens", "images")
    known = requests.drop(sometimes)
    assert known.null_count().sum_horizontal().item() == 0
    assert set(requests["lane"]) == set(LANES)
    assert set(requests["outcome"]) <= set(OUTCOMES)


def test_requests_lie_in_the_span_and_come_at_the_rate(settings: Settings, workload: Workload) -> None:
    arrived = workload.requests["arrived_at"]
    assert settings.start <= arrived[0]
    assert (arrived[-1] - settings.start).total_seconds() < settings.span_s
    assert workload.requests.height / settings.span_s == pytest.approx(8.5, rel=0.05)


@pytest.mark.parametrize(("rate", "seed"), [(0.5, 0), (3.0, 1), (30.0, 2)])
def test_the_rate_is_the_one_set(rate: float, seed: int) -> None:
    requests = generate(Settings(days=0.05, seed=seed, requests_per_s=rate)).requests
    assert requests.height / (0.05 * 86_400) == pytest.approx(rate, rel=0.15)


def test_every_row_is_possible(workload: Workload) -> None:
    odd = workload.requests.filter(
        ~(
            (pl.col("prompt_tokens") > 0)
            & pl.col("cached_tokens").is_between(0, pl.col("prompt_tokens"))
            & (pl.col("output_tokens") >= 0)
            & (pl.col("output_tokens") <= pl.col("max_tokens").fill_null(1_000_000))
            & (pl.col("finished_at") >= pl.col("arrived_at"))
        )
    )
    assert odd.is_empty()


def test_contexts_grow_and_turns_wait_for_the_answer(workload: Workload) -> None:
    turns = workload.requests.filter(CONVERSATION)
    step = turns.select(
        grows=(pl.col("prompt_tokens") > pl.col("prompt_tokens").shift().over("session")),
        waits=(pl.col("arrived_at") > pl.col("finished_at").shift().over("session")),
        stays=(pl.col("tenant") == pl.col("tenant").shift().over("session")),
    ).drop_nulls()
    assert step.height > 10_000
    assert step.select(pl.all_horizontal(pl.all()).all()).item()


def test_most_requests_are_conversations_and_api_calls(workload: Workload) -> None:
    base = workload.requests.filter(CONVERSATION | pl.col("tenant").str.starts_with("api"))
    assert 0.5 < base.height / workload.requests.height < 0.95


def test_causes_are_named_sorted_and_within_the_span(workload: Workload) -> None:
    causes, arrived = workload.causes, workload.requests["arrived_at"]
    assert causes.columns == ["at", "t_s", "cause", "tenant", "detail"]
    assert causes["at"].is_sorted()
    assert set(causes["cause"]) <= set(CAUSES)
    assert causes["at"].is_between(arrived[0], arrived[-1]).all()
    seconds = (causes["at"] - arrived[0]).dt.total_microseconds() / 1e6
    assert (seconds - causes["t_s"]).abs().max() < 1e-6
    assert set(causes["tenant"]) <= set(workload.requests["tenant"])


def test_a_cause_starts_with_a_request_of_its_tenant(workload: Workload) -> None:
    starts = workload.causes.filter(
        pl.col("cause").is_in(["cron", "fan_out", "shock", "storm", "retry_echo"])
    )
    sent = workload.requests.select("tenant", at="arrived_at").with_columns(found=True)
    matched = starts.join(sent, on=["tenant", "at"], how="left")
    alone = matched.filter(pl.col("cause") != "retry_echo")
    assert alone["found"].all(ignore_nulls=False)


def test_retries_name_an_earlier_shed_request_of_their_tenant() -> None:
    requests = generate(Settings(days=0.5, seed=2, requests_per_s=5)).requests
    retries = requests.filter(pl.col("retry_of").is_not_null())
    pairs = retries.join(requests, left_on="retry_of", right_on="request_id", suffix="_first")
    assert 0 < retries.height == pairs.height
    assert (pairs["outcome_first"] == "shed").all()
    assert (pairs["tenant"] == pairs["tenant_first"]).all()
    wait_s = (pairs["arrived_at"] - pairs["arrived_at_first"]).dt.total_seconds(fractional=True)
    assert wait_s.is_between(10, 36).all()


def test_times_start_where_they_are_set_to() -> None:
    east = datetime(2026, 3, 7, 2, 30, 0, 250_000, tzinfo=timezone(timedelta(hours=2)))
    requests = generate(Settings(days=0.01, seed=0, start=east)).requests
    first = requests["arrived_at"][0]
    assert timedelta() <= first - east.astimezone(UTC) < timedelta(seconds=10)
