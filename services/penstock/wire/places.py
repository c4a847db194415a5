"""Conversion of the place of a replay service, which replay service, learner and actors exchange."""

from penstock.errors import InvalidSegment
from penstock.machine.addresses import Address
from penstock.types.place import Place
from penstock.v1 import run_pb2
from penstock.wire.fields import decoded, encoded


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
