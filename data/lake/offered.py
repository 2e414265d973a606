"""The requests of a lake as one frame: with the ends that came later, and each request once."""

from datetime import UTC, datetime, timedelta

import polars as pl

from data.errors import InputError
from data.schema import POLARS_REQUESTS, UTC_US

Parameters = dict[str, object]

ORDER = "arrived_at, source, length(request_id), request_id, rowid"
"""By arrival; ties in the order of the trace (numbered ids sort by length first), then as stored."""

LATEST_END = timedelta(days=1)
"""How much earlier than its request an end may be stamped, by clocks that disagree."""

_FROM_OUTCOMES = ("finished_at", "output_tokens", "cached_tokens", "outcome")


def between(
    time: str | None, source: str | None, since: datetime | None, until: datetime | None
) -> tuple[str, Parameters]:
    """A WHERE clause, or '', and its parameters: since <= time < until.

    Raises:
        InputError: when a time has no zone.

    """
    for name, value in (("since", since), ("until", until)):
        if value is not None and value.tzinfo is None:
            raise InputError(f"{name} must name its time zone; got {value.isoformat()}")
    asked: list[tuple[str, str, object]] = [
        ("source", "source = $source", source),
        ("since", f'"{time}" >= $since', since and since.astimezone(UTC)),
        ("until", f'"{time}" < $until', until and until.astimezone(UTC)),
    ]
    given = [(name, condition, value) for name, condition, value in asked if value is not None]
    where = " AND ".join(condition for _, condition, _ in given)
    return f"WHERE {where}" if where else "", {name: value for name, _, value in given}


def requests_sql(where: str, *, outcomes: bool, since: bool) -> str:
    """The query of requests by arrival; with `outcomes`, ends that came later fill what is null.

    The first end counts when there are several. `since` says that the clause has a lower bound.
    """
    if not outcomes:
        return f"FROM lake.requests {where} ORDER BY {ORDER}"
    filled = ", ".join(f"coalesce(r.{name}, o.{name}) AS {name}" for name in _FROM_OUTCOMES)
    # Files of outcomes from before the span are skipped.
    early = f"WHERE finished_at >= $since - INTERVAL {LATEST_END.days} DAY" if since else ""
    return f"""
        WITH ended AS (
            FROM lake.outcomes {early}
            QUALIFY row_number() OVER (PARTITION BY source, request_id ORDER BY finished_at, rowid) = 1
        )
        SELECT r.* REPLACE ({filled})
        FROM (SELECT *, rowid FROM lake.requests {where}) r LEFT JOIN ended o USING (source, request_id)
        ORDER BY {ORDER}
    """


def once(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with the columns of requests and the first row of each (source, request_id)."""
    frame = frame.select(
        pl.col(name).dt.convert_time_zone("UTC").cast(dtype) if dtype == UTC_US else pl.col(name).cast(dtype)
        for name, dtype in POLARS_REQUESTS.items()
    )
    key = pl.struct("source", "request_id")
    if frame.select(key.hash().n_unique()).item() == frame.height:  # far cheaper than to sort repeats out
        return frame
    return frame.unique(["source", "request_id"], keep="first", maintain_order=True)
