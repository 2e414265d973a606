"""What a lake holds: rows, files and bytes, by table and by source and day."""

import polars as pl

from data.lake.files import data_files
from data.lake.lake import Lake
from data.schema import TABLES


def table_stats(lake: Lake) -> pl.DataFrame:
    """One row a table: table, rows, waiting_rows (in the catalog, not yet in a file), files, size_bytes."""
    counts = lake.query(
        " UNION ALL ".join(
            f'SELECT {n} AS place, \'{table.name}\' AS "table", count(*) AS "rows", '
            f"count(*) FILTER (NOT ends_with(filename, '.parquet')) AS waiting_rows FROM lake.{table.name}"
            for n, table in enumerate(TABLES)
        )
    )
    sizes = data_files(lake).group_by("table").agg(files=pl.len(), size_bytes=pl.col("size_bytes").sum())
    joined = counts.sort("place").drop("place").join(sizes, on="table", how="left", maintain_order="left")
    return joined.with_columns(pl.col("files", "size_bytes").fill_null(0))


def source_stats(lake: Lake) -> pl.DataFrame:
    """One row a source and UTC day, of requests and quarantine.

    Columns: source, day, rows, first and last arrival, files, size_bytes (of files with several sources the
    share of the rows), quarantined (rows set aside on that day). A day is null for rows set aside at an
    unknown time.
    """
    parts = lake.query(
        """
        SELECT source, epoch_us(arrived_at) // 86_400_000_000 AS day, filename AS path, count(*) AS "rows",
            min(arrived_at) AS "first", max(arrived_at) AS "last"
        FROM lake.requests GROUP BY ALL
        """
    )
    aside = lake.query(
        """
        SELECT source, epoch_us("at") // 86_400_000_000 AS day, count(*) AS quarantined
        FROM lake.quarantine GROUP BY ALL
        """
    )
    sizes = data_files(lake).select("path", "size_bytes", file_rows="rows")
    days = (
        parts.join(sizes, on="path", how="left")
        .group_by("source", "day")
        .agg(
            pl.col("rows").sum(),
            pl.col("first").min(),
            pl.col("last").max(),
            files=pl.col("size_bytes").count(),
            size_bytes=(pl.col("size_bytes") * pl.col("rows") / pl.col("file_rows"))
            .sum()
            .round()
            .cast(pl.Int64),
        )
        .join(aside, on=["source", "day"], how="full", coalesce=True, nulls_equal=True)
    )
    counts = pl.col("rows", "files", "size_bytes", "quarantined").fill_null(0)
    return days.with_columns(counts, pl.col("day").cast(pl.Int32).cast(pl.Date)).sort("source", "day")
