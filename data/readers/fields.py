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

MAX_IMAGES = 10_000
"""More images than any prompt."""

NAIVE = "%Y-%m-%d %H:%M:%S%.f"
UNITS = {1: "seconds", 1_000: "milliseconds", 1_000_000: "microseconds"}
"""Name of a unit by how many make a second."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
YEAR_2200 = datetime(2200, 1, 1, tzinfo=UTC)
"""A later time is a number in the wrong unit."""


@dataclass(frozen=True, slots=True)
class Field:
    """One schema column read from one trace column, and the rule that it keeps.

    `value` reads the text, null where it can't; `wrong`, over schema columns, is true for values that read
    well and still break the rule. `why`, over raw columns, says what no rule says well; null elsewhere.
    """

    column: str
    raw: str
    value: pl.Expr
    rule: str
    required: bool = True
    wrong: pl.Expr | None = None
    why: pl.Expr | None = None

    @property
    def bad(self) -> pl.Expr:
        """True where the row must go to quarantine; over schema columns beside their raw text."""
        missing = pl.col(self.column).is_null()
        if not self.required:
            missing &= pl.col(raw_name(self.raw)).fill_null("").ne("")
        return missing if self.wrong is None else missing | self.wrong.fill_null(False)

    def wrong_or(self, other: pl.Expr) -> pl.Expr:
        """True for values that break the rule, or `other`."""
        return other if self.wrong is None else self.wrong.fill_null(False) | other.fill_null(False)

    @property
    def reason(self) -> pl.Expr:
        """The sentence for the quarantine, such as "ContextTokens must be ...; got '-4'"."""
        got = pl.col(raw_name(self.raw))
        sentence = (
            pl.when(got.fill_null("") == "")
            .then(pl.lit(f"{self.raw} must be {self.rule}; the row has none"))
            .otherwise(
                pl.format("{} must be {}; got '{}'", pl.lit(self.raw), pl.lit(self.rule), got.str.head(40))
            )
        )
        return sentence if self.why is None else pl.coalesce(self.why, sentence)


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


def count(column: str, raw: str, most: int, *, required: bool = True) -> Field:
    """A whole number from 0 to `most`; "12.0" counts as 12: many tools write integers with gaps that way."""
    value = pl.col(raw).str.strip_suffix(".0").cast(pl.Int64, strict=False)
    outside = ~pl.col(column).is_between(0, most)
    return Field(column, raw, value, f"a whole number from 0 to {most}", required, outside)


def tokens(column: str, raw: str, *, required: bool = True) -> Field:
    """A count of tokens."""
    return count(column, raw, MAX_TOKENS, required=required)


def images(column: str, raw: str, *, required: bool = False) -> Field:
    """A count of images."""
    return count(column, raw, MAX_IMAGES, required=required)


def seconds(column: str, raw: str, *, per_second: int = 1, required: bool = True) -> Field:
    """A time since the Unix epoch, in seconds or, with per_second=1000, milliseconds."""
    return Field(
        column,
        raw,
        since_epoch(raw, per_second),
        f"a number of {UNITS[per_second]} from 0 to the year 2200",
        required,
        _outside(column),
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


def timestamp(
    column: str,
    raw: str,
    *,
    numbers: bool = False,
    per_second: int = 1,
    zone: str = "UTC",
    required: bool = True,
) -> Field:
    """A date with time, in `zone` where it names no offset; with `numbers`, a time since the epoch as well.

    A time that the zone's clocks show twice, or never, is not guessed: the row goes to quarantine.
    """
    forms = [
        _local(raw)
        .dt.replace_time_zone(zone, ambiguous="null", non_existent="null")
        .dt.convert_time_zone("UTC"),
        _dated(raw).str.to_datetime(NAIVE + "%#z", time_unit="us", time_zone="UTC", strict=False),
    ]
    rule = "a time since 1970 such as 2023-11-16 18:17:03.979960"
    if numbers:
        forms.append(since_epoch(raw, per_second))
        rule += f" or a number of {UNITS[per_second]}"
    why = None if zone == "UTC" else _not_one_time(raw, zone)
    return Field(column, raw, pl.coalesce(forms).cast(UTC_US), rule, required, _outside(column), why)


def _dated(raw: str) -> pl.Expr:
    return pl.col(raw).str.replace("T", " ", literal=True)


def _local(raw: str) -> pl.Expr:
    """The time on the clock, where the text names no offset."""
    return _dated(raw).str.to_datetime(NAIVE, time_unit="us", strict=False)


def _outside(column: str) -> pl.Expr:
    return ~pl.col(column).is_between(EPOCH, YEAR_2200)


def _not_one_time(raw: str, zone: str) -> pl.Expr:
    """The reason against a time that the clocks of a zone show twice or never; null for any other."""
    clock = _local(raw_name(raw))
    never = clock.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null").is_null()
    once = clock.dt.replace_time_zone(zone, ambiguous="null", non_existent="null").is_not_null()
    sentence = "{} must be one time; the clocks of {} show '{}' {}: write it with its offset, such as +00:00"
    return pl.when(clock.is_not_null() & ~once).then(
        pl.format(
            sentence,
            pl.lit(raw),
            pl.lit(zone),
            pl.col(raw_name(raw)).str.head(40),
            pl.when(never).then(pl.lit("never")).otherwise(pl.lit("twice")),
        )
    )


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
