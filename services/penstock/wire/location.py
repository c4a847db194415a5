"""Conversion of places and locations of services."""

import re

from penstock.errors import InvalidSegment
from penstock.machine.addresses import Address
from penstock.types.location import MAX_NAME, Location, Place
from penstock.v1 import location_pb2, run_pb2
from penstock.wire.fields import decoded, encoded

# Prometheus requests these addresses, so they contain nothing but a host and a port.
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}")
_MAX_ADDRESS = MAX_NAME + len(":65535")
_SHOWN = 60


def encode_location(location: Location) -> location_pb2.Location:
    """Encodes a location."""
    return encoded(location_pb2.Location, location)


def decode_location(message: location_pb2.Location) -> Location:
    """Decodes a location. Raises `InvalidSegment` for names and addresses that no service has."""
    for kind, name in (("node", message.node), ("job", message.job)):
        if len(name) > MAX_NAME or not name.isprintable() or any(each.isspace() for each in name):
            raise InvalidSegment(
                f"the name of a {kind} has at most {MAX_NAME} printable characters without spaces; got"
                f" {len(name)}: {name[:_SHOWN]!r}"
            )
    if message.metrics_address and not _is_reachable(message.metrics_address):
        raise InvalidSegment(
            f"the address of metrics must be host:port or [IPv6]:port; got {message.metrics_address[:_SHOWN]!r}"
        )
    return decoded(Location, message)


def _is_reachable(text: str) -> bool:
    try:
        address = Address.parse(text[: _MAX_ADDRESS + 1])
    except ValueError:
        return False
    return len(text) <= _MAX_ADDRESS and address.port > 0 and _HOST.fullmatch(address.host) is not None


def encode_place(place: Place) -> run_pb2.Place:
    """Encodes where a replay service is."""
    return encoded(run_pb2.Place, place)


def decode_place(message: run_pb2.Place) -> Place:
    """Decodes where a replay service is. Raises `InvalidSegment` if an address is none."""
    for address in message.addresses:
        try:
            Address.parse(address)
        except ValueError as error:
            raise InvalidSegment(f"an address of the replay service {error}") from None
    return decoded(Place, message)
