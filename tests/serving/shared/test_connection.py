"""TLS, users with few rights, and clusters, against real servers."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from data.errors import InputError
from serving.shared.connection import PASSWORD, connect
from serving.shared.settings import SharedSettings
from tests.serving.shared.replicas import QUOTA, Replica, run

SECRET = "geheim-und-lang"
RIGHTS = "~{tidegate}:* +evalsha +script|load +time +hgetall +hset +hdel +pexpire +select"


def certificates(folder: Path) -> None:
    """An authority, and a certificate of it for 127.0.0.1 that serves both sides."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    for command in (
        ["req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority", "-days", "2"],
        ["req", *key, "-keyout", "store.key", "-out", "store.csr", "-subj", "/CN=store"],
        [
            *["x509", "-req", "-in", "store.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"],
            *["-out", "store.pem", "-days", "2", "-extfile", "names"],
        ],
    ):
        subprocess.run([openssl, *command], cwd=folder, check=True, capture_output=True)


def exchanged(url: str, **told: Any) -> tuple[bool, int]:
    """Whether a replica's exchange was answered, and how many were not."""
    seen: list[tuple[bool, int]] = []

    async def test() -> None:
        replica = Replica(url, QUOTA, lease_s=8.0, **told)  # a TLS handshake has 2 s on a busy machine
        seen.append((await replica.sharing.exchange(), replica.sharing.failures))

    run(test())
    return seen[0]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def test_tls_checks_the_server_and_shows_a_certificate(own, tmp_path):
    certificates(tmp_path)
    port = free_port()
    files = {"cert": "store.pem", "key": "store.key", "ca-cert": "ca.pem"}
    tls = [part for name, file in files.items() for part in (f"--tls-{name}-file", str(tmp_path / file))]
    own.start(
        "--tls-port", str(port), *tls
    )  # it asks clients for a certificate, as redis-server does unless told
    url = f"rediss://127.0.0.1:{port}/0"
    shown = {"cert_file": tmp_path / "store.pem", "cert_key_file": tmp_path / "store.key"}

    assert exchanged(url, ca_file=tmp_path / "ca.pem", **shown) == (True, 0)
    assert exchanged(url, ca_file=tmp_path / "ca.pem") == (False, 1)  # no certificate
    assert exchanged(url, **shown) == (False, 1)  # an authority that nobody knows
    assert exchanged(f"rediss://127.0.0.1:{own.port}/0", ca_file=tmp_path / "ca.pem", **shown) == (False, 1)


@pytest.mark.parametrize("where", ["environment", "file", "url"])
def test_a_user_with_few_rights_is_enough_and_its_password_shows_nowhere(
    own, tmp_path, monkeypatch, caplog, where
):
    own.start()
    own.client.execute_command("ACL", "SETUSER", "tide", "on", f">{SECRET}", *RIGHTS.split())
    told: dict[str, Any] = {}
    url = f"redis://tide@127.0.0.1:{own.port}/0"
    if where == "environment":
        monkeypatch.setenv(PASSWORD, SECRET)
    elif where == "file":
        (tmp_path / "password").write_text(f"{SECRET}\n")
        (tmp_path / "password").chmod(0o600)
        told["password_file"] = tmp_path / "password"
    else:
        url = url.replace("@", f":{SECRET}@")

    assert exchanged(url, **told) == (True, 0)
    own.client.execute_command("ACL", "SETUSER", "tide", "-hset")
    assert exchanged(url, **told) == (False, 1)
    assert SECRET not in str([record.__dict__ for record in caplog.records])
    assert SECRET not in repr(SharedSettings(url, **told))


def test_a_password_that_changes_in_its_file_counts_from_the_next_connection_on(own, tmp_path):
    file = tmp_path / "password"

    def write(text: str) -> None:
        file.write_text(text)
        file.chmod(0o600)

    async def test() -> None:
        own.start("--requirepass", "first-password")
        write("first-password")
        replica = Replica(own.url, QUOTA, password_file=file)
        assert await replica.sharing.exchange()
        admin = redis.Redis.from_url(own.url, password="first-password")
        admin.config_set("requirepass", "second-password")
        admin.client_kill_filter(_type="normal", skipme=False)
        admin.close()
        assert not await replica.sharing.exchange()
        write("second-password")
        assert not await replica.sharing.exchange()  # its connection was made with the first
        assert await replica.sharing.exchange()

    own.client.connection_pool.connection_kwargs["password"] = "first-password"
    run(test())


def test_files_that_can_not_be_read_are_told_at_the_start(tmp_path):
    (tmp_path / "password").write_text(SECRET)
    (tmp_path / "password").chmod(0o644)
    for told in ({"password_file": tmp_path / "password"}, {"ca_file": tmp_path / "none.pem"}):
        with pytest.raises(InputError, match=r"only its owner|can't be read") as refused:
            connect(SharedSettings("rediss://store", **told))
        assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"url": "redis://tide:a/b@store"}, "written as %2F"),
        ({"url": "redis://store", "ca_file": Path("ca.pem")}, "need a url that starts with rediss://"),
        ({"url": "rediss://store", "cert_file": Path("a.pem")}, "must both be set, or neither"),
    ],
)
def test_settings_of_a_connection_that_can_not_work_are_refused(told, message):
    with pytest.raises(InputError, match=message) as refused:
        SharedSettings(**told)
    assert "a/b" not in str(refused.value)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[redis.Redis]]:
    """Two nodes, each with half of the slots."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    nodes: list[redis.Redis] = []
    processes = []
    for number in range(2):
        port, folder = free_port(), tmp_path / str(number)
        folder.mkdir()
        command = [
            "redis-server",
            "--port",
            str(port),
            "--cluster-port",
            str(free_port()),
            "--bind",
            "127.0.0.1",
        ]
        command += ["--cluster-enabled", "yes", "--save", "", "--dir", str(folder)]
        processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        nodes.append(redis.Redis(port=port, decode_responses=True))
    try:
        for number, node in enumerate(nodes):
            patiently(node.ping)
            node.execute_command("CLUSTER", "ADDSLOTSRANGE", 8192 * number, 8192 * number + 8191)
            node.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        other = nodes[1].connection_pool.connection_kwargs["port"]
        bus = nodes[1].config_get("cluster-port")["cluster-port"]
        nodes[0].execute_command("CLUSTER", "MEET", "127.0.0.1", other, bus)
        for node in nodes:
            patiently(
                lambda node=node: "cluster_state:ok" in told(node) and "cluster_known_nodes:2" in told(node)
            )
        yield nodes
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for node in nodes:
            node.close()


def told(node: redis.Redis) -> str:
    return str(node.execute_command("CLUSTER", "INFO"))


def patiently(true: Any) -> None:
    for _ in range(2_000):
        try:
            if true():
                return
        except redis.ConnectionError:
            pass
        time.sleep(0.01)
    raise RuntimeError("the cluster did not come up")


def test_any_node_of_a_cluster_will_do_and_all_keys_lie_in_one_slot(cluster):
    """Without their hash tag most would lie elsewhere: members, pools of what is held and of a quota."""

    async def test() -> None:
        for node in cluster:
            port = node.connection_pool.connection_kwargs["port"]
            replica = Replica(f"redis://127.0.0.1:{port}/0", QUOTA)
            assert await replica.sharing.exchange()
            assert (await replica.admit()).admitted
            assert await replica.sharing.exchange()
            assert replica.sharing.failures == 0

    run(test())
    held = [set(node.keys("*")) for node in cluster]
    assert sorted(map(len, held))[0] == 0
    assert max(map(len, held)) >= 4
    assert len({cluster[0].cluster("keyslot", key) for key in set.union(*held)}) == 1
