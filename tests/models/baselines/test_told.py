import numpy as np
import polars as pl

from models.baselines.known import KnownLoad
from models.baselines.told import FARTHEST_S, SLOTS_S, told_features

LEVEL = 1_000
KNOWN = KnownLoad(0, np.full(8_000, LEVEL, dtype=np.int64))
SLOTS = SLOTS_S // 10


def causes(*rows: tuple[float, str, float | None]) -> pl.DataFrame:
    schema = {"t_s": pl.Float64, "cause": pl.String, "work_tokens": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def test_time_to_the_next_start_and_since_the_last() -> None:
    told = causes((5_000.0, "cron", 20_000.0), (5_300.0, "cron", 40_000.0))
    features = told_features(KNOWN, told, np.array([4_900, 5_000, 5_100, 6_000]))
    assert features.shape == (4, 2 + SLOTS)
    to_next, since = features[:, :2].T
    assert to_next.tolist() == [100, 300, 200, FARTHEST_S]
    assert since.tolist() == [FARTHEST_S, 0, 100, FARTHEST_S]


def test_starts_are_told_in_steps_of_ten_seconds_whatever_their_size() -> None:
    told = causes((5_010.0, "cron", 10_000.0), (5_035.0, "ramp", None), (5_045.0, "shock", 90_000.0))
    slots = told_features(KNOWN, told, np.array([5_000]))[0, -SLOTS:]
    # A start at t + 10 lies in (t, t + 10].
    assert slots.tolist() == [1, 0, 0, 1, 1, *[0] * (SLOTS - 5)]


def test_light_causes_are_no_start_and_unknown_ones_are() -> None:
    told = causes((5_020.0, "cron", 4_000.0), (5_050.0, "cron", None), (5_080.0, "cron", 50_000.0))
    to_next, _, *slots = told_features(KNOWN, told, np.array([5_000]))[0]
    assert to_next == 50
    assert sum(slots) == 2


def test_causes_without_figures_are_all_heavy() -> None:
    plain = pl.DataFrame({"t_s": [5_060.0], "cause": ["cron"]})
    assert told_features(KNOWN, plain, np.array([5_000]))[0, 0] == 60


def test_each_kind_of_cause_has_its_own_columns() -> None:
    told = causes((5_000.0, "ramp", None), (5_000.0, "cron", None))
    assert told_features(KNOWN, told, np.array([0, 5])).shape == (2, 4 + SLOTS)
