"""What every reader yields: good rows in the request schema, and bad rows with a reason."""

from dataclasses import dataclass

import polars as pl
from polars.datatypes import DataType

from data.schema import QUARANTINE

POLARS_QUARANTINE: dict[str, DataType] = {
    column.name: column.polars for column in QUARANTINE if column.name != "at"
}
"""Schema of a reader's bad rows; whoever stores them says when."""


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
