"""A simulation as people read it: sentences, and a table for the terminal."""

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Column, Table
from rich.text import Text

UNKNOWN = "–"


def arm(simulation: Mapping[str, Any], name: str) -> dict[str, Mapping[str, Any]]:
    """What an arm's lanes got, by lane, `all` last."""
    found = next(one for one in simulation["arms"] if one["name"] == name)
    return {lane["lane"]: lane for lane in found["lanes"]}


def sentences(simulation: Mapping[str, Any]) -> list[str]:
    """What the play shows of the forecast, what an oracle brings, and what it was played on."""
    return [_shown(simulation), _oracle(simulation), *_held_up(simulation), _fleet(simulation)]


def table(simulation: Mapping[str, Any]) -> Table:
    """Lanes for the terminal: good calls with rules alone, and how forecast and oracle differ from them."""
    alone, forecast, oracle = (arm(simulation, name) for name in ("rules", "forecast", "oracle"))
    shown = Table(
        Column("lane", no_wrap=True, min_width=8),
        title="What users get",
        caption="good: first token within the lane's target; differences in points, 90 % intervals",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),  # fits a terminal of 80
    )
    for name in ("\ncalls", "good, %\nalone", "forecast\nless rules", "oracle\nless rules"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("falsely\nrestrained", justify="right", no_wrap=True)
    for name, lane in alone.items():
        cells = (
            name,
            f"{lane['offered']:,}",
            f"{100 * lane['good_share']:.2f}",
            *(
                f"{points(one[name]['difference']['good_share']['value'])}\n"
                f"{points_range(one[name]['difference']['good_share'])}"
                for one in (forecast, oracle)
            ),
            f"{forecast[name]['falsely_restrained']:,}",
        )
        shown.add_row(*map(Text, cells), style="bold" if name == "all" else None)
    return shown


def points(share: float | None) -> str:
    """A difference of shares in percentage points.

    >>> points(0.0042), points(-0.00001), points(None)
    ('+0.42', '+0.00', '–')
    """
    return UNKNOWN if share is None else f"{round(100 * share, 2) + 0.0:+.2f}"


def points_range(estimate: Mapping[str, float | None]) -> str:
    """The 90 % interval of a difference in percentage points, in brackets; empty where it is unknown.

    >>> points_range({"value": 0.004, "low": -0.001, "high": 0.009})
    '[-0.10, +0.90]'
    """
    low, high = estimate["low"], estimate["high"]
    return "" if low is None or high is None else f"[{points(low)}, {points(high)}]"


def _shown(simulation: Mapping[str, Any]) -> str:
    forecast = arm(simulation, "forecast")["all"]
    share = forecast["difference"]["good_share"]
    low, high = share["low"], share["high"]
    told = f"{points(share['value'])} points {points_range(share)}".rstrip()
    if low is None or high is None:
        claim = "whether that is more than chance can't be told from under five hours"
    elif low > 0:
        claim = "a gain is shown, for the interval lies above zero"
    elif high < 0:
        claim = "a loss is shown, for the interval lies below zero"
    else:
        claim = "no difference is shown, for the interval holds zero"
    return (
        f"Of {forecast['offered']:,} calls, the share that is good differs by {told} between forecast and "
        f"rules alone: {claim}." + _losers(simulation)
    )


def _losers(simulation: Mapping[str, Any]) -> str:
    """Lanes that pay for it, however all of them together come out."""
    found = [
        name
        for name, lane in arm(simulation, "forecast").items()
        if name != "all" and (lane["difference"]["good_share"]["high"] or 0.0) < 0
    ]
    return f" In {' and '.join(found)} a loss is shown." if found else ""


def _oracle(simulation: Mapping[str, Any]) -> str:
    share = arm(simulation, "oracle")["all"]["difference"]["good_share"]
    return (
        "An oracle, which tightens fully for the last 60 s before each burst and at no other time, makes "
        f"{points(share['value'])} points {points_range(share)}".rstrip()
        + ": what perfect foresight of the onsets is worth with these rules on this fleet."
    )


def _held_up(simulation: Mapping[str, Any]) -> list[str]:
    """Who paid for it: calls that the forecast had refused in calm."""
    lane = arm(simulation, "forecast")["all"]
    if not lane["restrained"]:
        return ["The forecast had no call refused."]
    return [
        f"The forecast alone had {lane['restrained']:,} calls refused at least once, "
        f"{lane['falsely_restrained']:,} of them in calm."
    ]


def _fleet(simulation: Mapping[str, Any]) -> str:
    fleet, unknown = simulation["fleet"], simulation["unknown_output"]
    left_out = f"; {unknown:,} requests of unknown length are left out" if unknown else ""
    many = "1 replica" if fleet["replicas"] == 1 else f"{fleet['replicas']:,} replicas"
    return (
        f"Played on {many} of {fleet['engine']}, offered {100 * fleet['load']:.0f} % of what they can do on "
        f"average, with KV room for {fleet['kv_tokens']:,} tokens{left_out}."
    )
