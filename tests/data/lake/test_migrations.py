from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import polars as pl
import pytest

from data.errors import InputError
from data.lake import Lake, migrations
from data.lake.connection import attach, connect
from data.lake.location import locate
from data.schema import TABLES

# As the first lakes were made: three tables, no versions, no times in quarantine.
FIRST_TABLES = (
    """
    CREATE TABLE lake.requests (
        "source" VARCHAR NOT NULL, "request_id" VARCHAR NOT NULL, "arrived_at" TIMESTAMPTZ NOT NULL,
        "tenant" VARCHAR, "lane" VARCHAR, "model" VARCHAR, "session" VARCHAR, "log_type" VARCHAR,
        "prompt_tokens" BIGINT NOT NULL, "cached_tokens" BIGINT, "max_tokens" BIGINT, "output_tokens" BIGINT,
        "finished_at" TIMESTAMPTZ, "outcome" VARCHAR, "retry_of" VARCHAR, "block_hashes" BIGINT[],
        "block_tokens" INTEGER
    )
    """,
    """
    CREATE TABLE lake.quarantine (
        "source" VARCHAR NOT NULL, "file" VARCHAR NOT NULL, "line" BIGINT NOT NULL, "reason" VARCHAR NOT NULL,
        "raw" VARCHAR NOT NULL
    )
    """,
    """
    CREATE TABLE lake.ingests (
        "sha256" VARCHAR NOT NULL, "source" VARCHAR NOT NULL, "rows" BIGINT NOT NULL,
        "stored" BIGINT NOT NULL, "quarantined" BIGINT NOT NULL, "duplicates" BIGINT NOT NULL,
        "at" TIMESTAMPTZ NOT NULL
    )
    """,
)
REQUESTS = (
    "INSERT INTO lake.requests BY NAME SELECT 's' AS source, 's:' || i AS request_id, "
    "to_timestamp(i) AS arrived_at, i AS prompt_tokens FROM range({}) t(i)"
)


def first_lake(location: str) -> None:
    place = locate(location)
    place.data.mkdir(parents=True)
    db = connect(place)
    attach(db, place)
    for statement in FIRST_TABLES:
        db.execute(statement)
    db.execute(REQUESTS.format(5))  # inside the catalog
    db.execute(REQUESTS.format(3000))  # a Parquet file
    db.execute("INSERT INTO lake.quarantine VALUES ('s', 'f', 1, 'bad', 'x'), ('t', 'f', 2, 'bad', 'y')")
    db.execute(
        "INSERT INTO lake.ingests VALUES "
        "('abc', 's', 2, 1, 1, 0, '2024-01-01'), ('def', 's', 2, 2, 0, 0, '2024-02-01')"
    )
    db.close()


def columns(lake: Lake) -> dict[str, list[str]]:
    return {table.name: lake.query(f"FROM lake.{table.name} LIMIT 0").columns for table in TABLES}


def test_a_lake_of_the_first_kind_opens_with_every_row(location: str) -> None:
    first_lake(location)
    with Lake(location) as lake:
        assert columns(lake) == {table.name: [column.name for column in table.columns] for table in TABLES}
        count = lake.query("SELECT count(*), count(images), sum(prompt_tokens) FROM lake.requests").row(0)
        assert count == (3005, 0, 10 + 3000 * 2999 // 2)
        lake.append_requests(
            pl.DataFrame(
                {"source": ["t"], "request_id": ["a"], "prompt_tokens": [1], "images": [2]}
            ).with_columns(arrived_at=pl.lit(datetime(2024, 1, 1, tzinfo=UTC)))
        )
        assert lake.requests("t")["images"].to_list() == [2]
    with Lake(location) as lake:
        assert lake.query("SELECT version FROM lake.schema_version")["version"].to_list() == [1]


def test_rows_set_aside_before_there_were_times_get_that_of_their_ingest(location: str) -> None:
    first_lake(location)
    with Lake(location) as lake:
        at = dict(lake.query('SELECT source, "at" FROM lake.quarantine').rows())
    assert at == {"s": datetime(2024, 2, 1, tzinfo=UTC), "t": None}


def test_a_new_lake_has_the_version_of_this_code_and_opening_again_changes_nothing(location: str) -> None:
    for _ in range(2):
        with Lake(location) as lake:
            assert migrations.version(lake.db) == len(migrations.MIGRATIONS)
            snapshots = lake.query("SELECT count(*) AS n FROM ducklake_snapshots('lake')").item()
    with Lake(location) as lake:
        assert lake.query("SELECT count(*) AS n FROM ducklake_snapshots('lake')").item() == snapshots


def test_a_lake_newer_than_this_code_is_refused_and_left_alone(location: str) -> None:
    newer = len(migrations.MIGRATIONS) + 1
    with Lake(location) as lake:
        lake.transact(lambda: lake.db.execute("INSERT INTO lake.schema_version VALUES (?, now())", [newer]))
    with pytest.raises(
        InputError, match=f"can't be opened as a lake: its schema version is {newer}, .*newer one"
    ):
        Lake(location)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def add(*steps: migrations.Migration) -> None:
        monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, *steps))

    return add


def note(text: str) -> migrations.Migration:
    def step(db: duckdb.DuckDBPyConnection) -> None:
        db.execute("INSERT INTO lake.quarantine VALUES ('m', 'f', 1, ?, '', now())", [text])

    return step


def test_migrations_run_in_order_each_once(location: str, later: Callable[..., None]) -> None:
    with Lake(location):
        pass
    later(note("one"), note("two"))
    for _ in range(2):
        with Lake(location) as lake:
            assert migrations.version(lake.db) == len(migrations.MIGRATIONS)
            assert lake.query("FROM lake.quarantine")["reason"].to_list() == ["one", "two"]


def test_a_migration_that_fails_leaves_the_lake_as_it_was(
    location: str, later: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(db: duckdb.DuckDBPyConnection) -> None:
        db.execute("SELECT * FROM lake.nowhere")

    first_lake(location)
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, note("one"), fail))
        with pytest.raises(InputError, match="can't be opened"):
            Lake(location)
    with Lake(location) as lake:
        assert migrations.version(lake.db) == 1
        assert "one" not in lake.query("FROM lake.quarantine")["reason"].to_list()
        assert lake.query("SELECT count(*) FROM lake.requests").item() == 3005


def test_a_required_column_that_is_missing_is_told(location: str) -> None:
    first_lake(location)
    place = locate(location)
    db = connect(place)
    attach(db, place)
    db.execute("ALTER TABLE lake.requests DROP COLUMN prompt_tokens")
    db.close()
    with pytest.raises(InputError, match="table requests lacks the column prompt_tokens"):
        Lake(location)


def test_what_was_moved_opens(tmp_path: Path) -> None:
    first_lake(str(tmp_path / "a"))
    (tmp_path / "a").rename(tmp_path / "b")
    with Lake(tmp_path / "b") as lake:
        assert lake.query("SELECT count(*) FROM lake.requests").item() == 3005
