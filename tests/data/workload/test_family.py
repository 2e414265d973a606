import polars as pl
import pytest

from data.errors import InputError
from data.workload import Settings, Workload, generate
from data.workload.family import FAMILIES
from data.workload.sessions import chat_tenants

SETTINGS = Settings(days=1.0, seed=4, requests_per_s=2.0, family="drift")


@pytest.fixture(scope="module")
def drift() -> Workload:
    return generate(SETTINGS)


def test_no_period_is_one_that_the_base_family_has() -> None:
    assert not set(FAMILIES["drift"].periods_s) & set(FAMILIES["base"].periods_s)


def test_schedules_change_once_and_all_at_the_same_time(drift: Workload) -> None:
    runs = drift.causes.filter(pl.col("cause") == "cron")
    period_s = runs["detail"].str.extract(r"period_s=(\d+)").cast(pl.Int64)
    assert set(period_s) <= set(FAMILIES["drift"].periods_s)
    schedules = runs.group_by(
        pl.col("tenant"), pl.col("detail").str.extract(r"(period_s=\d+ phase_s=\d+)")
    ).agg(first=pl.col("t_s").min(), last=pl.col("t_s").max())
    middle = FAMILIES["drift"].change * SETTINGS.span_s
    old, new = schedules.filter(pl.col("last") < middle), schedules.filter(pl.col("first") >= middle)
    assert old.height + new.height == schedules.height
    assert min(old.height, new.height) >= 10


def test_the_largest_tenant_is_heard_until_it_leaves(drift: Workload) -> None:
    chat = chat_tenants(SETTINGS)
    tenant = chat.senders[int(chat.share.argmax())]
    arrived_s = (pl.col("arrived_at") - pl.col("arrived_at").min()).dt.total_seconds()
    talks = pl.col("session").is_not_null() & (pl.col("tenant") == tenant.tenant)
    sent = drift.requests.select(arrived_s.filter(talks))["arrived_at"]
    leaves_s = FAMILIES["drift"].leave * SETTINGS.span_s
    assert leaves_s - 600 < sent.max() < leaves_s  # type: ignore[operator]


def test_the_base_family_is_what_it_was_before_there_were_others() -> None:
    assert Settings().family == "base"
    assert generate(Settings(days=0.02, seed=1)).requests["source"][0] == "synthetic-1"


def test_an_unknown_family_is_told() -> None:
    with pytest.raises(InputError, match="family must be one of base, drift; got 'other'"):
        Settings(family="other")
