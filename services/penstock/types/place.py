"""Where a service is found."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Addresses of a service, the preferred one first, and its identity; the fields are those of the contract's Place.

    The identity distinguishes the service from one of another run that has the same address later; 0: unknown.
    """

    addresses: tuple[str, ...] = ()
    identity: int = 0
