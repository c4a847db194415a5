"""Where a service is found, and where it runs."""

from dataclasses import dataclass

MAX_NAME = 253
"""Characters of the longest name of a node or job, which equals the longest name of a host."""


@dataclass(frozen=True, slots=True)
class Place:
    """Addresses of a service, the preferred one first, and its identity, with the fields of the contract's Place.

    The identity distinguishes the service from one of another run that has the same address later; 0: unknown.
    """

    addresses: tuple[str, ...] = ()
    identity: int = 0


@dataclass(frozen=True, slots=True)
class Location:
    """Where a service runs, with the fields of the contract's Location."""

    node: str = ""
    job: str = ""
    metrics_address: str = ""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a client is connected from, as the server sees it.

    Attributes:
        host: IP address; empty for a socket file of this host.
        names: Names and addresses in the client's certificate; none without certificates.
    """

    host: str = ""
    names: frozenset[str] = frozenset()


UNKNOWN = Location()
"""Location of a service of an older release."""
