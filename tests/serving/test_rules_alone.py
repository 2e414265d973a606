"""A predictor that is late, dead or blind leaves the rules alone, and /readyz and a metric say so."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from data.config import Target
from models.bundle import Bundle
from serving.app import create_app
from serving.clock import ManualClock
from serving.service import Service
from serving.settings import Settings

EPOCH_US = 1_700_000_000_000_000


class Scene:
    def __init__(self, bundle: Path, settings: Settings) -> None:
        self.clock = ManualClock(EPOCH_US)
        self.app = create_app(Bundle.load(bundle), settings, self.clock)
        self.service: Service = self.app.state.service

    def told(self) -> tuple[dict, dict[str, float]]:
        async def ask() -> tuple[dict, str]:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                admitted = await client.post("/v1/admit", json={"prompt_tokens": 1})
                assert admitted.json()["tightening"] == 0.0
                return (await client.get("/readyz")).json(), (await client.get("/metrics")).text

        ready, metrics = asyncio.run(ask())
        assert (ready["ready"], ready["deciding_by"]) == (True, "rules")
        lines = [line.split() for line in metrics.splitlines() if line.startswith("tidegate_predictor_")]
        return ready, {name.removeprefix("tidegate_predictor_"): float(value) for name, value in lines}


@pytest.fixture
def scene(bundle_folder: Callable[[float | None], Path]) -> Scene:
    scrape = (Target(name="pool-a", url="http://127.0.0.1:9/metrics"),)
    return Scene(bundle_folder(-100.0), Settings(scrape=scrape))


def test_late(scene: Scene) -> None:
    ready, metrics = scene.told()
    assert (ready["predictor"], "no tick" in ready["reason"]) == ("late", True)
    assert metrics == {"active": 0, "late": 1, "dead": 0, "blind": 0}


def test_dead(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.told()

    def fails(t_s: int) -> None:
        raise RuntimeError("device lost")

    monkeypatch.setattr(scene.service.offered, "features", fails)
    scene.clock.advance(5.0)
    scene.service.tick()
    ready, metrics = scene.told()
    assert (ready["predictor"], "device lost" in ready["reason"]) == ("dead", True)
    assert metrics == {"active": 0, "late": 0, "dead": 1, "blind": 1}


def test_blind_while_no_scraped_engine_tells(scene: Scene) -> None:
    scene.told()
    scene.service.tick()
    assert scene.told()[1]["blind"] == 1
