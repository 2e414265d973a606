import pytest

from pipeline.play.player import Seen
from pipeline.play.score import frame, lateness_s, score

TARGETS_S = {"premium": 0.2, "standard": 0.8, "batch": 5.0}


def served(lane: str, at_s: float, ttft_s: float, **told: int) -> Seen:
    return Seen(lane, at_s, at_s, at_s + ttft_s, at_s + 1.0, tries=1, end="served", **told)


CALLS = frame(
    [
        served("premium", 0.0, 0.1, output_tokens=5),
        served("premium", 1.0, 0.3, output_tokens=7),
        Seen("batch", 2.0, 2.0, ended_s=3.0, tries=3, refusals=3, end="refused"),
        Seen("batch", 10.0, 10.5, 11.0, 12.0, tries=1, end="failed"),
    ]
)


def test_goodput_counts_what_was_served_within_its_lanes_target():
    told = score(CALLS, TARGETS_S)
    assert told["lane"].to_list() == ["premium", "batch", "all"]
    premium, batch, everything = told.rows(named=True)
    assert (premium["offered"], premium["served"], premium["good"]) == (2, 2, 1)
    assert (premium["goodput_per_s"], premium["good_share"]) == (0.1, 0.5)
    assert premium["ttft_p50_s"] == pytest.approx(0.2)
    assert (batch["refused"], batch["failed"], batch["answers_429"], batch["retries"]) == (1, 1, 3, 2)
    assert batch["ttft_p50_s"] is None  # one that failed midway has no time to first token that counts
    assert (everything["offered"], everything["good"], everything["output_tokens"]) == (4, 1, 12)


def test_times_are_those_of_the_trace_at_its_own_pace():
    (premium, *_) = score(CALLS, TARGETS_S, speed=4.0).rows(named=True)
    assert (premium["good"], premium["ttft_p50_s"]) == (0, pytest.approx(0.8))
    (premium, *_) = score(CALLS, TARGETS_S, speed=0.5).rows(named=True)
    assert (premium["good"], premium["goodput_per_s"]) == (2, pytest.approx(0.4))


def test_the_players_own_lateness_is_told():
    assert lateness_s(CALLS) == pytest.approx(0.5, abs=0.02)
