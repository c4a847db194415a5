"""Free ports for servers of tests and benchmarks."""

import random
import socket
import sys

from penstock.machine.addresses import port_refusal

_PORTS = range(20_000, 32_768)
"""Ports below the range that Linux uses for outgoing connections, so that none of them takes a chosen port."""

_reserved: dict[int, socket.socket] = {}
"""Reservations of this process, by port."""


def free_ports(count: int) -> list[int]:
    """Returns loopback ports that are free now, and reserves them until `release_ports` or the end of this process.

    A port stays free until its service listens, so tests that run together could choose the same one. On Linux a
    reservation keeps other processes from choosing it. Raises `RuntimeError` if there are too few.
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        if port_refusal("127.0.0.1", port) is None and _reserve(port):
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(
        f"{count} free ports are needed between {_PORTS.start} and {_PORTS.stop}, but only {len(found)} were found;"
        " stop other servers on this machine"
    )


def release_ports() -> None:
    """Ends all reservations of this process."""
    while _reserved:
        _reserved.popitem()[1].close()


def _reserve(port: int) -> bool:
    """Reserves the port for this process; returns False if another process has reserved it."""
    if sys.platform != "linux":
        return True
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        # An abstract address is in no file system, and the kernel frees it when its process ends.
        mark.bind(f"\0penstock-port-{port}")
    except OSError:
        mark.close()
        return False
    _reserved[port] = mark
    return True
