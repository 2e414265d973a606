"""A trace format as data: its columns, how they map to the request schema, and the check of every row."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from data.readers.batch import POLARS_QUARANTINE, Batch
from data.readers.fields import Field, raw_name
from data.schema import POLARS_REQUESTS

LINE = "\0line"
"""Column of a row's line number, under a name that no file has."""

Prepare = Callable[[pl.DataFrame], pl.DataFrame]
"""Adds columns of text to the rows of a file, which come to it in order."""


@dataclass(frozen=True, slots=True)
class Format:
    """A trace format: the columns that a file must and may have, and the fields read from them.

    `kinds` says how the rows are written: csv, jsonl or parquet. `derived` are schema columns that no
    trace column gives, as expressions over those that one does. `scoped` are schema columns whose values
    start again in every file, so that they are prefixed like the numbers of the rows. `prepare` makes, once
    a file, what adds further columns for the fields to read. With `extra` a file may have other columns too.
    """

    name: str
    title: str
    kinds: tuple[str, ...]
    required: tuple[str, ...]
    fields: tuple[Field, ...]
    optional: tuple[str, ...] = ()
    derived: Mapping[str, pl.Expr] = field(default_factory=dict)
    scoped: tuple[str, ...] = ()
    prepare: Callable[[], Prepare] | None = None
    extra: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that a file of this format may have."""
        return (*self.required, *self.optional)

    @property
    def own_ids(self) -> bool:
        """True where the rows bring their own request_id, which may then repeat."""
        return any(f.column == "request_id" for f in self.fields)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a file as text, before any check.

    `values` has one String column per trace column and LINE (Int64); `broken` are lines that are no row
    at all, with the reason; `raw` gives the text of lines.
    """

    values: pl.DataFrame
    broken: Sequence[tuple[int, str]]
    raw: Callable[[Sequence[int]], list[str]]
    size_bytes: int


def check(rows: Rows, form: Format, *, source: str, scope: str, file: str, lines_before: int) -> Batch:
    """Cast the rows to the request schema; rows that break a rule go to quarantine with the first reason.

    `lines_before` lines of the file come before its first row: requests without an id of their own are
    called "<scope>:<row number>".
    """
    fields = [f for f in form.fields if f.raw in rows.values.columns]
    given = {f.column: f.value for f in fields}
    given["source"] = pl.lit(source)
    if not form.own_ids:
        given["request_id"] = pl.format("{}:{}", pl.lit(scope), pl.col(LINE) - lines_before)
    for name in form.scoped:
        if name in given:
            given[name] = pl.format("{}:{}", pl.lit(scope), given[name])
    read = (
        rows.values.lazy()
        .select(
            pl.col(LINE).alias("line"),
            *(
                given.get(name, pl.lit(None)).cast(dtype).alias(name)
                for name, dtype in POLARS_REQUESTS.items()
            ),
            *(pl.col(raw).alias(raw_name(raw)) for raw in dict.fromkeys(f.raw for f in fields)),
        )
        .with_columns(
            *(value.alias(name) for name, value in form.derived.items()),
            pl.any_horizontal(f.bad for f in fields).alias("bad"),
        )
        .collect()
    )
    requests = read.select(list(POLARS_REQUESTS))
    if not read["bad"].any() and not rows.broken:
        return Batch(requests, pl.DataFrame(schema=POLARS_QUARANTINE), rows.size_bytes)
    reasons = read.filter("bad").select("line", pl.coalesce(pl.when(f.bad).then(f.reason) for f in fields))
    quarantined = sorted([*reasons.iter_rows(), *rows.broken])
    lines = [line for line, _ in quarantined]
    quarantine = pl.DataFrame(
        {"line": lines, "reason": [reason for _, reason in quarantined], "raw": rows.raw(lines)}
    ).with_columns(source=pl.lit(source), file=pl.lit(file))
    return Batch(
        requests.filter(~read["bad"]),
        quarantine.select(pl.col(name).cast(dtype) for name, dtype in POLARS_QUARANTINE.items()),
        rows.size_bytes,
    )


def numbered(values: pl.DataFrame, first: int) -> pl.DataFrame:
    """The frame with the column LINE, counted from `first`."""
    return values.with_columns(pl.int_range(first, first + values.height, dtype=pl.Int64).alias(LINE))


def text_frame(rows: Sequence[Sequence[str | int | None]], columns: Sequence[str]) -> pl.DataFrame:
    """Rows of text that end with their line number, as `Rows.values`."""
    schema = {**dict.fromkeys(columns, pl.String), LINE: pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")
