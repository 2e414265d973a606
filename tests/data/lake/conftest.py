"""Every catalog that a lake may have: a folder, and a database of a PostgreSQL that the tests start."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest


def binaries() -> Path | None:
    """Folder of PostgreSQL's programs: Debian keeps them off the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    on_path = shutil.which("postgres")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


def plain_user() -> dict[str, object]:
    """Who runs the server: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    names = {entry.pw_name for entry in pwd.getpwall()}
    user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[tuple[Path, Path]]:
    """Programs and socket folder of a PostgreSQL that lives as long as the tests."""
    programs = binaries()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    who = plain_user()
    # Not pytest's folder: its parents are closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="tidegate-pg-"))
    if "user" in who:
        os.chown(folder, int(str(who["user"])), int(str(who["group"])))
    initdb = [
        programs / "initdb",
        "-D",
        folder / "db",
        "-A",
        "trust",
        "-U",
        "tide",
        "--no-sync",
        "-E",
        "UTF8",
    ]
    subprocess.run(initdb, check=True, capture_output=True, cwd="/", **who)  # type: ignore[call-overload]
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": folder,
        "fsync": "off",
        "max_connections": 60,
        "shared_buffers": "16MB",
    }
    options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
    with (folder.parent / f"{folder.name}.log").open("w+") as log:
        server = subprocess.Popen(
            [programs / "postgres", "-D", folder / "db", *options], stdout=log, stderr=log, cwd="/", **who
        )  # type: ignore[call-overload]
        try:
            while subprocess.run([programs / "pg_isready", "-q", "-h", folder]).returncode:
                assert server.poll() is None, Path(log.name).read_text()
                time.sleep(0.05)
            yield programs, folder
        finally:
            server.terminate()
            server.wait()
            shutil.rmtree(folder)
            Path(log.name).unlink()


@pytest.fixture(params=["sqlite", "postgres"])
def new_location(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Makes places for new lakes, one after the other."""
    made = 0

    def make() -> str:
        nonlocal made
        made += 1
        data = tmp_path / f"lake-{made}"
        if request.param == "sqlite":
            return str(data)
        programs, folder = request.getfixturevalue("postgres_server")
        database = f"lake_{abs(hash(data)):x}"
        subprocess.run([programs / "createdb", "-h", folder, "-U", "tide", database], check=True)
        return f"postgresql://tide@{quote(str(folder), safe='')}/{database}?data={quote(str(data))}"

    return make


@pytest.fixture
def location(new_location: Callable[[], str]) -> str:
    """A place for a new lake."""
    return new_location()
