"""How the text of one trace column becomes a schema column, and what is said when it can't.

Every trace is read as text and cast here, so a bad value is still at hand when its reason is written. An
expression gives null where the text breaks the rule; an empty field is unknown, never zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import polars as pl

from data.schema import UTC_US

MAX_TOKENS = 10_000_000
"""More tokens than any context window: above it a count is a mistake."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
YEAR_2200 = datetime(2200, 1, 1, tzinfo=UTC)
"""A later time is a number in the wrong unit."""


@dataclass(frozen=True, slots=True)
class Field:
    """One schema column read from one trace column, and the rule that it keeps.

    `value` reads the text, null where it can't; `wrong`, over schema columns, is true for values that read
    well and still break the rule.
    """

    column: str
    raw: str
    value: pl.Expr
    rule: str
    required: bool = True
    wrong: pl.Expr | None = None

    @property
    def bad(self) -> pl.Expr:
        """True where the row must go to quarantine; over schema columns beside their raw text."""
        missing = pl.col(self.column).is_null()
        if not self.required:
            missing &= pl.col(raw_name(self.raw)).fill_null("").ne("")
        return missing if self.wrong is None else missing | self.wrong.fill_null(False)

    @property
    def reason(self) -> pl.Expr:
        """The sentence for the quarantine, such as "ContextTokens must be ...; got '-4'"."""
        got = pl.col(raw_name(self.raw))
        return (
            pl.when(got.fill_null("") == "")
            .then(pl.lit(f"{self.raw} must be {self.rule}; the row has none"))
            .otherwise(
                pl.format("{} must be {}; got '{}'", pl.lit(self.raw), pl.lit(self.rule), got.str.head(40))
            )
        )


def raw_name(raw: str) -> str:
    """Where a trace column stands beside the schema columns, which may have the same name."""
    return f"raw {raw}"


def text(column: str, raw: str, *, required: bool = True) -> Field:
    """Any text that is not empty."""
    value = pl.col(raw)
    return Field(column, raw, pl.when(value != "").then(value), "a text", required)


def choice(column: str, raw: str, choices: Sequence[str], *, required: bool = False) -> Field:
    """One of a few words."""
    value = pl.col(raw)
    return Field(
        column, raw, pl.when(value.is_in(list(choices))).then(value), f"one of {', '.join(choices)}", required
    )


def tokens(column: str, raw: str, *, required: bool = True) -> Field:
    """A count of tokens; "12.0" counts as 12, since many tools write integers with gaps that way."""
    value = pl.col(raw).str.strip_suffix(".0").cast(pl.Int64, strict=False)
    outside = ~pl.col(column).is_between(0, MAX_TOKENS)
    return Field(column, raw, value, f"a whole number from 0 to {MAX_TOKENS}", required, outside)


def seconds(column: str, raw: str, *, per_second: int = 1, required: bool = True) -> Field:
    """A time since the Unix epoch, in seconds or, with per_second=1000, milliseconds."""
    unit = {1: "seconds", 1000: "milliseconds"}[per_second]
    outside = ~pl.col(column).is_between(EPOCH, YEAR_2200)
    return Field(
        column,
        raw,
        since_epoch(raw, per_second),
        f"a number of {unit} from 0 to the year 2200",
        required,
        outside,
    )


def since_epoch(raw: str, per_second: int = 1) -> pl.Expr:
    """Text with a number of seconds (or parts of them) to a UTC time; null for NaN and infinities.

    A fraction is rounded to the microsecond but never up to the next second.
    """
    value = pl.col(raw).cast(pl.Float64, strict=False)
    if per_second != 1:
        value /= per_second
    last_of_second = value.floor() * 1e6 + 999_999
    micros = pl.min_horizontal((value * 1e6 + 0.5).floor(), last_of_second)
    return micros.cast(pl.Int64, strict=False).cast(UTC_US)


def timestamp(column: str, raw: str, *, numbers: bool = False, required: bool = True) -> Field:
    """A date with time, in UTC where it names no zone; with `numbers`, seconds since the epoch as well."""
    naive = "%Y-%m-%d %H:%M:%S%.f"
    value = pl.col(raw).str.replace("T", " ", literal=True)
    forms = [
        value.str.to_datetime(naive, time_unit="us", strict=False).dt.replace_time_zone("UTC"),
        value.str.to_datetime(naive + "%#z", time_unit="us", time_zone="UTC", strict=False),
    ]
    rule = "a time since 1970 such as 2023-11-16 18:17:03.979960"
    if numbers:
        forms.append(since_epoch(raw))
        rule += " or a number of seconds"
    outside = ~pl.col(column).is_between(EPOCH, YEAR_2200)
    return Field(column, raw, pl.coalesce(forms).cast(UTC_US), rule, required, outside)


def integers(column: str, raw: str, *, required: bool = True) -> Field:
    """A list of whole numbers such as [0, 1, 2]."""
    value = pl.col(raw).str.strip_chars()
    listed = value.str.starts_with("[") & value.str.ends_with("]")
    inner = value.str.strip_chars("[] ")
    numbers = inner.str.split(",").list.eval(pl.element().str.strip_chars().cast(pl.Int64, strict=False))
    read = (
        pl.when(listed & (inner == ""))
        .then(pl.lit([], dtype=pl.List(pl.Int64)))
        .when(listed & ~numbers.list.eval(pl.element().is_null()).list.any())
        .then(numbers)
    )
    return Field(column, raw, read, "a list of whole numbers", required)
