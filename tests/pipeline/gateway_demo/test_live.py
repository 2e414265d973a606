import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import polars as pl
import pytest

from data.errors import InputError
from data.schema import POLARS_REQUESTS
from pipeline.demo_gateway import Demo, past
from pipeline.gateway_demo.live import _feed, perform
from pipeline.gateway_demo.stack import Stack
from pipeline.replay import US, events, serving
from serving.clock import SystemClock
from serving.settings import Settings
from tests.noise_bundle import noise_model, write_noise_bundle

DAY = datetime(2026, 1, 5, tzinfo=UTC)
SECONDS = 90


def requests(seconds: int = SECONDS) -> pl.DataFrame:
    """A request a second; each takes two seconds."""
    rows = [
        {
            "request_id": str(second),
            "arrived_at": DAY + timedelta(seconds=second),
            "finished_at": DAY + timedelta(seconds=second + 2),
            "prompt_tokens": 100,
            "output_tokens": 10,
            "outcome": "served",
        }
        for second in range(seconds)
    ]
    return pl.DataFrame(rows, schema=POLARS_REQUESTS)


def shifted(requests: pl.DataFrame, shift_us: int) -> pl.DataFrame:
    """The same requests at other times."""
    by = pl.duration(microseconds=shift_us)
    return requests.with_columns(pl.col("arrived_at") + by, pl.col("finished_at") + by)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_noise_bundle(tmp_path_factory.mktemp("bundle"), noise_model(), None)


def test_history_ends_where_the_window_begins() -> None:
    first_us = int(DAY.timestamp()) * US
    assert past(requests(), first_us, 60, 20)["request_id"].to_list() == [str(at) for at in range(40, 60)]


def test_a_service_hears_history_and_what_happens_meanwhile_and_is_on_time(bundle: Path) -> None:
    clock = SystemClock()
    # The last second of it lies ahead: it may be told only once it has come.
    now_us, first_us = clock.wall_us(), int(DAY.timestamp()) * US
    told = events(shifted(requests(), now_us - first_us - (SECONDS - 2) * US))
    with serving(bundle, Settings(), clock, 0) as client:  # type: ignore[arg-type]
        stack = Stack("rules", Path(), "", str(client.base_url).rstrip("/"), "", "", {})

        async def feed() -> bool:
            caught_up = asyncio.Event()
            async with httpx.AsyncClient(timeout=60) as own:
                await _feed(own, stack, told, clock, caught_up)
            return caught_up.is_set()

        assert asyncio.run(feed())
        metrics = client.get("/metrics").text
    assert f"tidegate_telemetry_rows_total {2.0 * SECONDS}" in metrics
    assert clock.wall_us() >= int(told.at_us[-1])


def test_a_machine_that_takes_in_history_too_slowly_is_said(bundle: Path) -> None:
    clock = SystemClock()
    told = events(shifted(requests(), clock.wall_us() - int(DAY.timestamp()) * US - (SECONDS + 3_600) * US))
    with serving(bundle, Settings(), clock, 0) as client:  # type: ignore[arg-type]
        stack = Stack("rules", Path(), "", str(client.base_url).rstrip("/"), "", "", {})
        with pytest.raises(InputError, match="--lead-s"):
            asyncio.run(perform([stack], told, [], clock.wall_us(), clock, lambda what, share: None))


@pytest.mark.parametrize(("field", "said"), [("seconds", "10 or more"), ("history_s", "an hour or more")])
def test_a_play_or_history_too_short_is_refused(field: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Demo(**{field: 5})
