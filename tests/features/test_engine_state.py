import math

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from data.schema import ENGINE_SAMPLES
from features.batch import batch_features
from features.engine_state import FRESH_S, READINGS, EngineState, engine_before
from features.windows import NAMES
from tests.features.frames import ORIGIN_US, frame

US = 1_000_000
SCHEMA = {column.name: column.polars for column in ENGINE_SAMPLES}


def samples(rows: list[dict]) -> pl.DataFrame:
    """Rows of engine_samples from ``at_s`` and a few readings."""
    return pl.DataFrame(
        [
            dict.fromkeys(SCHEMA)
            | {"source": "pod", "engine": "", "state": "ok"}
            | {key: value for key, value in row.items() if key != "at_s"}
            | {"at": ORIGIN_US + round(row["at_s"] * US)}
            for row in rows
        ],
        schema=SCHEMA | {"at": pl.Int64},
    ).with_columns(pl.col("at").cast(pl.Datetime("us", "UTC")))


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "at_s": st.integers(0, 300),
            "engine": st.sampled_from(["0", "1", "2"]),
            "state": st.sampled_from(["ok", "ok", "ok", "suspect"]),
            "waiting": st.none() | st.integers(0, 99),
            "kv_cache_usage": st.none() | st.floats(0, 1),
            "preemptions_per_s": st.none() | st.floats(0, 5),
        }
    ),
    max_size=20,
    unique_by=lambda row: (row["at_s"], row["engine"]),
)


@given(ROWS)
def test_batch_and_online_agree_to_the_last_bit(rows: list[dict]) -> None:
    t_s = np.arange(0, 400, 5)
    batch = engine_before(samples(rows), ORIGIN_US, t_s)
    state, online, upcoming = EngineState(), [], sorted(rows, key=lambda row: row["at_s"])
    for tick in t_s.tolist():
        while upcoming and upcoming[0]["at_s"] < tick:
            row = upcoming.pop(0)
            if row["state"] == "ok":
                readings = {name: row.get(name) for name in READINGS}
                state.read(ORIGIN_US + row["at_s"] * US, "pod", row["engine"], **readings)
        online.append(state.tell(ORIGIN_US + tick * US))
    np.testing.assert_array_equal(np.stack(online, axis=1), batch)


def test_engines_count_as_one() -> None:
    both = [
        {"at_s": 1, "engine": "0", "waiting": 3, "kv_cache_usage": 0.5},
        {"at_s": 2, "engine": "1", "waiting": 4, "kv_cache_usage": 0.9, "preemptions_per_s": 0.5},
    ]
    waiting, running, usage, preemptions = engine_before(samples(both), ORIGIN_US, np.array([5]))[:, 0]
    assert (waiting, usage, preemptions) == (7.0, 0.9, 0.5)
    assert math.isnan(running)


def test_an_old_reading_is_unknown_and_not_zero() -> None:
    told = engine_before(
        samples([{"at_s": 0, "waiting": 3}]), ORIGIN_US, np.array([0, 5, FRESH_S, FRESH_S + 5])
    )
    np.testing.assert_array_equal(told[0], [np.nan, 3.0, 3.0, np.nan])
    assert np.isnan(engine_before(None, ORIGIN_US, np.array([5]))).all()


def test_features_tell_a_known_zero_from_the_unknown() -> None:
    requests = frame([float(s) for s in range(200)], {"prompt_tokens": [10] * 200})
    known = batch_features(requests, samples([{"at_s": 150, "waiting": 0}]))
    flag, value = NAMES.index("engine_waiting_known"), NAMES.index("engine_waiting")
    assert known[31, [value, flag]].tolist() == [0.0, 1.0]
    assert known[29, [value, flag]].tolist() == [0.0, 0.0]
    assert not batch_features(requests)[31:, flag].any()
