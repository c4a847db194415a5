"""Addresses of services: host:port, [IPv6]:port, or unix:PATH for a socket file on this host.

No other module parses or joins addresses. In text, an IPv6 host is always in brackets; `Address.host` has none.
"""

import errno
import ipaddress
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote, unquote

_UNIX = "unix:"
_MAX_PATH_BYTES = 103 if sys.platform == "darwin" else 107
"""Bytes of a socket file's path that the system accepts: macOS fewer than Linux."""

LOOPBACK = "127.0.0.1"
ADDRESS_FILE = "file:"
"""Prefix of the path of a file with the addresses of a service, in place of an address."""
_ANY_HOSTS = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a service listens, or where a client reaches it.

    Attributes:
        host: Host name, IPv4 address or IPv6 address; empty for a socket file.
        port: Port; 0 for any free port, and for a socket file.
        path: Path of the socket file; empty for a port.
    """

    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Reads an address. Raises `ValueError` with the expected form."""
        if text.startswith(_UNIX):
            path = text.removeprefix(_UNIX)
            path = path.removeprefix("//") if path.startswith("///") else path
            if not path or len(path.encode()) > _MAX_PATH_BYTES or "\0" in path or "," in path:
                raise ValueError(
                    f"must have a path of 1 to {_MAX_PATH_BYTES} bytes without commas after unix:; got {text!r}"
                )
            return cls(path=path)
        host, colon, port = text.rpartition(":")
        if not colon or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
            raise ValueError(f"must be host:port, [IPv6]:port or unix:PATH, such as 10.0.0.1:7431; got {text!r}")
        return cls(_host_of(host, text), int(port))

    def __str__(self) -> str:
        if self.path:
            return f"{_UNIX}{self.path}"
        return f"{shown_host(self.host)}:{self.port}"

    @property
    def is_any(self) -> bool:
        """Whether it means all networks of a host."""
        return self.host in _ANY_HOSTS

    @property
    def is_local(self) -> bool:
        """Whether only processes of this host can reach it: a socket file, or a loopback host."""
        return bool(self.path) or is_loopback(self.host)

    def at(self, port: int) -> "Address":
        """Returns this address with the port that a server was given for port 0. A socket file has no port."""
        return self if self.path else replace(self, port=port)


def target(address: str) -> str:
    """Returns an address as gRPC reads it: for gRPC a socket file is a URI, in which some characters have a meaning."""
    return f"{_UNIX}{quote(address.removeprefix(_UNIX))}" if address.startswith(_UNIX) else address


def shown_host(host: str) -> str:
    """Returns a host as addresses have it: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Returns whether a host is this one alone: localhost, or an address such as 127.0.0.1 or ::1."""
    found = ip_of(host)
    return host.lower().rstrip(".") == "localhost" if found is None else found.is_loopback


def ip_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Returns the address in a host's text, IPv4 also if it is mapped into IPv6; None for a name."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def client_host(peer: str) -> str:
    """Returns the IP address in gRPC's name of a client, such as `ipv6:%5B::1%5D:50051`; empty for a socket file."""
    kind, _, address = peer.partition(":")
    if kind == "unix":
        return ""
    host = Address.parse(unquote(address)).host
    return str(ip_of(host) or host)


def is_of_this_host(host: str) -> bool:
    """Returns whether a host is this one: its name, localhost, or an address of one of its networks."""
    found = ip_of(host)
    if is_loopback(host) or host.lower() == socket.gethostname().lower():
        return True
    if found is None or found.is_unspecified or found.is_multicast:
        return False
    with socket.socket(socket.AF_INET if found.version == 4 else socket.AF_INET6) as probe:
        try:
            probe.bind((str(found), 0))
        except OSError:
            return False
    return True


def parse_name(text: str) -> Address:
    """Reads a name by which others reach a service: a host or an address. The port is 0 if there is none.

    Raises `ValueError` with the expected form.
    """
    bare = text.removeprefix("[").removesuffix("]")
    if _is_ip(bare):
        return Address(bare)
    if ":" not in text:
        return Address(_host_of(text, text))
    return Address.parse(text)


def advertised(listening: Address, names: Sequence[str]) -> tuple[str, ...]:
    """Returns the addresses by which others reach a server, the preferred one first.

    Args:
        listening: Address of the server, with the port that it was given.
        names: Configured names, as `parse_name` reads them. Without any, the server's own host, or this host's name if
            it listens on all networks.
    """
    if listening.path:
        # A client may have another working directory.
        return (str(replace(listening, path=str(Path(listening.path).absolute()))),)
    if not names:
        host = socket.gethostname() if listening.is_any else listening.host
        return (str(replace(listening, host=host)),)
    parsed = map(parse_name, names)
    # One port per name: behind a translation of addresses, it may be another one.
    return tuple(dict.fromkeys(str(name if name.port or name.path else name.at(listening.port)) for name in parsed))


def preferred(stated: Sequence[str], dialled: str) -> tuple[str, ...]:
    """Returns the addresses to give to clients of a service that states `stated` and was reached at `dialled`.

    The one at which it was reached comes last, for clients that do not know the stated names. Addresses that only one
    host can use are left out if there are others.
    """
    names = tuple(dict.fromkeys((*stated, dialled)))
    shared = tuple(name for name in names if not Address.parse(name).is_local)
    return shared or names


def _host_of(host: str, text: str) -> str:
    """Checks and returns the host of an address. Raises `ValueError`."""
    inner = host[1:-1] if host.startswith("[") and host.endswith("]") else ""
    if inner and ":" in inner and _is_ip(inner):
        return inner
    if ":" in host or "[" in host or "]" in host:
        raise ValueError(f"must have an IPv6 address in brackets, such as [fd00::1]:7431; got {text!r}")
    if not host or any(character.isspace() or character in "/,@" for character in host):
        raise ValueError(f"must begin with a host's name or address; got {text!r}")
    return host


def _is_ip(host: str) -> bool:
    return ip_of(host) is not None


def port_refusal(host: str, port: int) -> str | None:
    """Returns the reason why a server can't listen on this address now; None if it can. IPv6 has no brackets."""
    try:
        # Its error is lost in `create_server`.
        socket.getaddrinfo(host, port)
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            return None
    except socket.gaierror:
        return "unknown host"
    except OSError as error:
        return "in use" if error.errno == errno.EADDRINUSE else os.strerror(error.errno or 0).lower()
