"""Where a lake lives: one setting, a folder or the URL of a PostgreSQL database."""

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from data.errors import InputError

DATA = "var/lake/data"
"""Folder of the Parquet files beside a PostgreSQL catalog, when the URL names none."""

_SCHEMES = ("postgresql", "postgres")
_SECRET_KEYS = ("password", "passfile", "sslpassword")


@dataclass(frozen=True, slots=True)
class Location:
    """A lake's place.

    Attributes:
        name: for people: the folder, or the URL without credentials and options.
        data: folder of the Parquet files, on this machine.
        locks: folder of the lock files.
        catalog: what DuckLake attaches; may hold a password.
        options: options of the attachment, as SQL.
        secrets: texts that no message may hold.

    """

    name: str
    data: Path
    locks: Path
    catalog: str = field(repr=False)
    options: str
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def scrubbed(self, text: str) -> str:
        """The text without the credentials."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


def locate(location: str | Path) -> Location:
    """The place that a setting names.

    >>> locate("postgresql://tide:geheim@db:5432/lake?data=/srv/tide").name
    'postgresql://tide@db:5432/lake'

    Raises:
        InputError: when it is neither a folder nor such a URL.

    """
    text = str(location)
    scheme = text.partition("://")[0] if "://" in text else ""
    if scheme in _SCHEMES:
        return _postgres(text)
    if scheme:
        raise InputError(
            "a lake must be a folder or postgresql://user@host:port/database; "
            f"got an address that starts with '{scheme}://'"
        )
    if not text:
        raise InputError("a lake must be a folder or postgresql://user@host:port/database; got ''")
    folder = Path(text).resolve()
    return Location(
        name=str(folder),
        data=folder / "data",
        locks=folder,
        catalog=f"sqlite:{folder / 'catalog.sqlite'}",
        # Without WAL a reader can make SQLite's COMMIT fail, which leaves the catalog locked for all.
        options="META_JOURNAL_MODE 'WAL', META_BUSY_TIMEOUT 2000",
    )


def _postgres(url: str) -> Location:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InputError(
            "a lake's URL must have the form postgresql://user@host:port/database; "
            "got one whose host or port is malformed (write special characters in a password as %XX)"
        ) from error
    user, database = unquote(parts.username or ""), parts.path.strip("/")
    if not database:
        raise InputError(
            "a lake's URL must name a database, as in postgresql://user@host:port/database; got none"
        )
    query = parse_qsl(parts.query, keep_blank_values=True)
    data = Path(dict(query).get("data") or DATA)
    if "://" in str(dict(query).get("data")):
        raise InputError("a lake's data= must be a folder of this machine; got an address with a scheme")
    data = data.resolve()
    others = [(key, value) for key, value in query if key != "data"]
    secrets = [parts.password or "", *(value for key, value in others if key in _SECRET_KEYS)]
    forms = {form for text in secrets if text for form in (text, unquote(text), quote(text, safe=""))}
    host = parts.hostname or ""
    place = f"{quote(user, safe='') + '@' if user else ''}{host}{f':{port}' if port else ''}"
    return Location(
        name=urlunsplit(("postgresql", place, f"/{database}", "", "")),
        data=data,
        locks=data,
        catalog="postgres:"
        + urlunsplit(("postgresql", parts.netloc, f"/{database}", urlencode(others, quote_via=quote), "")),
        options="",
        secrets=tuple(sorted(forms, key=len, reverse=True)),  # so that no secret is cut by a part of it
    )
