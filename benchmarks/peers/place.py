"""Where the server of a replay benchmark runs, and the bytes between it and its client.

Used on both sides. It imports nothing of Penstock, which is not installed in Reverb's environment.
"""

import argparse
from dataclasses import dataclass

import psutil

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a server, as the client sees it.

    Attributes:
        host: Address of the server.
        namespace: Network namespace of the server; empty for the client's own.
        interface: The client's network interface to the server.
    """

    host: str = LOOPBACK
    namespace: str = ""
    interface: str = "lo"

    @property
    def arguments(self) -> list[str]:
        """Options for the command line of either side."""
        options = ["--host", self.host, "--interface", self.interface]
        return [*options, "--namespace", self.namespace] if self.namespace else options

    @property
    def prefix(self) -> list[str]:
        """Words before the server's command."""
        return ["ip", "netns", "exec", self.namespace] if self.namespace else []

    def bytes_carried(self) -> int:
        """Returns the bytes between both sides since the machine started, in both directions, with all headers.

        On loopback, traffic of other processes is included.
        """
        counted = psutil.net_io_counters(pernic=True)[self.interface]
        # Loopback counts every packet on both sides.
        return counted.bytes_sent + (counted.bytes_recv if self.interface != "lo" else 0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `place_of` reads."""
    parser.add_argument("--host", default=LOOPBACK, help="address of the server")
    parser.add_argument("--namespace", default="", help="network namespace of the server")
    parser.add_argument("--interface", default="lo", help="the client's interface to the server")


def place_of(arguments: argparse.Namespace) -> Place:
    """Returns the place that the options give."""
    return Place(arguments.host, arguments.namespace, arguments.interface)
