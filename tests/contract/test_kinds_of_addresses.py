"""Services and clients at every kind of address."""

import socket
import urllib.request
from pathlib import Path

import pytest

from penstock.errors import ConfigurationError
from penstock.machine.addresses import Address
from penstock.rpc.health import is_serving
from penstock.telemetry.metrics_server import MetricsServer
from tests.support.machine.timing import PATIENCE_S
from tests.support.services.ports import free_ports, release_ports
from tests.support.services.servers import Loopback, pass_windows, plan_with

PLAN = plan_with(batch_segments=2, fresh_segments=2)


@pytest.mark.parametrize("folder", [False, True], ids=["in messages", "mapped"])
@pytest.mark.parametrize("place", ["127.0.0.2", "::1", "localhost", "file"])
def test_windows_and_batches_pass_at_every_kind_of_address(
    loopback: Loopback, tmp_path: Path, place: str, folder: bool
) -> None:
    where = {"path": str(tmp_path / "replay.sock")} if place == "file" else {"host": place}
    server = loopback.replay(folder=tmp_path / "store" if folder else None, **where)
    assert is_serving(server.address, PATIENCE_S)
    pass_windows(loopback.sink(0, server), loopback.source(server, PLAN), 3)


@pytest.mark.parametrize("name", ["a b", "100%25", "#1", "which?", "é", "a:b", "[::]", "'\"&;\\"])
def test_the_path_of_a_socket_may_have_characters_with_a_meaning_in_uris(
    loopback: Loopback, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir()
    server = loopback.replay(folder=tmp_path / "store", path=str(tmp_path / name / "replay.sock"))
    assert (tmp_path / name / "replay.sock").is_socket()
    assert is_serving(server.address, PATIENCE_S)
    pass_windows(loopback.sink(0, server), loopback.source(server, PLAN), 3)


def test_two_services_can_not_have_one_socket_file(loopback: Loopback, tmp_path: Path) -> None:
    first = loopback.replay(path=str(tmp_path / "replay.sock"))
    with pytest.raises(ConfigurationError, match=r"can't listen on unix:.*another service uses it.*listen setting$"):
        loopback.replay(path=str(tmp_path / "replay.sock"))
    assert is_serving(first.address, PATIENCE_S)


def test_a_socket_file_that_a_killed_service_left_is_replaced(loopback: Loopback, tmp_path: Path) -> None:
    path = tmp_path / "replay.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    assert path.exists()
    assert is_serving(loopback.replay(path=str(path)).address, PATIENCE_S)


def test_a_socket_file_needs_its_folder(loopback: Loopback, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="folder does not exist"):
        loopback.replay(path=str(tmp_path / "missing" / "replay.sock"))


@pytest.mark.parametrize(
    ("host", "asked"), [("127.0.0.2", "127.0.0.2"), ("::1", "::1"), ("::", "::1"), ("::", "127.0.0.1")]
)
def test_metrics_are_served_on_hosts_of_both_families(host: str, asked: str) -> None:
    (port,) = free_ports(1)
    server = MetricsServer(host, port)
    try:
        with urllib.request.urlopen(f"http://{Address(asked, port)}/metrics", timeout=PATIENCE_S) as response:
            assert b"penstock_" in response.read()
    finally:
        server.close()
        release_ports()
