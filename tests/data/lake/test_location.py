import traceback
from pathlib import Path

import pytest

from data.errors import InputError
from data.lake import Lake
from data.lake.location import DATA, locate


def test_a_folder() -> None:
    place = locate("some/lake")
    assert place.name == str(Path("some/lake").resolve())
    assert place.data == Path("some/lake/data").resolve()
    assert place.catalog == f"sqlite:{Path('some/lake/catalog.sqlite').resolve()}"
    assert locate(Path("some/lake")) == place


def test_a_postgres_url() -> None:
    place = locate("postgresql://tide:p%40ss@db.example:5432/lake?data=/srv/tide&sslmode=require")
    assert place.name == "postgresql://tide@db.example:5432/lake"
    assert place.data == Path("/srv/tide")
    assert (
        place.catalog == "postgres:postgresql://tide:p%40ss@db.example:5432/lake?sslmode=require"
    )  # what is ours is not PostgreSQL's
    assert locate("postgres://db/lake").data == Path(DATA).resolve()


@pytest.mark.parametrize(
    ("location", "sentence"),
    [
        ("mysql://tide:geheim@db/lake", r"folder or postgresql://user@host:port/database; .* 'mysql://'"),
        ("s3://bucket/lake", r"'s3://'"),
        ("", "got ''"),
        ("postgresql://tide:geheim@db", "must name a database"),
        ("postgresql://tide:geheim@db:port/lake", "host or port is malformed"),
        ("postgresql://tide:geheim@db/lake?data=s3://bucket", "data= must be a folder of this machine"),
    ],
)
def test_what_is_no_location(location: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as told:
        locate(location)
    assert "geheim" not in "".join(traceback.format_exception_only(told.value))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://tide:geh%2Beim@127.0.0.1:1/lake",
        "postgresql://tide@127.0.0.1:1/lake?password=geh%2Beim",
    ],
)
def test_a_password_is_in_no_message(url: str, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"postgresql://tide@127.0.0.1:1/lake can't be opened as a lake"
    ) as told:
        Lake(f"{url}&data={tmp_path}" if "?" in url else f"{url}?data={tmp_path}")
    whole = "".join(traceback.format_exception(told.value))
    assert "geh%2Beim" not in whole
    assert "geh+eim" not in whole
    assert "geh" not in repr(locate(url))
