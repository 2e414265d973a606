"""A trace of one's own: any CSV, JSONL or Parquet file, with a mapping of its columns from the configuration.

    mappings:
      our-logs:
        columns: {arrived_at: ts, prompt_tokens: tokens_in, output_tokens: tokens_out, tenant: team}
        time_unit: ms                  # of times that are numbers
        time_zone: Europe/Berlin       # of times that are text without an offset
        constants: {lane: standard}

Columns that the mapping does not name are left out. Without a request_id the rows are numbered.
"""

import difflib
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

import polars as pl

from data.config import Mapping
from data.errors import InputError
from data.readers.columns import READABLE, REQUIRED, request_fields
from data.readers.fields import raw_name
from data.readers.format import Format, Prepare

PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000}


def mapped_format(mapping: Mapping) -> Format:
    """The format that a mapping describes; its `required` are the file's columns.

    Raises InputError for a column that the schema lacks, for one that it needs and the mapping lacks, for a
    time zone that does not exist, and for a constant that breaks its column's rule.
    """
    constants = {name: f"constant {name}" for name in mapping.constants}
    for name in (*mapping.columns, *mapping.constants):
        if name == "source":
            raise InputError("a mapping can't set source: --source names the rows of a file")
        if name not in READABLE:
            raise InputError(
                f"a mapping's columns must be those of a request; got '{name}', the nearest is "
                f"'{nearest(name, READABLE)}'"
            )
        if name in mapping.columns and name in constants:
            raise InputError(f"a mapping must take {name} from a column or a constant; got both")
    if "request_id" in constants:
        raise InputError(
            "a mapping's request_id must differ from row to row; leave it out to number the rows"
        )
    for name in REQUIRED:
        if name not in mapping.columns and name not in constants:
            raise InputError(f"a mapping must say which column holds {name}: columns: {{{name}: ...}}")
    _check_zone(mapping.time_zone)
    form = Format(
        name="mapped",
        title="mapped columns",
        kinds=("csv", "jsonl", "parquet"),
        required=tuple(dict.fromkeys(mapping.columns.values())),
        fields=request_fields(
            mapping.columns | constants,
            required=(*REQUIRED, "request_id"),
            per_second=PER_SECOND[mapping.time_unit],
            zone=mapping.time_zone,
        ),
        prepare=_constants({constants[name]: value for name, value in mapping.constants.items()}),
        extra=True,
    )
    _check_constants(form, mapping.constants)
    return form


def check_columns(mapping: Mapping, given: Sequence[str], where: str) -> None:
    """Raise InputError for a column of the mapping that the file lacks."""
    for name, raw in mapping.columns.items():
        if raw not in given:
            raise InputError(
                f"{where} must have the column '{raw}', which the mapping reads as {name}; "
                f"the nearest that it has is '{nearest(raw, given)}'"
            )


def nearest(name: str, names: Iterable[str]) -> str:
    """The name that is spelt most like this one."""
    return difflib.get_close_matches(name, list(names), n=1, cutoff=0.0)[0]


def _constants(values: dict[str, str]) -> Callable[[], Prepare]:
    def prepare(rows: pl.DataFrame) -> pl.DataFrame:
        return rows.with_columns(pl.lit(value).alias(name) for name, value in values.items())

    return lambda: prepare


def _check_zone(zone: str) -> None:
    try:
        pl.select(pl.lit(datetime(2026, 1, 1)).dt.replace_time_zone(zone))
    except pl.exceptions.ComputeError as error:
        raise InputError(f"time_zone must be a zone such as Europe/Berlin; got '{zone}'") from error


def _check_constants(form: Format, constants: dict[str, str]) -> None:
    """Read every constant as a row would be read, by itself."""
    for field in form.fields:
        if field.column in constants:
            value = constants[field.column]
            row = pl.DataFrame({field.raw: [value], raw_name(field.raw): [value]})
            read = row.with_columns(field.value.alias(field.column))
            others = {"arrived_at", "prompt_tokens"} - {field.column}
            read = read.with_columns(pl.lit(None).alias(name) for name in others)
            if value == "" or read.select(field.bad).item():
                raise InputError(f"the constant {field.column} must be {field.rule}; got '{value}'")
