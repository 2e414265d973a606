"""The lake's schema, and how older lakes come to it.

A lake notes in its table `schema_version` which migrations it has had. What an older one lacks is brought up
in one transaction when it is opened. Missing tables and missing nullable columns need no migration of their
own: they are added from `data.schema`, and old rows have null there.
"""

from collections.abc import Callable

import duckdb

from data.errors import InputError
from data.schema import TABLES

Migration = Callable[[duckdb.DuckDBPyConnection], None]


def _date_quarantine(db: duckdb.DuckDBPyConnection) -> None:
    """Rows set aside before the quarantine had times get that of their source's latest ingest.

    They may be older, never younger: retention by age keeps them long enough.
    """
    db.execute(
        """
        UPDATE lake.quarantine SET "at" = latest."at"
        FROM (SELECT source, max("at") AS "at" FROM lake.ingests GROUP BY source) AS latest
        WHERE quarantine.source = latest.source AND quarantine."at" IS NULL
        """
    )


MIGRATIONS: tuple[Migration, ...] = (_date_quarantine,)
"""What to do, in order; the lake's version is the number of those done. Append only."""


def outdated(db: duckdb.DuckDBPyConnection) -> bool:
    """True when the lake lacks a migration, a table or a column.

    Raises:
        InputError: when the lake is newer than this code.

    """
    return version(db) < len(MIGRATIONS) or bool(_lacking(db))


def migrate(db: duckdb.DuckDBPyConnection) -> None:
    """Bring the lake up to this code, inside a transaction and under the lock of opening."""
    found = version(db)
    db.execute('CREATE TABLE IF NOT EXISTS lake.schema_version (version INTEGER NOT NULL, "at" TIMESTAMPTZ)')
    for statement in _lacking(db):
        db.execute(statement)
    for number, migration in enumerate(MIGRATIONS[found:], found + 1):
        migration(db)
        db.execute("INSERT INTO lake.schema_version VALUES (?, now())", [number])


def version(db: duckdb.DuckDBPyConnection) -> int:
    """The number of migrations that the lake has had."""
    if "schema_version" not in _columns(db):
        return 0
    row = db.execute("SELECT coalesce(max(version), 0) FROM lake.schema_version").fetchone()
    found = int(row[0]) if row else 0
    if found > len(MIGRATIONS):
        raise InputError(
            f"its schema version is {found}, and this version of Tidegate knows versions up to "
            f"{len(MIGRATIONS)}; use the Tidegate that wrote it, or a newer one"
        )
    return found


def _lacking(db: duckdb.DuckDBPyConnection) -> list[str]:
    """Statements that add the tables and columns that the lake lacks."""
    present = _columns(db)
    statements = []
    for table in TABLES:
        if table.name not in present:
            columns = ", ".join(
                f'"{c.name}" {c.duckdb}{" NOT NULL" if c.required else ""}' for c in table.columns
            )
            statements.append(f"CREATE TABLE lake.{table.name} ({columns})")
            continue
        for column in table.columns:
            if column.name in present[table.name]:
                continue
            if column.required:
                raise InputError(
                    f"its table {table.name} lacks the column {column.name}, which every row must have; "
                    "ingest the traces again into a new lake"
                )
            statements.append(f'ALTER TABLE lake.{table.name} ADD COLUMN "{column.name}" {column.duckdb}')
    return statements


def _columns(db: duckdb.DuckDBPyConnection) -> dict[str, set[str]]:
    """Names of the columns of each table of the lake."""
    rows = db.execute(
        "SELECT table_name, column_name FROM duckdb_columns() "
        "WHERE database_name = 'lake' AND schema_name = 'main'"
    ).fetchall()
    columns: dict[str, set[str]] = {}
    for table, column in rows:
        columns.setdefault(table, set()).add(column)
    return columns
