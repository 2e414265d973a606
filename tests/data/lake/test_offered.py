import json
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import InputError
from data.lake import Lake
from data.lake.offered import once
from data.schema import POLARS_REQUESTS, TABLES

START = datetime(2024, 3, 1, tzinfo=UTC)
OUTCOMES = next(table for table in TABLES if table.name == "outcomes").polars


def requests(*rows: tuple[str, float], source: str = "s", **values: object) -> pl.DataFrame:
    """Rows of (request_id, hours after START)."""
    return pl.DataFrame(
        [
            {
                "source": source,
                "request_id": name,
                "arrived_at": START + timedelta(hours=hours),
                "prompt_tokens": 10,
            }
            | values
            for name, hours in rows
        ],
        schema_overrides={"arrived_at": POLARS_REQUESTS["arrived_at"]},
    )


def outcome(name: str, hours: float, **values: object) -> pl.DataFrame:
    row = {
        "source": "s",
        "request_id": name,
        "finished_at": START + timedelta(hours=hours),
        "outcome": "served",
    }
    return pl.DataFrame([row | values], schema=OUTCOMES)


def test_an_end_that_came_later_fills_what_was_unknown(location: str) -> None:
    with Lake(location) as lake:
        lake.append_requests(requests(("a", 0), ("b", 1)))
        lake.append_requests(requests(("c", 2), output_tokens=7, outcome="failed"))
        lake.append("outcomes", outcome("a", 0.5, output_tokens=3, cached_tokens=2))
        lake.append("outcomes", outcome("a", 0.7, output_tokens=99))  # sent again
        lake.append("outcomes", outcome("c", 2.5, output_tokens=99, cached_tokens=1))
        back = lake.requests("s")
        assert back["request_id"].to_list() == ["a", "b", "c"]
        assert back["output_tokens"].to_list() == [3, None, 7]
        assert back["outcome"].to_list() == ["served", None, "failed"]
        assert back["cached_tokens"].to_list() == [2, None, 1]
        assert back["finished_at"].to_list() == [
            START + timedelta(hours=h) if h else None for h in (0.5, 0, 2.5)
        ]
        assert dict(back.schema) == POLARS_REQUESTS
        assert lake.requests("nobody").height == 0


def test_a_request_that_was_stored_twice_comes_once(location: str) -> None:
    with Lake(location) as lake:
        for tokens in (1, 2):
            lake.append_requests(requests(("a", 0), ("b", 1), output_tokens=tokens))
            lake.append_requests(requests(("a", 0), source="t", output_tokens=tokens))
        back = lake.requests()
        assert back.select("source", "request_id", "output_tokens").rows() == [
            ("s", "a", 1),
            ("t", "a", 1),
            ("s", "b", 1),
        ]


def test_a_span_of_time_is_asked_for(location: str) -> None:
    with Lake(location) as lake:
        lake.append_requests(requests(("a", 0), ("b", 24), ("c", 48)))
        lake.append("outcomes", outcome("b", 24.01, output_tokens=3))
        day = timedelta(days=1)
        assert lake.requests(since=START + day)["request_id"].to_list() == ["b", "c"]
        assert lake.requests(until=START + day)["request_id"].to_list() == ["a"]
        middle = lake.requests("s", START + day, START + 2 * day)
        assert middle.select("request_id", "output_tokens").rows() == [("b", 3)]
        with pytest.raises(InputError, match="since must name its time zone; got 2024-03-01T00:00:00"):
            lake.requests(since=START.replace(tzinfo=None))


def test_files_of_other_days_are_not_read(location: str) -> None:
    with Lake(location) as lake:
        days = requests(*((f"{n}", n) for n in range(24 * 5)))
        paths = lake.stage("requests", days)
        assert len(paths) == 5
        lake.transact(lambda: lake.add_files("requests", paths))
        since, until = START + timedelta(days=1), START + timedelta(days=3)
        assert lake.requests(since=since, until=until).height == 48
        plan = lake.db.execute(
            "EXPLAIN (ANALYZE, FORMAT json) FROM lake.requests "
            "WHERE arrived_at >= $since AND arrived_at < $until",
            {"since": since, "until": until},
        ).fetchall()[0][1]
        assert '"Total Files Read": "2"' in json.dumps(json.loads(plan))


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from("st"), st.sampled_from("abc")), max_size=12))
def test_the_first_of_each_stays_in_place(keys: list[tuple[str, str]]) -> None:
    rows = [
        {"source": s, "request_id": r, "arrived_at": START, "prompt_tokens": n}
        for n, (s, r) in enumerate(keys)
    ]
    frame = pl.DataFrame(rows, schema=POLARS_REQUESTS)
    plain = [n for n, key in enumerate(keys) if key not in keys[:n]]
    assert once(frame)["prompt_tokens"].to_list() == plain
