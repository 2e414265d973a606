import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from serving.clock import ManualClock
from serving.http.key_ring import KeyRing
from serving.http.keys import read_keys

OLD, NEW, THIRD = "old-" + "a" * 40, "new-" + "b" * 40, "third-" + "c" * 40


class Scene:
    """A ring that watches a file; its polls follow one another at once."""

    def __init__(self, path: Path) -> None:
        write(path, f"edge admit {OLD}\n")
        self.path = path
        self.registry = CollectorRegistry()
        self.ring = KeyRing(read_keys(path, {}), path, ManualClock(), self.registry)
        self.polls = 0

    async def sleep(self, _: float) -> None:
        self.polls += 1
        await asyncio.sleep(0)

    async def polled(self, times: int = 3) -> None:
        seen = self.polls
        while self.polls < seen + times:
            await asyncio.sleep(0.001)

    def gauges(self) -> tuple[float | None, float | None]:
        value = self.registry.get_sample_value
        return value("tidegate_keys"), value("tidegate_key_file_refused")


def write(path: Path, text: str, mode: int = 0o600) -> None:
    """Put a file in place at once, as whoever rotates keys should."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.chmod(mode)
    new.replace(path)


def watched(path: Path, test: Callable[[Scene], object]) -> Scene:
    async def run() -> Scene:
        scene = Scene(path)
        scene.ring._clock = scene  # type: ignore[assignment]
        watch = asyncio.create_task(scene.ring.watch())
        await scene.polled()
        await test(scene)  # type: ignore[misc]
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch
        return scene

    return asyncio.run(run())


def names(scene: Scene) -> list[str]:
    return [key.name for key in scene.ring.keys]


def test_old_and_new_keys_overlap_for_as_long_as_the_file_has_both(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def rotate(scene: Scene) -> None:
        assert names(scene) == ["edge"]
        write(scene.path, f"edge admit {OLD}\nedge admit {NEW}\n")
        await scene.polled()
        assert names(scene) == ["edge", "edge"]
        write(scene.path, f"edge admit {NEW}\ndash read {THIRD}\n")
        await scene.polled()
        assert names(scene) == ["edge", "dash"]
        assert scene.gauges() == (2.0, 0.0)

    with caplog.at_level(logging.INFO):
        watched(tmp_path / "keys", rotate)
    told = [record.fields for record in caplog.records if record.msg == "keys changed"]  # type: ignore[attr-defined]
    assert told == [
        {"keys": 2, "added": ["edge"], "dropped": []},
        {"keys": 2, "added": ["dash"], "dropped": ["edge"]},
    ]
    assert not any(key in str([record.__dict__ for record in caplog.records]) for key in (OLD, NEW, THIRD))


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("", 0o600),
        ("# all gone\n", 0o600),
        (f"edge admit {NEW[:20]}\n", 0o600),
        (f"edge {NEW}\n", 0o600),
        (f"edge admit {NEW}\n", 0o644),
    ],
    ids=["empty", "no key", "cut short", "no scope", "readable by others"],
)
def test_a_broken_file_leaves_the_keys_from_before_until_it_is_mended(
    tmp_path: Path, text: str, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def break_and_mend(scene: Scene) -> None:
        kept = scene.ring.keys
        write(scene.path, text, mode)
        await scene.polled(6)
        assert scene.ring.keys == kept
        assert scene.gauges() == (1.0, 1.0)
        write(scene.path, f"new admit {NEW}\n")
        await scene.polled()
        assert names(scene) == ["new"]
        assert scene.gauges() == (1.0, 0.0)

    watched(tmp_path / "keys", break_and_mend)
    refused = [record for record in caplog.records if "refused" in record.msg]
    assert len(refused) == 1  # told once for each change, not at each look
    assert NEW not in str(refused[0].__dict__)


def test_a_file_that_is_gone_leaves_the_keys_and_a_mode_that_is_mended_is_noticed(tmp_path: Path) -> None:
    async def lose_and_find(scene: Scene) -> None:
        scene.path.unlink()
        await scene.polled()
        assert (names(scene), scene.gauges()) == (["edge"], (1.0, 1.0))
        write(scene.path, f"new admit {NEW}\n", 0o644)
        await scene.polled()
        assert names(scene) == ["edge"]
        scene.path.chmod(0o600)
        await scene.polled()
        assert (names(scene), scene.gauges()) == (["new"], (1.0, 0.0))

    watched(tmp_path / "keys", lose_and_find)


def test_a_link_that_is_turned_to_another_file_counts_as_a_change(tmp_path: Path) -> None:
    """Kubernetes mounts secrets so."""

    async def turn(scene: Scene) -> None:
        write(scene.path.with_name("second"), f"second admit {NEW}\n")
        (scene.path.parent / "link").symlink_to("second")
        os.replace(scene.path.parent / "link", scene.path)
        await scene.polled()
        assert names(scene) == ["second"]

    watched(tmp_path / "keys", turn)


def test_without_a_file_nothing_is_watched() -> None:
    asyncio.run(KeyRing((), None, ManualClock(), CollectorRegistry()).watch())
