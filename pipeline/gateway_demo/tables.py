"""What the stacks did, side by side."""

from collections.abc import Mapping, Sequence

import polars as pl
from rich import box
from rich.table import Table

from data.schema import LANES
from pipeline.gateway_demo.live import Look, Outcome
from pipeline.play.score import lateness_s, score

BARS = "▁▂▃▄▅▆▇█"
UNKNOWN = "·"
WIDTH = 60
LATE_S = 0.1
UNCHECKED_SHARE = 0.01
"""Over either, the machine was too slow for its own play, and the numbers are its more than the gates'."""


def lanes_table(outcomes: Sequence[Outcome], targets_s: Mapping[str, float]) -> Table:
    """A row for each lane and stack: what its clients saw. Fits 80 columns."""
    table = Table(
        title="What clients saw",
        caption="good: first token within the lane's target, waits for retries included; * over the target",
        box=box.SIMPLE_HEAD,
        padding=(0, 0),
    )
    for column in ("lane", "target s", "decides"):
        table.add_column(column, no_wrap=True)
    for column in ("calls", "good", "good/s", "TTFT p50", "p95 s", "429s", "retries", "lost"):
        table.add_column(column, justify="right", no_wrap=True)
    scores = {outcome.name: score(outcome.calls, targets_s) for outcome in outcomes}
    for lane in (*LANES, "all"):
        target_s = targets_s.get(lane)
        for place, (name, numbers) in enumerate(scores.items()):
            rows = numbers.filter(pl.col("lane") == lane).to_dicts()
            if not rows:
                continue
            row = rows[0]
            table.add_row(
                lane if not place else "",
                "" if place or target_s is None else f"{target_s:g}",
                name,
                f"{row['offered']}",
                f"{row['good']}",
                f"{row['goodput_per_s']:.2f}",
                _seconds(row["ttft_p50_s"], target_s),
                _seconds(row["ttft_p95_s"], target_s),
                f"{row['answers_429']}",
                f"{row['retries']}",
                f"{row['offered'] - row['served']}",
                end_section=place == len(scores) - 1,
            )
    return table


def _seconds(value: float | None, target_s: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}{'*' if target_s is not None and value > target_s else ' '}"


def gates_table(outcomes: Sequence[Outcome]) -> Table:
    """A column for each stack: 429s by lane and reason, and what its engine went through."""
    table = Table(title="What gates and engines did", box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("", no_wrap=True)
    for outcome in outcomes:
        table.add_column(outcome.name, justify="right")
    causes = sorted(
        {cause for outcome in outcomes for cause in outcome.refused},
        key=lambda cause: (LANES.index(cause[0]), cause[1]),
    )
    for lane, reason in causes:
        counts = [outcome.refused.get((lane, reason), 0) for outcome in outcomes]
        table.add_row(f"429 {lane}, {reason}", *map(str, counts))
    rows: dict[str, list[float | int | None]] = {
        "engine's queue, peak": [peak(outcome.looks) for outcome in outcomes],
        "preemptions": [outcome.preemptions for outcome in outcomes],
        "aborts": [outcome.aborts for outcome in outcomes],
        "let in unchecked": [outcome.unchecked for outcome in outcomes],
        "looks missed": [sum(look.alarm is None for look in outcome.looks) for outcome in outcomes],
        "calls late, p99 ms": [round(lateness_s(outcome.calls) * 1e3) for outcome in outcomes],
    }
    for name, values in rows.items():
        table.add_row(name, *("–" if value is None else f"{value:g}" for value in values))
    return table


def peak(looks: Sequence[Look]) -> float | None:
    """Most requests seen in the engine's queue; None where nobody saw it."""
    return max((look.waiting for look in looks if look.waiting is not None), default=None)


def sparklines(outcomes: Sequence[Outcome], seconds: int, onset_s: float) -> list[str]:
    """Tightening and the engine's queue of each stack over the window, and where the burst began."""
    lines = []
    highest = max((peak(outcome.looks) or 0.0 for outcome in outcomes), default=0.0)
    for outcome in outcomes:
        tightening = [(look.at_s, look.tightening) for look in outcome.looks]
        lines.append(f"{'tightening':<11}{outcome.name:<9}{spark(tightening, seconds, 1.0)}")
    for outcome in outcomes:
        waiting = [(look.at_s, look.waiting) for look in outcome.looks]
        lines.append(f"{'queue':<11}{outcome.name:<9}{spark(waiting, seconds, highest)}")
    return [*lines, " " * (20 + min(WIDTH - 1, int(onset_s / seconds * WIDTH))) + "^ onset"]


def spark(
    points: Sequence[tuple[float, float | None]], seconds: float, full: float, width: int = WIDTH
) -> str:
    """The highest value in each part of a span, `full` as a whole bar; a dot where nothing is known.

    >>> spark([(0.0, 0.0), (1.0, 0.4), (2.0, 1.0), (9.0, None)], seconds=10, full=1.0, width=5)
    '▄█···'
    """
    parts: list[list[float]] = [[] for _ in range(width)]
    for at_s, value in points:
        if value is not None and 0 <= at_s < seconds:
            parts[int(at_s / seconds * width)].append(value)
    top = len(BARS) - 1
    return "".join(
        BARS[min(top, round(max(part) / (full or 1.0) * top))] if part else UNKNOWN for part in parts
    )


def strain(outcomes: Sequence[Outcome]) -> str | None:
    """A sentence where the machine could not keep up with the play, so that the numbers say little."""
    late_s = max(lateness_s(outcome.calls) for outcome in outcomes)
    checks = sum(int(outcome.calls["tries"].sum()) for outcome in outcomes)
    unchecked = sum(outcome.unchecked or 0 for outcome in outcomes)
    if late_s <= LATE_S and unchecked <= UNCHECKED_SHARE * checks:
        return None
    return (
        f"This machine could not keep up: calls went out up to {late_s:.1f} s late (99 % of them), and "
        f"{unchecked} of {checks} went in unchecked, as no answer came in 0.2 s. They tell of the machine "
        "more than the gates; run it where two cores are free."
    )


def verdict(outcomes: Sequence[Outcome], targets_s: Mapping[str, float]) -> str:
    """How the last stack compares with the first, in a sentence that holds whatever happened."""
    first, last = (outcomes[0], outcomes[-1])
    good = [
        int(score(outcome.calls, targets_s).filter(pl.col("lane") == "all")["good"].item())
        for outcome in (first, last)
    ]
    difference = good[1] - good[0]
    share = f" ({difference / good[0]:+.1%})" if good[0] else ""
    told = (
        "as many good calls as"
        if not difference
        else f"{abs(difference)} {'more' if difference > 0 else 'fewer'} good calls than"
    )
    return (
        f"{last.name} had {told} {first.name}{share}: {good[1]} against {good[0]} of {first.calls.height}. "
        + _chance(outcomes)
    )


def _chance(outcomes: Sequence[Outcome]) -> str:
    """What of a difference is chance."""
    if not any(look.tightening for outcome in outcomes for look in outcome.looks):
        return "No alarm came during the play: both decided by the same rules, and the difference is chance."
    return "Two stacks that decided alike differed by 6 % in a play of 240 s: as much may be chance."
