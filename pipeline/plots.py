"""Plots of the report as inline SVG: the same numbers give the same bytes, and colours follow the page."""

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from textwrap import shorten
from typing import Any

import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter
from numpy.typing import ArrayLike, NDArray

from data.errors import InputError
from features.ticks import HORIZON_S, TICK_S

PALETTE = {
    # role: (on a light page, on a dark page); after Okabe and Ito, whose colours the colour-blind tell apart.
    "ink": ("#1c2430", "#e6e9ee"),
    "muted": ("#6b7480", "#99a3b0"),
    "rule": ("#d9dee5", "#39424e"),
    "load": ("#9fb0c3", "#5b6f86"),
    "forecaster": ("#0072b2", "#56b4e9"),
    "rival": ("#d55e00", "#f0883e"),
    "oracle": ("#009e73", "#2fc49a"),
    "band": ("#f2ead2", "#3a3524"),
    "page": ("#ffffff", "#151a21"),
}
"""Colours by role. SVGs name the role as a CSS variable, so a page can set both sides."""

INK, MUTED, RULE, LOAD, FORECASTER, RIVAL, ORACLE, BAND, PAGE = (light for light, _ in PALETTE.values())
FONT = "DejaVu Sans"
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tidegate",
    "font.family": FONT,
    "font.size": 9,
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": RULE,
    "axes.labelcolor": MUTED,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "path.simplify": False,
}
COLUMNS = 900
"""Pixel columns that a load curve is drawn in."""
NAME_LETTERS = 40
"""Longer names are cut in a plot."""
ZOOM_S = 7200
LONGEST_LEAD_S = 120
"""Longer leads share the last bar."""


def load_plot(ticks: pl.DataFrame, onsets: ArrayLike) -> str:
    """Load and baseline over time, above the onsets and the alarms.

    A span of more than 3 h is drawn twice: whole, and its two hours with the most onsets.

    Args:
        ticks: a row a tick with columns t_s, load and baseline (tokens/s, null or NaN where unknown), and
            alarm (bool, or 0 and 1).
        onsets: seconds, any order.

    Raises:
        InputError: when a column is missing or there is no tick.

    """
    wanted = ("t_s", "load", "baseline", "alarm")
    missing = [name for name in wanted if name not in ticks.columns]
    if missing or ticks.is_empty():
        raise InputError(f"Ticks must hold rows with the columns {', '.join(wanted)}; missing: {missing}.")
    t_s = ticks["t_s"].to_numpy()
    x = np.unique(np.asarray(onsets, dtype=np.int64))
    x = x[(x >= t_s[0]) & (x <= t_s[-1] + TICK_S)]
    whole = (float(t_s[0]), float(t_s[-1] + TICK_S))
    long = whole[1] - whole[0] > 1.5 * ZOOM_S
    spans = [whole, busiest(x, whole)] if long else [whole]
    with mpl.rc_context(STYLE):
        # Places are given in fractions: a layout engine's last digits differ between runs.
        height = 1.0 / len(spans)
        figure = Figure(figsize=(10, 2.6 * len(spans)))
        for k, span in enumerate(spans, start=1):
            floor = 1.0 - k * height
            upper = figure.add_axes((0.06, floor + 0.34 * height, 0.87, 0.55 * height))
            lower = figure.add_axes((0.06, floor + 0.18 * height, 0.87, 0.12 * height), sharex=upper)
            upper.tick_params(labelbottom=False)
            inside = ticks.filter(pl.col("t_s").is_between(span[0], span[1], closed="left"))
            _draw_load(upper, lower, inside, x[(x >= span[0]) & (x <= span[1])], span, long)
            if long and span == whole:
                upper.axvspan(spans[1][0] / 3600, spans[1][1] / 3600, color=BAND, zorder=0)
                upper.set_title("Whole test span; the two hours with the most onsets are shaded", color=MUTED)
            elif long:
                upper.set_title("Its two hours with the most onsets", color=MUTED)
        return as_svg(figure, "load", "Load and baseline over time, with burst onsets and alarms")


def recall_plot(contenders: Sequence[Mapping[str, Any]], budget: float) -> str:
    """Event recall against false-alarm rate: lines are raw scores, dots what the guard made of them.

    Args:
        contenders: as in report.json; those without a curve have only their dot.
        budget: the false-alarm rate that is held.

    """
    rival = best_baseline(contenders)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 4.2))
        axes = figure.add_axes((0.06, 0.12, 0.66, 0.83))
        ends = []
        # The forecaster is drawn last, over the others.
        for one in sorted(contenders, key=lambda one: (one["kind"] == "forecaster", one is rival)):
            color, width = _look(one, one is rival)
            rate, recall = (one["scores"][name]["value"] for name in ("false_alarm_rate", "event_recall"))
            if one["curve"]:
                axes.plot(*zip(*one["curve"], strict=True), color=color, lw=width, drawstyle="steps-post")
            if rate is not None and recall is not None:
                axes.plot(
                    rate, recall, "o", color=color, ms=4 + width, mec=PAGE, mew=1, zorder=4, clip_on=False
                )
            if one["curve"] or recall is not None:
                ends.append(
                    (one["curve"][-1] if one["curve"] else (rate, recall), one["title"], color, width)
                )
        axes.axvline(budget, color=MUTED, lw=1, ls=(0, (4, 3)))
        axes.text(budget, 1.02, f" budget {budget:.0%}", color=MUTED, va="bottom")
        axes.set(xlim=(0, 0.3), ylim=(0, 1), xlabel="False-alarm rate", ylabel="Event recall")
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.grid(color=RULE, lw=0.6)
        ends.sort(key=lambda end: end[0][1])
        places = spread([end[0][1] for end in ends], gap=0.062, high=1.0)
        for ((rate, recall), title, color, width), place in zip(ends, places, strict=True):
            axes.plot([rate, 0.306], [recall, place], color=color, lw=0.5, alpha=0.6, clip_on=False)
            weight = "bold" if width > 2 else "normal"
            axes.text(0.309, place, title, color=color, va="center", weight=weight)
        return as_svg(figure, "recall", "Event recall against false-alarm rate for every contender")


def lead_plot(lead_times: ArrayLike) -> str:
    """Histogram of lead times, s, with the 30-60 s band the forecast is for; those over 120 s share a bar.

    There must be at least one.
    """
    lead_s = np.asarray(lead_times, dtype=np.float64)
    edges = np.arange(0, LONGEST_LEAD_S + 2 * TICK_S, TICK_S)
    counts, _ = np.histogram(np.minimum(lead_s, LONGEST_LEAD_S), edges)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5, 3))
        axes = figure.add_axes((0.12, 0.16, 0.84, 0.74))
        axes.axvspan(*HORIZON_S, color=BAND, zorder=0)
        axes.bar(edges[:-1], counts, width=TICK_S * 0.86, align="edge", color=FORECASTER)
        median = float(np.median(lead_s))
        axes.axvline(min(median, LONGEST_LEAD_S + TICK_S), color=INK, lw=1)
        axes.set_title(f"Median {median:.0f} s over {len(lead_s)} anticipated onsets", color=INK)
        marks = np.arange(0, LONGEST_LEAD_S + 1, 30)
        axes.set_xticks(marks, [f"{mark}" if mark < LONGEST_LEAD_S else f"≥ {mark}" for mark in marks])
        axes.set(xlabel="Lead time, s", ylabel="Onsets", xlim=(0, edges[-1]))
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        return as_svg(figure, "lead", "Histogram of lead times")


def cause_plot(rows: Sequence[Mapping[str, Any]]) -> str:
    """Recall by cause as bars, from rows of {cause, onsets, recall}, at least one."""
    with mpl.rc_context(STYLE):
        height_in = 0.6 + 0.3 * len(rows)
        figure = Figure(figsize=(10, height_in))
        names = [shorten(str(row["cause"]), NAME_LETTERS, placeholder="…") for row in rows]
        margin = 0.02 + 0.0085 * max(map(len, names))
        axes = figure.add_axes((margin, 0.5 / height_in, 0.98 - margin, 1.0 - 0.55 / height_in))
        place = np.arange(len(rows))
        recall = [0.0 if row["recall"] is None else row["recall"] for row in rows]
        axes.barh(place, recall, height=0.62, color=FORECASTER)
        for at, row, end in zip(place.tolist(), rows, recall, strict=True):
            share = "unknown" if row["recall"] is None else f"{row['recall']:.2f}"
            axes.text(end + 0.01, at, f"{share} of {row['onsets']}", va="center", color=INK)
        axes.set_yticks(place, names)
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.set(xlim=(0, 1.1), xticks=[0, 0.25, 0.5, 0.75, 1.0], xlabel="Event recall")
        axes.invert_yaxis()
        axes.spines["left"].set_visible(False)
        return as_svg(figure, "causes", "Event recall by cause")


def reliability_plot(rows: Sequence[Mapping[str, Any]]) -> str:
    """Forecast probability against observed frequency; the diagonal is a forecast that keeps its word."""
    predicted = [row["predicted"] for row in rows]
    observed = [row["observed"] for row in rows]
    top = max([*predicted, *observed, 0.1]) * 1.08
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5, 3))
        axes = figure.add_axes((0.12, 0.16, 0.84, 0.74))
        axes.plot([0, top], [0, top], color=RULE, lw=1)
        axes.plot(predicted, observed, "o-", color=FORECASTER, lw=1.2, ms=5, mec=PAGE, mew=0.8, clip_on=False)
        axes.set(xlim=(0, top), ylim=(0, top), ylabel="Observed share of ticks")
        axes.set_xlabel("Forecast probability of an onset within 60 s")
        axes.grid(color=RULE, lw=0.6)
        return as_svg(figure, "reliability", "Reliability of the forecast probability")


def best_baseline(contenders: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The baseline with the highest recall in hindsight, the strongest raw score; None where none has one."""
    known = [one for one in contenders if one["kind"] == "baseline" and one["hindsight"]]
    return max(known, key=lambda one: one["hindsight"]["recall"] or 0.0, default=None)


def busiest(onsets: NDArray[np.int64], span: tuple[float, float]) -> tuple[float, float]:
    """The two hours of a span with the most onsets, the first such; ten minutes ahead of their first onset.

    >>> busiest(np.array([10_000, 50_000, 51_000, 52_000]), (0.0, 86_400.0))
    (49400.0, 56600.0)
    """
    reach_s = ZOOM_S - 600
    counts = np.searchsorted(onsets, onsets + reach_s) - np.arange(len(onsets))
    start = float(onsets[counts.argmax()] - 600) if len(onsets) else span[0]
    start = min(max(start, span[0]), span[1] - ZOOM_S)
    return start, start + ZOOM_S


def extremes(values: NDArray[np.float64], columns: int = COLUMNS) -> tuple[NDArray[np.float64], ...]:
    """Position, lowest and highest value of each of at most ``columns`` equal runs; NaN where none is known.

    >>> position, low, high = extremes(np.array([1.0, 5.0, 2.0, 9.0, np.nan, np.nan]), columns=3)
    >>> low.tolist(), high.tolist()
    ([1.0, 2.0, nan], [5.0, 9.0, nan])
    """
    frame = pl.DataFrame({"value": values}).with_row_index("row")
    width = -(-len(values) // columns)
    value = pl.col("value").fill_nan(None)
    runs = frame.group_by(pl.col("row") // width, maintain_order=True).agg(
        low=value.min().fill_null(np.nan), high=value.max().fill_null(np.nan)
    )
    return tuple(runs[name].to_numpy() * (width if name == "row" else 1) for name in ("row", "low", "high"))


def spread(values: Sequence[float], gap: float, high: float) -> list[float]:
    """Move sorted label positions apart by ``gap``, as little as needed, none above ``high``.

    >>> [round(place, 2) for place in spread([0.1, 0.12, 0.97, 0.98], gap=0.1, high=1.0)]
    [0.1, 0.2, 0.9, 1.0]
    """
    places: list[float] = []
    for value in values:
        places.append(max(value, places[-1] + gap) if places else value)
    ceiling = high
    for k in reversed(range(len(places))):
        places[k] = min(places[k], ceiling)
        ceiling = places[k] - gap
    return places


def _draw_load(
    upper: Axes, lower: Axes, ticks: pl.DataFrame, x: NDArray[np.int64], span: tuple[float, float], long: bool
) -> None:
    """One panel: load as the range it covers in each pixel column, onsets and alarms in a strip below."""
    unit_s, unit = (3600, "h") if long else (60, "min")
    t_s = ticks["t_s"].to_numpy()
    load, base = (ticks[name].cast(pl.Float64).fill_null(np.nan).to_numpy() for name in ("load", "baseline"))
    row, low, high = extremes(load)
    at = t_s[row] / unit_s
    upper.fill_between(at, low, high, color=LOAD, lw=0.8)
    upper.plot(at, extremes(base)[2], color=INK, lw=1)
    upper.set_ylim(0, max(float(np.nanmax(load, initial=1.0)), float(np.nanmax(base, initial=1.0))) * 1.05)
    upper.set_xlim(span[0] / unit_s, span[1] / unit_s)
    upper.yaxis.set_major_formatter(EngFormatter(sep=""))
    upper.set_ylabel("Load, tokens/s")
    edge = upper.get_xlim()[1]
    known = base[np.isfinite(base)]
    if len(known):
        upper.annotate(
            "baseline", (edge, known[-1]), (4, 0), textcoords="offset points", va="center", color=INK
        )
    alarm = ticks["alarm"].cast(pl.Boolean).to_numpy()
    first = np.flatnonzero(alarm & ~np.concatenate([[False], alarm[:-1]]))
    last = np.flatnonzero(alarm & ~np.concatenate([alarm[1:], [False]]))
    bars = np.stack([t_s[first], t_s[last] + TICK_S - t_s[first]], axis=1) / unit_s
    lower.broken_barh(
        [(start, length) for start, length in bars.tolist()], (0.1, 0.8), color=FORECASTER, lw=0.4
    )
    lower.vlines(x / unit_s, 1.1, 1.9, color=RIVAL, lw=1.2)
    lower.set(ylim=(0, 2), yticks=[], xlabel=f"Time since the first request, {unit}")
    for name, place, color in (("onsets", 1.5, RIVAL), ("alarms", 0.5, FORECASTER)):
        lower.annotate(name, (edge, place), (4, 0), textcoords="offset points", va="center", color=color)
    lower.spines["left"].set_visible(False)


def _look(one: Mapping[str, Any], is_rival: bool) -> tuple[str, float]:
    """Colour and line width of a contender."""
    if is_rival:
        return RIVAL, 1.6
    return {"forecaster": (FORECASTER, 2.2), "oracle": (ORACLE, 1.4)}.get(one["kind"], (MUTED, 0.9))


def as_svg(figure: Figure, name: str, label: str) -> str:
    """SVG element with colours and font as CSS variables, and nothing in it that changes between runs."""
    target = io.StringIO()
    with warnings.catch_warnings():
        # The browser draws the letters, so glyphs that our measuring font lacks are no loss.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
    svg = target.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    # Ids get names that are the same in each run and their own within a page; those nothing refers to go.
    used = dict.fromkeys(re.findall(r"(?:url\(|href=\")#(\w+)", svg))
    names = {old: f"{name}-{k}" for k, old in enumerate(used)}
    svg = re.sub(r' id="([^"]+)"', lambda i: f' id="{names[i[1]]}"' if i[1] in names else "", svg)
    svg = re.sub(r"(url\(|href=\")#(\w+)", lambda i: f"{i[1]}#{names[i[2]]}", svg)
    svg = svg.replace(f"'{FONT}'", "var(--font, sans-serif)").replace(FONT, "var(--font, sans-serif)")
    for role, (light, _) in PALETTE.items():
        svg = svg.replace(light, f"var(--{role}, {light})")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
