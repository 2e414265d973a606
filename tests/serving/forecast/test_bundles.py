import asyncio
import json
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.bundle import MANIFEST_FILE, MODEL_FILE, Bundle
from serving.app import create_app
from serving.clock import ManualClock
from serving.forecast.bundles import WATCH_S, RefusedError, find
from serving.service import Service
from serving.settings import Settings

EPOCH_US = 1_700_000_000_000_000
FOLDER = Callable[[float | None], Path]


@pytest.fixture
def root(tmp_path: Path, bundle_folder: FOLDER, other_bundle_folder: FOLDER) -> Path:
    """A bundle folder with a and b, whose models differ."""
    for name, folder in (("a", bundle_folder(1.0)), ("b", other_bundle_folder(2.0))):
        shutil.copytree(folder, tmp_path / "bundles" / name)
    return tmp_path / "bundles"


class Client:
    def __init__(self, settings: Settings, bundle: Path) -> None:
        self.app = create_app(Bundle.load(bundle), settings, ManualClock(EPOCH_US))
        self.service: Service = self.app.state.service

    def post(self, name: object) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.post("/v1/bundle", json={"name": name})

        return asyncio.run(send())

    def swaps(self, result: str) -> float:
        told = self.service.metrics.registry.get_sample_value(
            "tidegate_bundle_swaps_total", {"result": result}
        )
        return told or 0.0


@pytest.fixture
def client(root: Path) -> Client:
    return Client(Settings(bundles=root), root / "a")


def test_another_bundle_takes_over_and_back_without_a_reset(client: Client, root: Path) -> None:
    service = client.service
    a, b = (Bundle.load(root / name).version for name in "ab")
    guard, ledger, meter = service.predictor.guard, service.predictor.guard.ledger, service.meter
    assert client.post("b").json() == {"bundle": b, "before": a, "changed": True}
    assert service.predictor.guard.threshold == 2.0
    assert service.predictor.guard.ledger is ledger
    assert (service.meter, service.predictor.meter) == (meter, meter)
    assert client.post("b").json() == {"bundle": b, "before": b, "changed": False}
    assert guard.wire is not None
    assert client.post("a").json() == {"bundle": a, "before": b, "changed": True}
    assert service.predictor.guard.threshold == 1.0
    assert service.predictor.guard.ledger is ledger
    assert [client.swaps(result) for result in ("loaded", "unchanged", "refused")] == [2, 1, 0]


def test_a_swap_there_and_back_mends_no_trip_wire(client: Client) -> None:
    wire = client.service.predictor.guard.wire
    assert wire is not None
    wire.tripped = True
    client.post("b")
    assert not client.service.predictor.guard.muted
    client.post("a")
    assert client.service.predictor.guard.muted


def saved_again(folder: Path, threshold: float, to: Path) -> None:
    """The bundle with other metrics and that threshold."""
    shutil.copytree(folder, to)
    manifest = json.loads((to / MANIFEST_FILE).read_text())
    manifest["guard"]["threshold"] = threshold
    manifest["metrics"] = {"event_recall": 0.9}
    (to / MANIFEST_FILE).write_text(json.dumps(manifest))


def test_the_same_model_calibrated_anew_has_its_own_threshold_and_wire_and_the_gates_ledger(
    client: Client, root: Path
) -> None:
    saved_again(root / "a", 3.0, root / "a-anew")
    service = client.service
    service.predictor.guard.ledger.settle(1, True)
    books, wire = service.predictor.guard.ledger.to_dict(), service.predictor.guard.wire
    assert wire is not None
    wire.tripped = True
    told = client.post("a-anew").json()
    assert told["bundle"] != told["before"]
    guard = service.predictor.guard
    assert (guard.threshold, guard.muted) == (3.0, False)
    assert guard.ledger.to_dict() == guard.would_ledger.to_dict() == books
    client.post("a")
    assert (service.predictor.guard.threshold, service.predictor.guard.muted) == (1.0, True)


def test_writing_a_tripped_bundle_again_mends_no_wire(client: Client, root: Path) -> None:
    saved_again(root / "a", 1.0, root / "a-again")
    guard = client.service.predictor.guard
    assert guard.wire is not None
    guard.wire.tripped = True
    told = client.post("a-again").json()
    assert (told["bundle"], told["changed"]) == (told["before"], True)
    assert client.service.predictor.guard is guard
    client.post("b")
    client.post("a-again")
    assert client.service.predictor.guard.muted


@pytest.mark.parametrize(
    "name", ["..", "../a", "a/../../a", "/etc", ".hidden", "a//b", "a/", "", "a\\..\\b", "a\x00b", "%2e%2e/a"]
)
def test_a_name_that_is_a_path_is_refused(client: Client, name: str) -> None:
    before = client.service.bundle
    answer = client.post(name)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert client.service.bundle is before


@given(name=st.text(alphabet="ab./\\%\x00~ ", max_size=12))
def test_no_name_leads_out_of_the_bundle_folder(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    base = tmp_path_factory.getbasetemp() / "names"
    (base / "root" / "a" / "b").mkdir(parents=True, exist_ok=True)
    (base / "a").mkdir(exist_ok=True)
    try:
        found = find(base / "root", name)
    except RefusedError:
        return
    assert found.resolve().is_relative_to((base / "root").resolve())


def test_links_may_lead_within_the_folder_and_nowhere_else(
    client: Client, root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    shutil.copytree(root / "b", outside)
    (root / "out").symlink_to(outside)
    (root / "current").symlink_to("b")
    (root / "around").symlink_to("around")
    assert client.post("out").status_code == 404
    assert client.post("around").status_code == 404
    assert client.post("current").json()["changed"]


@pytest.mark.parametrize("name", [MANIFEST_FILE, MODEL_FILE])
def test_a_bundle_whose_file_is_a_link_out_of_it_is_refused(
    client: Client, root: Path, tmp_path: Path, name: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("token=hunter2")
    (root / "b" / name).unlink()
    (root / "b" / name).symlink_to(secret)
    answer = client.post("b")
    assert answer.status_code == 422
    assert "leads out of the bundle" in answer.json()["detail"]
    assert "hunter2" not in answer.text


def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(client: Client, root: Path) -> None:
    (root / "b" / MODEL_FILE).unlink()
    os.mkfifo(root / "b" / MODEL_FILE)
    answer = client.post("b")
    assert (answer.status_code, "not a regular file" in answer.text) == (422, True)


def test_a_bundle_that_can_not_serve_is_refused_with_the_reason_and_the_old_one_goes_on(
    client: Client, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = json.loads((root / "b" / MANIFEST_FILE).read_text())
    manifest["feature_spec_hash"] = "0123456789abcdef"
    (root / "b" / MANIFEST_FILE).write_text(json.dumps(manifest))
    before = client.service.bundle
    with caplog.at_level(logging.ERROR, "tidegate"):
        answer = client.post("b")
    assert answer.status_code == 422
    assert "0123456789abcdef" in answer.json()["detail"]
    assert client.service.bundle is before
    assert client.swaps("refused") == 1
    assert "retrain" in caplog.records[-1].fields["reason"]  # type: ignore[attr-defined]


def test_without_a_bundle_folder_nothing_is_loaded(root: Path) -> None:
    answer = Client(Settings(), root / "a").post("b")
    assert (answer.status_code, "--bundles" in answer.text) == (409, True)


def test_while_one_is_loaded_another_is_told_to_come_later(client: Client) -> None:
    async def both() -> list[int]:
        transport = httpx.ASGITransport(client.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            answers = (http.post("/v1/bundle", json={"name": "b"}) for _ in range(2))
            return sorted(answer.status_code for answer in await asyncio.gather(*answers))

    assert asyncio.run(both()) == [200, 409]
    assert client.swaps("loaded") == 1


def test_a_link_that_is_moved_is_noticed_and_a_broken_bundle_behind_it_is_refused_once(root: Path) -> None:
    current, settings = root / "current", Settings(bundles=root)
    current.symlink_to("a")
    client = Client(replace(settings, watch_bundle=current), root / "a")
    clock = client.service.clock
    assert isinstance(clock, ManualClock)

    def point(name: str) -> None:
        (root / "next").symlink_to(name)
        (root / "next").rename(current)

    async def until(wanted: Callable[[], bool]) -> None:
        for _ in range(2_000):
            if wanted():
                return
            clock.advance(WATCH_S)
            await asyncio.sleep(0.005)
        raise AssertionError("nothing was noticed")

    async def live() -> None:
        a, b = (Bundle.load(root / name).version for name in "ab")
        async with client.app.router.lifespan_context(client.app):
            await until(lambda: client.swaps("unchanged") == 1)
            point("b")
            await until(lambda: client.service.bundle.version == b)
            whole = (root / "a" / MODEL_FILE).read_bytes()
            (root / "a" / MODEL_FILE).write_bytes(whole[:1000])
            point("a")
            await until(lambda: client.swaps("refused") == 1)
            for _ in range(20):
                clock.advance(WATCH_S)
                await asyncio.sleep(0.005)
            assert client.swaps("refused") == 1
            assert client.service.bundle.version == b
            (root / "a" / MODEL_FILE).write_bytes(whole)
            await until(lambda: client.service.bundle.version == a)

    asyncio.run(live())


def test_the_first_look_at_a_watched_folder_undoes_no_swap_that_was_asked_for(root: Path) -> None:
    client = Client(Settings(bundles=root, watch_bundle=root / "a"), root / "a")
    clock = client.service.clock
    assert isinstance(clock, ManualClock)
    b = Bundle.load(root / "b").version

    async def live() -> None:
        async with client.app.router.lifespan_context(client.app):
            transport = httpx.ASGITransport(client.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
                assert (await http.post("/v1/bundle", json={"name": "b"})).json()["changed"]
            for _ in range(2_000):
                if client.swaps("unchanged") == 1:
                    break
                clock.advance(WATCH_S)
                await asyncio.sleep(0.005)
            assert client.swaps("unchanged") == 1
            assert client.service.bundle.version == b

    asyncio.run(live())
