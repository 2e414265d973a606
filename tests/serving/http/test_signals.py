import asyncio
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.config import Target
from data.live.samples import Sample
from models.bundle import Bundle
from serving.app import create_app
from serving.clock import ManualClock
from serving.controller.rules import Rules
from serving.forecast.predictor import Seen, Status
from serving.http.messages import AdmitRequest
from serving.http.signals import MOST_PER_S, UnknownError, quantity
from serving.settings import Settings

EPOCH_US = 1_700_000_000_000_000
QUANTITY = re.compile(r"[0-9]+(\.[0-9]{1,3})?")


@pytest.fixture(scope="session")
def bundle(bundle_folder: Callable[[float | None], Path]) -> Bundle:
    return Bundle.load(bundle_folder(None))


class Watched:
    """The service on a clock of the test's, with traffic and ticks as the test wants them."""

    def __init__(self, bundle: Bundle, engines: int = 0) -> None:
        self.clock = ManualClock(EPOCH_US)
        targets = tuple(Target(name=f"e{n}", url=f"http://127.0.0.1:9/{n}") for n in range(engines))
        settings = Settings(rules=Rules(capacity_tokens=10**9), scrape=targets)
        self.app = create_app(bundle, settings, self.clock)
        self.service = self.app.state.service

    def traffic(self, seconds: int, per_s: int = 1, prompt_tokens: int = 1_000) -> None:
        for _ in range(seconds):
            for _ in range(per_s):
                self.service.admit(AdmitRequest(prompt_tokens=prompt_tokens))
            self.idle(1)

    def idle(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.service.tick()

    def get(self, path: str) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.get(path)

        return asyncio.run(send())

    def forecasts(self, peak: float, monkeypatch: pytest.MonkeyPatch, state: str = "active") -> None:
        """Have the predictor see that peak, past its hour of warm-up."""
        predictor = self.service.predictor
        predictor.seen = replace(predictor.seen or Seen(0, 0), peak_load={"p90": peak})
        monkeypatch.setattr(predictor, "status", lambda *_: Status(state, "as the test wants it"))  # type: ignore[arg-type]

    def scraped(self, *states: str) -> None:
        samples = [
            Sample(source=f"e{n}", at_us=self.clock.wall_us(), engine="0", state=state, waiting=0)  # type: ignore[arg-type]
            for n, state in enumerate(states)
        ]
        self.service.engine.scraped(samples, self.clock.wall_us(), self.clock.monotonic_s())


def numbers(body: dict) -> list[str]:
    return [value for value in body.values() if isinstance(value, str)] + [
        value for inner in body.values() if isinstance(inner, dict) for value in inner.values()
    ]


def test_load_is_told_on_both_axes_once_a_minute_was_watched(bundle: Bundle) -> None:
    watched = Watched(bundle)
    assert watched.get("/v1/signals/now").status_code == 503
    watched.traffic(59, per_s=3)
    early = watched.get("/v1/signals/now")
    assert early.status_code == 503
    assert early.headers["retry-after"] == "5"
    assert early.json()["detail"] == "The traffic of 59 of 60 s has been seen."
    watched.traffic(2, per_s=3)
    assert watched.get("/v1/signals/now").json() == {"requests_per_s": "3", "tokens_per_s": "3000"}


def test_an_idle_hour_is_a_load_of_zero_and_no_traffic_ever_is_unknown(bundle: Bundle) -> None:
    watched = Watched(bundle)
    watched.traffic(5)
    watched.idle(3_600)
    assert watched.get("/v1/signals/now").json() == {"requests_per_s": "0", "tokens_per_s": "0"}
    never = Watched(bundle)
    never.idle(3_600)
    assert never.get("/v1/signals/now").status_code == 503


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, -1.0, -9.2e15, 2 * MOST_PER_S])
def test_no_nan_infinity_or_minus_one_leaves_a_signal(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, poison: float
) -> None:
    watched = Watched(bundle)
    watched.traffic(61)
    watched.forecasts(poison, monkeypatch)
    answer = watched.get("/v1/signals/forecast")
    assert answer.status_code == 503
    assert "per_s" not in answer.text
    assert "tidegate_forecast_tokens_per_second_p90" not in watched.get("/metrics").text


def test_all_scrapes_failing_at_peak_is_503_and_no_zero(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(bundle, engines=2)
    watched.traffic(61, per_s=5)
    watched.forecasts(9_000.0, monkeypatch)
    watched.scraped("ok", "ok")
    assert watched.get("/v1/signals/now").status_code == 200
    watched.traffic(120, per_s=5)
    watched.scraped("failed", "failed")
    for path in ("/v1/signals/now", "/v1/signals/forecast"):
        answer = watched.get(path)
        assert answer.status_code == 503
        assert answer.json()["detail"] == "No engine that is scraped tells anything."


def test_a_ratio_by_gpu_is_left_out_while_an_engine_is_silent(bundle: Bundle) -> None:
    watched = Watched(bundle, engines=2)
    watched.traffic(61, per_s=4)
    watched.scraped("ok", "ok")
    whole = watched.get("/v1/signals/now?gpus_per_engine=4").json()
    assert whole["per_gpu"] == {"requests_per_s": "0.5", "tokens_per_s": "500"}
    watched.scraped("ok", "failed")
    assert "per_gpu" not in watched.get("/v1/signals/now?gpus_per_engine=4").json()
    assert watched.get("/v1/signals/now?gpus_per_engine=0").status_code == 422


def test_a_forecast_may_ask_for_more_never_for_less(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(bundle)
    watched.traffic(61, per_s=2)
    watched.forecasts(10_000.0, monkeypatch)
    assert watched.get("/v1/signals/forecast").json() == {
        "requests_per_s_p90": "10",  # requests of 1,000 tokens
        "tokens_per_s_p90": "10000",
        "advisory": False,
    }
    watched.forecasts(0.0, monkeypatch, state="advisory")
    assert watched.get("/v1/signals/forecast").json() == {
        "requests_per_s_p90": "2",
        "tokens_per_s_p90": "2000",
        "advisory": True,
    }


@pytest.mark.parametrize("state", ["warming up", "late", "dead"])
def test_without_a_forecast_its_signal_is_unknown_and_the_load_of_now_stays(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    watched = Watched(bundle)
    watched.traffic(61)
    watched.forecasts(10_000.0, monkeypatch, state=state)
    answer = watched.get("/v1/signals/forecast")
    assert answer.status_code == 503
    assert answer.json()["detail"] == "There is no forecast: as the test wants it."
    assert watched.get("/v1/signals/now").status_code == 200


def test_requests_that_weigh_next_to_nothing_make_no_spike(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(bundle)
    watched.traffic(61, prompt_tokens=0)
    watched.forecasts(3.0, monkeypatch)
    # A request counts for a token at least: 3 tokens/s are no more than 3 requests/s.
    assert watched.get("/v1/signals/forecast").json()["requests_per_s_p90"] == "3"


def test_the_signals_are_gauges_too(bundle: Bundle) -> None:
    watched = Watched(bundle)
    assert "tidegate_offered_requests_per_second" not in watched.get("/metrics").text
    watched.traffic(61, per_s=3)
    text = watched.get("/metrics").text
    assert "tidegate_offered_requests_per_second 3.0\n" in text
    assert "tidegate_offered_tokens_per_second 3000.0\n" in text


@given(st.floats(0, MOST_PER_S))
def test_a_quantity_is_never_under_its_number_and_zero_only_for_zero(per_s: float) -> None:
    text = quantity(per_s)
    assert QUANTITY.fullmatch(text)
    assert (text == "0") == (per_s == 0)
    assert float(text) >= per_s * (1 - 1e-9) - 1e-6


def test_what_is_no_load_has_no_quantity() -> None:
    with pytest.raises(UnknownError, match="can't be right"):
        quantity(-0.39)
