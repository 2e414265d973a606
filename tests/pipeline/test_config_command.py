import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline import cli
from pipeline.terminal import console

Command = Callable[..., tuple[object, str, str]]
EXAMPLE = Path(__file__).parents[2] / "deploy" / "tidegate.example.yaml"


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `tidegate config` in this process; gives exit code, stdout and stderr."""
    monkeypatch.setattr(console, "width", 160)

    def run(*arguments: object) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["tidegate", "config", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return end.value.code, out, err

    return run


def test_check_accepts_the_example(config: Command) -> None:
    assert config("check", EXAMPLE) == (0, f"{EXAMPLE} is right.\n", "")


def test_check_tells_all_that_is_wrong_and_exits_with_2(config: Command, tmp_path: Path) -> None:
    path = tmp_path / "tidegate.yaml"
    path.write_text("backpressure: {alpha: 0.5}\nengine: {queue: 5}\npremium_multiplier: 1.2\n")

    code, out, err = config("check", path)

    assert (code, out) == (2, "")
    head, *faults = err.splitlines()
    assert head == f"tidegate: {path} has 3 faults:"
    assert [fault.split(": ")[0] for fault in faults] == ["  line 1", "  line 2", "  line 3"]


def test_show_prints_a_file_that_check_accepts(config: Command, tmp_path: Path) -> None:
    code, out, err = config("show", EXAMPLE)
    assert (code, err) == (0, "")
    assert "  alpha: 0.4\n" in out
    assert "  max_flows: 50000  # default\n" in out

    again = tmp_path / "again.yaml"
    again.write_text(out)
    assert config("check", again)[0] == 0


def test_explain_tells_what_a_key_does(config: Command) -> None:
    code, out, err = config("explain", "reservations.lease_s")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "reservations.lease_s: How long a reservation lives without settlement or renewal.",
        "  unit: s",
        "  default: 120.0",
        "  range: over 0",
        "  sets: Rules.lease_s",
    ]


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("alpha", "backpressure.alpha"),
        ("priority_queues.2.sla_ms", "priority_queues.sla_ms"),
        ("tenants.by_name.acme.hourly.tokens", "tenants.by_name.NAME.hourly.tokens"),
    ],
)
def test_explain_takes_last_names_and_places_of_a_file(config: Command, key: str, found: str) -> None:
    assert config("explain", key)[1].startswith(f"{found}: ")


def test_explain_of_a_section_tells_all_of_it(config: Command) -> None:
    out = config("explain", "kv_headroom")[1]
    assert all(f"kv_headroom.{name} " in out for name in ("floor", "shrink", "recover_per_s", "silence_s"))
    assert "backpressure" not in out


def test_explain_without_a_key_tells_every_section(config: Command) -> None:
    out = config("explain")[1]
    assert all(f"\n {name} " in out for name in ("telemetry", "tenants.by_name", "cache_eviction", "waiting"))


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        ("backpressure.alhpa", "the nearest one is 'backpressure.alpha'"),
        ("lease", "the nearest one is 'reservations.lease_s'"),
        ("hpa_metrics", "hpa_metrics isn't taken: Tidegate starts and stops no replicas"),
    ],
)
def test_explain_of_what_there_is_not_is_a_sentence(config: Command, key: str, sentence: str) -> None:
    code, out, err = config("explain", key)
    assert (code, out) == (2, "")
    assert sentence in err
