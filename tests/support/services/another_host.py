"""Clients of this process as on another host: they find no Unix socket of a server, and connect to its port."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random

from penstock.rpc import direct_offers


class Links:
    """The connections to ports that clients of this process have made. Any thread may cut one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: list[socket.socket] = []

    def cut(self, random: Random) -> bool:
        """Cuts one of the open connections, which neither side has ended. Returns whether there was one."""
        with self._lock:
            self._made = [each for each in self._made if each.fileno() >= 0]
            open_ones = list(self._made)
        if not open_ones:
            return False
        with suppress(OSError):
            random.choice(open_ones).shutdown(socket.SHUT_RDWR)
        return True

    async def dial(self, host: str, port: int) -> socket.socket:
        """Connects as clients do."""
        made = await _DIAL(host, port)
        with self._lock:
            self._made.append(made)
        return made


_DIAL = direct_offers._dialled


@contextmanager
def as_from_another_host() -> Iterator[Links]:
    """Yields the connections that are made within the block."""

    async def refuse(name: str) -> socket.socket:
        raise ConnectionRefusedError(name)

    links, former = Links(), direct_offers._to_name
    direct_offers._to_name, direct_offers._dialled = refuse, links.dial
    try:
        yield links
    finally:
        direct_offers._to_name, direct_offers._dialled = former, _DIAL
