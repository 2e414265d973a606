"""What each arm of the comparison is told of bursts, by tick."""

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from features.ticks import HORIZON_S


@dataclass(frozen=True, slots=True)
class Arm:
    """One gate.

    Attributes:
        name, title: what it is called, by machines and by people.
        tightening: what it is told, by tick; 0 at every other one.

    """

    name: str
    title: str
    tightening: Mapping[int, float]


def arms(ticks: pl.DataFrame) -> list[Arm]:
    """Rules alone, rules and forecast, rules and an oracle.

    The oracle tightens fully at the ticks of the last 60 s before each onset and at no other.

    Args:
        ticks: of a backtest: t_s, alarm, tightening and next_onset_s, null where there is none.

    """
    foreseen = ticks.filter(pl.col("alarm") == 1).select("t_s", "tightening")
    near = ticks.filter(pl.col("next_onset_s") - pl.col("t_s") <= HORIZON_S[1])
    return [
        Arm("rules", "rules alone", {}),
        Arm("forecast", "rules and forecast", dict(foreseen.iter_rows())),
        Arm("oracle", "rules and oracle", dict.fromkeys(near["t_s"], 1.0)),
    ]
