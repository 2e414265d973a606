"""`tidegate profile fit` on the public measurements, from the command line to the rules."""

import sys

import pytest

from pipeline import cli
from pipeline.terminal import console
from serving.profiles import read_profile


@pytest.fixture
def fit(monkeypatch, capsys, real_trace):
    """Runs the command on the public measurements; gives exit code, stdout and stderr."""
    monkeypatch.setattr(console, "width", 200)
    path = real_trace("splitwise_perf_model.csv")

    def run(*arguments: object) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["tidegate", "profile", "fit", str(path), *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return end.value.code, out, err

    return run


LLAMA = ("--model", "llama2-70b", "--tensor-parallel", 8, "--hardware")


@pytest.mark.parametrize(
    ("hardware", "prefill", "decode"),
    [
        ("h100-80gb", "10.1 + 0.0910 * tokens │ 0.997", "30.0 + 0.3030 * batch"),
        ("a100-80gb", "-73.1 + 0.2308 * tokens │ 0.987", "44.5 + 0.3875 * batch"),
    ],
)
def test_the_published_lines_are_found(fit, hardware, prefill, decode):
    code, out, err = fit(*LLAMA, hardware)

    assert (code, err) == (0, "")
    assert prefill in out
    assert decode in out
    assert "Left out" not in out


def test_the_profile_is_written_for_the_rules(fit, tmp_path):
    code, out, _ = fit(*LLAMA, "h100-80gb", "--kv-blocks", 83_500, "--out", tmp_path / "profile.yaml")
    profile = read_profile(tmp_path / "profile.yaml")

    assert code == 0
    assert "Capacity: 1,336,000 tokens" in out
    assert (profile.name, profile.kv_blocks) == ("llama2-70b on 8 h100-80gb", 83_500)
    assert profile.prefill_s(8_000) == pytest.approx(0.738, abs=1e-3)


def test_runs_that_did_not_do_their_work_are_left_out_and_told(fit):
    _, out, _ = fit("--model", "llama2-70b", "--tensor-parallel", 2, "--hardware", "h100-80gb")

    assert "Left out: 5 rows, three times or a third of what the others say" in out
    assert "36.8 + 0.4538 * batch" in out


def test_several_engines_are_listed_and_room_is_asked_for(fit, tmp_path):
    code, _, err = fit("--hardware", "h100-80gb")
    assert code == 2
    assert "--hardware h100-80gb fits 4 engines" in err

    code, _, err = fit(*LLAMA, "h100-80gb", "--out", tmp_path / "profile.yaml")
    assert code == 2
    assert "--out needs --kv-blocks" in err
