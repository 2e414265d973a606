"""The telemetry lake: DuckLake tables that several processes write and read at once.

The catalog is a SQLite file or a PostgreSQL database, the rows are Parquet (small appends wait inside the
catalog). One setting says where: a folder, or `postgresql://user@host:port/database?data=/folder`.

    with Lake("var/lake") as lake:
        lake.append_requests(frame)
        lake.sources()

A Parquet file holds rows of one UTC day where that can be had: bulk loads write such files, and `compact`
makes the others so. Queries over a span of time then skip files by their least and greatest time, and
retention drops whole files. (DuckLake's own partitions don't serve: files that are added to a table
partitioned by year, month and day get wrong keys in the catalog, and rows that are inserted instead cost
three calendar computations each, which halves the speed of an ingest.)
"""

from data.lake.lake import Lake

__all__ = ["Lake"]
