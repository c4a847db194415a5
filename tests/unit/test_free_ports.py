"""Ports for servers of tests."""

import socket
import subprocess
import sys

import pytest

from penstock.machine.addresses import port_refusal
from tests.support.services import ports

OTHER_TEST = """
import sys
sys.path[:0] = {path!r}
from tests.support.services import ports
ports._PORTS = range({first}, {first} + 3)
print(*ports.free_ports(2), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def first(monkeypatch: pytest.MonkeyPatch) -> int:
    """Restricts the choice to three consecutive free ports, and returns the first."""
    for port in ports.free_ports(100):
        if port + 2 in ports._PORTS and all(port_refusal("127.0.0.1", port + more) is None for more in range(3)):
            break
    ports.release_ports()
    monkeypatch.setattr(ports, "_PORTS", range(port, port + 3))
    return port


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has abstract addresses")
def test_tests_that_run_together_choose_different_ports(first: int) -> None:
    script = OTHER_TEST.format(path=sys.path, first=first)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        taken = {int(port) for port in other.stdout.readline().split()}
        assert len(taken) == 2
        (left,) = ports.free_ports(1)
        assert {left, *taken} == {first, first + 1, first + 2}
        with pytest.raises(RuntimeError, match="1 free ports are needed between"):
            ports.free_ports(1)
        other.kill()
    assert set(ports.free_ports(2)) == taken
    ports.release_ports()
    assert len(ports.free_ports(3)) == 3
    ports.release_ports()


def test_a_port_on_which_a_process_listens_is_not_chosen(first: int) -> None:
    with socket.create_server(("127.0.0.1", first + 1)):
        assert set(ports.free_ports(2)) == {first, first + 2}
    ports.release_ports()
