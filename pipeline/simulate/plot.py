"""The plot of a simulation: how many more calls are good than with rules alone, lane by lane."""

from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pipeline.plots import FORECASTER, INK, MUTED, ORACLE, PAGE, RULE, STYLE, as_svg
from pipeline.simulate.report import arm, points

ARMS = (("forecast", FORECASTER, -0.16), ("oracle", ORACLE, 0.16))


def users_plot(simulation: Mapping[str, Any]) -> str:
    """Differences from rules alone in percentage points, a dot and a 90 % interval for each lane and arm.

    Args:
        simulation: as in report.json. Where nothing was there to count, no dot is drawn.

    """
    lanes = list(arm(simulation, "rules"))
    height_in = 0.95 + 0.55 * len(lanes)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, height_in))
        axes = figure.add_axes((0.09, 0.52 / height_in, 0.89, 1.0 - 0.82 / height_in))
        axes.axvline(0, color=INK, lw=1, zorder=1)
        for name, color, aside in ARMS:
            found = arm(simulation, name)
            for place, lane in enumerate(lanes):
                share = found[lane]["difference"]["good_share"]
                _draw(axes, share, place + aside, color)
        for place, (name, color, _) in enumerate(ARMS):
            axes.text(0.13 * place, 1.03, f"● {name}", color=color, transform=axes.transAxes, va="bottom")
        axes.set_yticks(range(len(lanes)), lanes)
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.set_ylim(len(lanes) - 0.5, -0.5)
        if len(lanes) > 1:
            axes.axhline(len(lanes) - 1.5, color=RULE, lw=0.6)
        axes.margins(x=0.12)
        axes.xaxis.set_major_locator(MaxNLocator(9, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:+g}" if abs(x) > 1e-9 else "0")
        axes.set_xlabel("Good calls less those with rules alone, percentage points", color=MUTED)
        axes.grid(axis="x", color=RULE, lw=0.6)
        axes.set_axisbelow(True)
        axes.spines["left"].set_visible(False)
        return as_svg(figure, "users", "Good calls less those with rules alone, by lane, with 90 % intervals")


def _draw(axes: Any, share: Mapping[str, float | None], place: float, color: str) -> None:
    value, low, high = share["value"], share["low"], share["high"]
    if value is None:
        return
    if low is not None and high is not None:
        axes.plot([100 * low, 100 * high], [place, place], color=color, lw=2, solid_capstyle="round")
    axes.plot(100 * value, place, "o", color=color, ms=7, mec=PAGE, mew=1, zorder=4)
    edge = value if high is None else max(value, high)
    axes.annotate(
        points(value), (100 * edge, place), (6, 0), textcoords="offset points", va="center", color=color
    )
