"""What every reader yields: good rows in the request schema, and bad rows with a reason."""

from dataclasses import dataclass

import polars as pl
from polars.datatypes import DataType

from data.schema import Column

QUARANTINE: tuple[Column, ...] = (
    Column("source", pl.String(), "VARCHAR", True, "trace or gateway that the row comes from"),
    Column("file", pl.String(), "VARCHAR", True, "name of the file"),
    Column("line", pl.Int64(), "BIGINT", True, "line in the file, from 1; the row in a Parquet file"),
    Column("reason", pl.String(), "VARCHAR", True, "what is wrong with the row"),
    Column("raw", pl.String(), "VARCHAR", True, "the row as it stands in the file"),
)

POLARS_QUARANTINE: dict[str, DataType] = {column.name: column.polars for column in QUARANTINE}


@dataclass(frozen=True, slots=True)
class Batch:
    """Some consecutive rows of a trace: `requests` in POLARS_REQUESTS, `quarantine` in POLARS_QUARANTINE.

    `size_bytes` is their share of the file, for progress bars.
    """

    requests: pl.DataFrame
    quarantine: pl.DataFrame
    size_bytes: int

    @property
    def rows(self) -> int:
        """Rows read from the file, good and bad."""
        return self.requests.height + self.quarantine.height
