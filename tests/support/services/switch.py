"""Hosts of a simulated cluster: network namespaces of this machine, joined by a bridge in the kernel.

The bridge has a namespace of its own too, where this machine's firewall does not apply, such as the one that Docker
sets up. Each host has its own interfaces, loopback included, so processes on two hosts share neither ports nor local
sockets. They share the machine's processors, memory and file system. For links with delay, loss and limited rate, see
`tests.support.services.link`. It needs root and `ip` of iproute2.
"""

import contextlib
import os
import secrets
import shutil
import subprocess
from dataclasses import dataclass
from types import TracebackType

_PREFIX_BITS = 24


def unavailable() -> str:
    """Returns the reason why this machine can't simulate hosts; empty if it can."""
    if os.geteuid() != 0:
        return "simulated hosts need root"
    if shutil.which("ip") is None:
        return "simulated hosts need `ip` of iproute2"
    try:
        with Switch() as switch:
            switch.host()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"simulated hosts need network namespaces and bridges: {error}"
    return ""


@dataclass(frozen=True, slots=True)
class SwitchedHost:
    """One host: its namespace, and its address, which the other hosts and this machine reach."""

    namespace: str
    address: str

    def command(self, *command: str) -> list[str]:
        """Returns the command line that runs this command on the host."""
        return ["ip", "netns", "exec", self.namespace, *command]


class Switch:
    """A switch with hosts. Leaving the context removes them; the caller ends their processes."""

    def __init__(self) -> None:
        """Creates the bridge. Raises OSError or `subprocess.CalledProcessError` if that fails."""
        # 198.18.0.0/15 is reserved for tests between networks (RFC 2544). Random, because test runs share the machine.
        self._network = f"198.{18 + secrets.randbelow(2)}.{secrets.randbelow(256)}"
        self._name = "sw" + secrets.token_hex(4)
        self._namespace = f"penstock-{self._name}"
        self._hosts: list[SwitchedHost] = []
        _ip("netns", "add", self._namespace)
        _ip("-n", self._namespace, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._namespace, "link", "set", "bridge", "up")
        self._plug(1)
        _ip("address", "add", f"{self._network}.1/{_PREFIX_BITS}", "dev", self._device(1))
        _ip("link", "set", self._device(1), "up")

    def __enter__(self) -> "Switch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for namespace in (*(host.namespace for host in self._hosts), self._namespace):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", namespace)
        # The kernel removes it with the other end, which processes that still end may keep for a moment.
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "delete", self._device(1))

    def host(self) -> SwitchedHost:
        """Adds a host."""
        number = len(self._hosts) + 2
        host = SwitchedHost(f"{self._namespace}-{number}", f"{self._network}.{number}")
        _ip("netns", "add", host.namespace)
        self._hosts.append(host)
        self._plug(number)
        device = self._device(number)
        _ip("link", "set", device, "netns", host.namespace)
        _ip("-n", host.namespace, "address", "add", f"{host.address}/{_PREFIX_BITS}", "dev", device)
        for name in ("lo", device):
            _ip("-n", host.namespace, "link", "set", name, "up")
        return host

    def _device(self, number: int) -> str:
        return f"{self._name}n{number}"

    def _plug(self, number: int) -> None:
        """Creates a cable from the bridge to the device of this number, which is on this machine at first."""
        port = f"{self._name}p{number}"
        _ip("link", "add", self._device(number), "type", "veth", "peer", "name", port)
        _ip("link", "set", port, "netns", self._namespace)
        _ip("-n", self._namespace, "link", "set", port, "master", "bridge", "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
