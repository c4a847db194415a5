"""A link to another host with packet loss, delay and limited rate, and a middlebox that forgets idle connections.

The other host is a network namespace of this machine. A link is a TUN device on each side, and a thread that carries IP
packets between the two. It needs root, `ip` of iproute2 and /dev/net/tun, but no netem in the kernel.
"""

import fcntl
import heapq
import math
import os
import random
import secrets
import select
import shutil
import struct
import subprocess
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

_TUN = Path("/dev/net/tun")
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_MTU = 1_500
_TCP, _SYN, _ACK = 6, 0x02, 0x10
UNDISTURBED_BYTES_PER_S = 4e6
"""Rate of 32 Mbit/s, which leaves the CPU to the tested services."""

_CARRIER_NICENESS = -20

_QUEUE_BYTES = 128 * 2**10
"""Bytes that wait for a slow link; further packets are lost, as in a switch."""


def unavailable() -> str:
    """Returns the reason why this machine can't create links; empty if it can."""
    if os.geteuid() != 0:
        return "links need root"
    if shutil.which("ip") is None:
        return "links need `ip` of iproute2"
    try:
        with Host() as host:
            host.link()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"links need network namespaces and {_TUN}: {error}"
    return ""


@dataclass
class Direction:
    """Treatment of packets in one direction; may be changed at any time.

    Attributes:
        cut: Whether all packets are lost.
        delay_s: Delay of each packet in seconds.
        loss: Share of packets that are lost, 0 to 1.
        bytes_per_s: Rate of the link.
        lost: Packets lost so far.
        carried_bytes: Bytes of the packets that were not lost so far.
    """

    cut: bool = False
    delay_s: float = 0.0
    loss: float = 0.0
    bytes_per_s: float = UNDISTURBED_BYTES_PER_S
    lost: int = 0
    carried_bytes: int = 0


class Middlebox:
    """A stateful middlebox, such as a firewall, NAT or IPVS: it drops the packets of TCP connections that it forgot.

    Attributes:
        forgets_after_s: Seconds without a packet after which a connection is forgotten; may be changed at any time.
        forgotten: Connections of which a packet was dropped.
    """

    def __init__(self) -> None:
        self.forgets_after_s, self.forgotten = math.inf, 0
        self._seen_at: dict[frozenset[bytes], float] = {}
        self._dead: set[frozenset[bytes]] = set()

    def drops(self, packet: bytes, now: float) -> bool:
        """Returns whether it drops an IP packet at this monotonic time. All but TCP over IPv4 passes."""
        if packet[0] >> 4 != 4 or packet[9] != _TCP:
            return False
        start = 4 * (packet[0] & 0x0F)
        ports, flags = packet[start : start + 4], packet[start + 13]
        connection = frozenset((packet[12:16] + ports[:2], packet[16:20] + ports[2:]))
        opens = flags & (_SYN | _ACK) == _SYN
        idle_s = now - self._seen_at.get(connection, -math.inf)
        if not opens and (connection in self._dead or self.forgets_after_s < idle_s < math.inf):
            self.forgotten += connection not in self._dead
            self._dead.add(connection)
            return True
        self._dead.discard(connection)
        self._seen_at[connection] = now
        return False


class Link:
    """One link between this host and another.

    Attributes:
        here, there: Addresses of both ends.
        to_there, to_here: The two directions.
        middlebox: Middlebox in the link, which forgets nothing at first.
    """

    def __init__(self, namespace: str) -> None:
        """Creates both devices. Raises OSError or `subprocess.CalledProcessError` if that fails."""
        # 198.18.0.0/15 is reserved for tests between networks (RFC 2544). Random, because test runs share the machine.
        network = f"198.{18 + secrets.randbelow(2)}.{secrets.randbelow(256)}."
        first = 4 * secrets.randbelow(64)
        self.here, self.there = f"{network}{first + 1}", f"{network}{first + 2}"
        self.to_there, self.to_here, self.middlebox = Direction(), Direction(), Middlebox()
        self._random = random.Random(first)
        self._stopping = threading.Event()
        name = "tun" + secrets.token_hex(5)
        near_name, far_name = name + "n", name + "f"
        with ExitStack() as undo:
            self._devices = near, far = _open_device(near_name), _open_device(far_name)
            undo.callback(os.close, near)
            undo.callback(os.close, far)
            _ip("link", "set", far_name, "netns", namespace)
            _configure(near_name, self.here)
            _configure(far_name, self.there, "-n", namespace)
            undo.pop_all()
        self._thread = threading.Thread(target=self._carry, name=f"link to {self.there}", daemon=True)
        self._thread.start()

    def set(self, **values: float) -> None:
        """Sets these attributes for both directions."""
        for direction in (self.to_there, self.to_here):
            for name, value in values.items():
                setattr(direction, name, value)

    def cut(self, *directions: str) -> None:
        """Drops all packets of these directions, "to_there" or "to_here"."""
        for name in directions:
            getattr(self, name).cut = True

    def mend(self) -> None:
        """Restores both directions."""
        self.set(cut=False, delay_s=0.0, loss=0.0, bytes_per_s=UNDISTURBED_BYTES_PER_S)

    def close(self) -> None:
        """Removes both devices."""
        self._stopping.set()
        self._thread.join()
        for device in self._devices:
            os.close(device)

    def _carry(self) -> None:
        # Otherwise the load of the tested services would delay packets too. Linux gives each thread its own priority.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _CARRIER_NICENESS)
        near, far = self._devices
        routes = {near: (far, self.to_there), far: (near, self.to_here)}
        free_at = dict.fromkeys(self._devices, 0.0)
        travelling: list[tuple[float, int, int, bytes]] = []
        number = 0
        while not self._stopping.is_set():
            due_s = travelling[0][0] - time.monotonic() if travelling else 0.1
            readable, _, _ = select.select(self._devices, (), (), min(max(due_s, 0.0), 0.1))
            now = time.monotonic()
            for device in readable:
                packet = os.read(device, 65_536)
                direction = routes[device][1]
                free = max(now, free_at[device])
                full = (free - now) * direction.bytes_per_s > _QUEUE_BYTES
                lost = direction.cut or full or self._random.random() < direction.loss
                if lost or self.middlebox.drops(packet, now):
                    direction.lost += 1
                    continue
                direction.carried_bytes += len(packet)
                free_at[device] = free + len(packet) / direction.bytes_per_s
                number += 1
                heapq.heappush(travelling, (free_at[device] + direction.delay_s, number, device, packet))
            while travelling and travelling[0][0] <= now:
                _, _, device, packet = heapq.heappop(travelling)
                target, _ = routes[device]
                # A device without its other end accepts no packets.
                with suppress(OSError):
                    os.write(target, packet)


class Host:
    """Another host: a network namespace. Leaving the context removes its links; the caller ends its processes."""

    def __init__(self) -> None:
        """Creates the namespace. Raises OSError or `subprocess.CalledProcessError` if that fails."""
        self.namespace = f"penstock-{os.getpid()}-{secrets.token_hex(4)}"
        self._links: list[Link] = []
        _ip("netns", "add", self.namespace)
        _ip("-n", self.namespace, "link", "set", "lo", "up")

    def __enter__(self) -> "Host":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for link in self._links:
            link.close()
        _ip("netns", "delete", self.namespace)

    def link(self) -> Link:
        """Creates a link from this host."""
        link = Link(self.namespace)
        self._links.append(link)
        return link

    def command(self, *command: str) -> list[str]:
        """Returns the command line that runs this command on the other host."""
        return ["ip", "netns", "exec", self.namespace, *command]


def _open_device(name: str) -> int:
    device = os.open(_TUN, os.O_RDWR)
    try:
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    except OSError:
        os.close(device)
        raise
    return device


def _configure(name: str, address: str, *where: str) -> None:
    _ip(*where, "address", "add", f"{address}/30", "dev", name)
    _ip(*where, "link", "set", name, "up", "mtu", str(_MTU))


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
