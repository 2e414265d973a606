import io
from dataclasses import replace

import pytest
from rich.console import Console

from pipeline.gateway_demo.live import Look, Outcome
from pipeline.gateway_demo.tables import gates_table, lanes_table, peak, spark, sparklines, strain, verdict
from pipeline.play.player import Seen
from pipeline.play.score import frame

TARGETS_S = {"premium": 0.2, "standard": 0.8, "batch": 5.0}


def seen(lane: str, ttft_s: float | None, refusals: int = 0) -> Seen:
    served = ttft_s is not None
    tries = refusals + served
    first_token_s = None if ttft_s is None else 1.0 + ttft_s
    return Seen(lane, 1.0, 1.0, first_token_s, 9.0, 7, tries, refusals, "served" if served else "refused")


def outcome(name: str, *calls: Seen, looks: tuple[Look, ...] = ()) -> Outcome:
    refused = {("batch", "lane_budget"): 12, ("standard", "backpressure"): 3} if name == "forecast" else {}
    return Outcome(name, frame(calls), list(looks), refused, 4, 5, None, "active, forecasts may tighten")


RULES = outcome("rules", seen("premium", 0.1), seen("batch", 9.0))
FORECAST = outcome("forecast", seen("premium", 0.1), seen("batch", None, 3))


def printed(table: object, width: int = 80) -> list[list[str]]:
    text = io.StringIO()
    Console(file=text, width=width).print(table)
    assert "…" not in text.getvalue()
    return [line.split() for line in text.getvalue().splitlines()]


def test_lanes_stand_side_by_side_against_their_targets_in_80_columns() -> None:
    rows = printed(lanes_table([RULES, FORECAST], TARGETS_S))
    assert ["premium", "0.2", "rules", "1", "1", "1.00", "0.10", "0.10", "0", "0", "0"] in rows
    assert ["batch", "5", "rules", "1", "0", "0.00", "9.00*", "9.00*", "0", "0", "0"] in rows
    assert ["forecast", "1", "0", "0.00", "–", "–", "3", "2", "1"] in rows
    assert not any("standard" in row for row in rows)


def test_gates_tell_refusals_by_lane_and_reason_and_what_is_unknown() -> None:
    rows = printed(gates_table([RULES, FORECAST]))
    assert ["429", "standard,", "backpressure", "0", "3"] in rows
    assert ["429", "batch,", "lane_budget", "0", "12"] in rows
    assert ["preemptions", "5", "5"] in rows
    assert ["let", "in", "unchecked", "–", "–"] in rows
    assert ["engine's", "queue,", "peak", "–", "–"] in rows


def test_a_look_that_failed_is_no_queue_of_zero() -> None:
    assert peak([Look(0.0), Look(1.0)]) is None
    assert peak([Look(0.0), Look(1.0, waiting=3.0)]) == 3.0
    missed = outcome("rules", seen("batch", 1.0), looks=(Look(0.0), Look(1.0, 1.0, 1.0, 0.5, True)))
    assert ["looks", "missed", "1"] in printed(gates_table([missed]))


def test_sparklines_show_when_the_gate_moved_and_where_the_burst_began() -> None:
    looks = (
        Look(0.0, 0.0, 0.0, 0.0, False),
        Look(31.0, 8.0, 1.0, 1.0, True),
        Look(90.0, 9.0, 1.0, 1.0, True),
    )
    told = sparklines([outcome("rules", looks=looks[:1]), outcome("forecast", looks=looks)], 60, 45.0)
    assert told[1].startswith("tightening forecast ▁")
    assert told[1][20 + 31] == "█"
    assert told[-1].index("^") == 20 + 45
    assert spark([(5.0, 3.0)], 10, 0.0, width=2) == "·█"


@pytest.mark.parametrize(
    ("first", "last", "said"),
    [
        (RULES, FORECAST, "forecast had as many good calls as rules (+0.0%): 1 against 1 of 2."),
        (
            RULES,
            outcome("forecast", seen("batch", 9.0)),
            "1 fewer good calls than rules (-100.0%): 0 against 1",
        ),
        (outcome("rules", seen("batch", 9.0)), FORECAST, "1 more good calls than rules: 1 against 0 of 1."),
    ],
)
def test_the_verdict_holds_whatever_happened(first: Outcome, last: Outcome, said: str) -> None:
    assert said in verdict([first, last], TARGETS_S)


def test_a_machine_that_could_not_keep_up_is_said() -> None:
    assert strain([RULES, FORECAST]) is None
    late = seen("batch", 1.0)
    late.sent_s = late.at_s + 3.0
    assert "up to 3.0 s late" in str(strain([RULES, outcome("forecast", late)]))
    assert "3 of 6 went in unchecked" in str(strain([RULES, replace(FORECAST, unchecked=3)]))


def test_without_an_alarm_a_difference_is_called_chance() -> None:
    assert "the difference is chance" in verdict([RULES, FORECAST], TARGETS_S)
    tightened = replace(FORECAST, looks=[Look(1.0, 0.0, 0.0, 0.3, True)])
    assert "as much may be chance" in verdict([RULES, tightened], TARGETS_S)
