"""A DuckDB with the lake's extensions, and what its failures mean."""

import importlib.util
import re
import shutil
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import duckdb

from data.errors import InputError
from data.lake.location import Location

# DuckDB calls an entry point named after the file; two of the packages name theirs otherwise.
_EXTENSIONS = {
    "sqlite": ("duckdb_extension_sqlite", "sqlite", "sqlite_scanner"),
    "postgres": ("duckdb_extension_postgres", "postgres", "postgres_scanner"),
    "ducklake": ("duckdb_extension_ducklake", "ducklake", "ducklake"),
}

NUL = "\0"
SQLITE_ROOM_BYTES = 256 * 1024
"""Less than this on a disk explains an input/output error of SQLite."""


def connect(location: Location) -> duckdb.DuckDBPyConnection:
    """A DuckDB in memory that can attach this lake; extensions come from Python packages: no network."""
    db = duckdb.connect(
        config={
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        }
    )
    db.execute("SET TimeZone = 'UTC'")  # times never depend on the machine's zone
    db.execute("SET enable_progress_bar = false")
    for extension in (location.catalog.partition(":")[0], "ducklake"):
        package, file, name = _EXTENSIONS[extension]
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise InputError(f"the Python package {package} is missing; install it beside duckdb")
        built = f"extensions/v{duckdb.__version__}/{file}.duckdb_extension"
        with tempfile.TemporaryDirectory() as folder:
            link = Path(folder) / f"{name}.duckdb_extension"
            link.symlink_to(Path(spec.origin).parent / built)
            db.execute(f"LOAD '{link}'")
    return db


def attach(db: duckdb.DuckDBPyConnection, location: Location) -> None:
    """Make the lake's tables known as `lake.<name>`, and its catalog where there is none yet."""
    options = [f"DATA_PATH {quoted(location.data)}", "OVERRIDE_DATA_PATH TRUE"]
    if location.options:
        options.append(location.options)
    source = quoted(f"ducklake:{location.catalog}")
    db.execute(f"ATTACH IF NOT EXISTS {source} AS lake ({', '.join(options)})")


def is_conflict(error: duckdb.Error) -> bool:
    """True for failures that pass when the other process is done."""
    text = str(error).lower()
    words = ("conflict", "database is locked", "failed to commit", "busy", "could not serialize", "deadlock")
    return any(word in text for word in words)


def is_full(error: Exception, folder: Path) -> bool:
    """True when a disk or a quota had no room; `folder` is where the write went."""
    text = str(error).lower()
    words = ("no space left", "disk is full", "disk full", "file too large", "quota exceeded")
    if any(word in text for word in words):
        return True
    # SQLite says this when it finds no room for the files beside its own, but not only then.
    return "disk i/o error" in text and shutil.disk_usage(folder).free < SQLITE_ROOM_BYTES


def with_values(sql: str, parameters: Mapping[str, object]) -> str:
    """The query with literals in place of `$name`.

    With parameters of its own DuckDB hands a large answer over row by row: 5 million rows took 23 s, not 4 s.

    >>> with_values("FROM t WHERE a = $a AND b < $b", {"a": "it's $b", "b": 5})
    "FROM t WHERE a = ('it''s $b') AND b < 5"
    """
    return re.sub(
        r"\$([a-z]\w*)",
        lambda found: _literal(parameters[found[1]]) if found[1] in parameters else found[0],
        sql,
    )


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool | int):
        return repr(value)
    if isinstance(value, float):  # infinite ones have no literal
        return f"CAST('{value!r}' AS DOUBLE)"
    if isinstance(value, datetime):
        return f"{'TIMESTAMP' if value.tzinfo is None else 'TIMESTAMPTZ'} {quoted(value.isoformat())}"
    if isinstance(value, str | Path):  # a NUL character would end the statement
        return f"({' || chr(0) || '.join(quoted(part) for part in str(value).split(NUL))})"
    if isinstance(value, list):
        return f"[{', '.join(_literal(one) for one in value)}]"
    raise TypeError(f"a query's parameter can't be a {type(value).__name__}")


def quoted(text: object) -> str:
    """A string literal of SQL.

    >>> quoted("it's")
    "'it''s'"

    Raises:
        InputError: when the text holds a NUL character, which ends a statement.

    """
    if NUL in str(text):
        raise InputError(f"a name must not hold a NUL character; got {str(text)!r}")
    return "'" + str(text).replace("'", "''") + "'"
