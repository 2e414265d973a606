from pathlib import Path

import polars as pl
import pytest

from data.errors import InputError
from data.readers import load_trace
from data.workload import read_truth
from pipeline.suite import Case, Sizes, chosen, suite

TINY = Sizes(seeds=2, days=0.02, requests_per_s=1.0, noise_days=0.02, noise_per_s=1.0)


def case(name: str, traces: Path | None = None) -> Case:
    return next(one for one in suite(traces, TINY) if one.name == name)


def test_the_suite_has_both_families_noise_and_silence() -> None:
    names = [one.name for one in suite(None)]
    assert names == [
        *(f"{kind}-{seed}" for kind in ("synthetic", "drift") for seed in range(5)),
        "poisson",
        "zeros",
    ]
    assert len({one.recipe for one in suite(None)}) == len(names)


def test_made_cases_can_be_read_and_synthetic_ones_know_their_causes(tmp_path: Path) -> None:
    for one in suite(None, TINY):
        folder = tmp_path / one.name
        folder.mkdir()
        path = one.make(folder)
        trace = load_trace(path)
        assert trace.requests.height > 500
        assert not trace.quarantined.height
        assert (read_truth(path) is not None) == (one.expected == "skill")
        work = trace.requests.select((pl.col("prompt_tokens") + pl.col("output_tokens")).sum()).item()
        assert (work == 0) == (one.name == "zeros")


def test_a_folder_gives_its_traces_of_requests_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "chat.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
    )
    (tmp_path / "README.md").write_text("# Traces\n")
    (tmp_path / "speed.csv").write_text("model,tokens_per_s\nlarge,200\n")
    found = [one for one in suite(tmp_path, TINY) if one.expected == "harmless"]
    assert [one.name for one in found] == ["chat"]
    assert found[0].make(tmp_path) == tmp_path / "chat.csv"


def test_only_takes_a_name_or_what_several_names_start_with() -> None:
    cases = suite(None, TINY)
    assert [one.name for one in chosen(cases, ["drift", "zeros"])] == ["drift-0", "drift-1", "zeros"]
    assert [one.name for one in chosen(cases, ["synthetic-1"])] == ["synthetic-1"]
    assert chosen(cases, []) == cases
    with pytest.raises(InputError, match=r"--only must be one of synthetic-0, .*; got 'drift-'"):
        chosen(cases, ["drift-"])
