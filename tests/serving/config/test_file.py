from pathlib import Path

import pytest

from data.errors import InputError
from serving.config.file import File, read


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tidegate.yaml"


def test_everything_has_a_default(path: Path) -> None:
    path.write_text("")
    assert read(path) == File()


def test_a_whole_file(path: Path) -> None:
    path.write_text(
        """
        telemetry:
          lake: postgresql://tide@db/telemetry
          mappings:
            ours: {columns: {arrived_at: ts, prompt_tokens: in}, time_unit: ms, constants: {lane: batch}}
          scrape:
            - {name: pool-a, url: "http://10.0.0.7:8000/metrics", interval_s: 2, timeout_s: 0.5}
          logs:
            - {source: edge, path: /var/log/envoy/access.log, form: envoy}
        """
    )
    told = read(path).telemetry
    assert told.lake == "postgresql://tide@db/telemetry"
    assert told.mappings["ours"].columns == {"arrived_at": "ts", "prompt_tokens": "in"}
    assert told.mappings["ours"].time_zone == "UTC"
    assert (told.scrape[0].interval_s, told.scrape[0].timeout_s) == (2.0, 0.5)
    assert told.logs[0].path == Path("/var/log/envoy/access.log")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("telemetry: {lak: x}", "telemetry.lak is not a known key; the nearest one is 'telemetry.lake'"),
        ("telemtry: {}", "telemtry is not a known key; the nearest one is 'telemetry'"),
        (
            "telemetry: {scrape: [{name: a, url: http://x, interval: 1}]}",
            "the nearest one is 'telemetry.scrape.0.interval_s'",
        ),
        ("telemetry: {mappings: {m: {column: {}}}}", "the nearest one is 'telemetry.mappings.m.columns'"),
        ("telemetry: {scrape: [{name: a, url: http://x, interval_s: 0}]}", "greater than 0; got 0"),
        ("telemetry: {scrape: [{name: a b, url: http://x}]}", "telemetry.scrape.0.name"),
        ("telemetry: {scrape: [{name: a, url: file:///etc/passwd}]}", "telemetry.scrape.0.url"),
        ("telemetry: {logs: [{source: a, path: b, form: apache}]}", "'envoy' or 'litellm'; got 'apache'"),
        ("[1]", "must hold keys and values; got list"),
        ("a: [", "is not YAML"),
        ("a: !!python/object:os.system {}", "is not YAML"),
    ],
)
def test_what_is_wrong_is_named(path: Path, text: str, sentence: str) -> None:
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read(path)
    assert sentence in str(error.value)
    assert str(path) in str(error.value)


def test_a_missing_file(path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read(path)
