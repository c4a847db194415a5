"""The number of the contract, which the first message of every stream carries in both directions.

A server takes its own number and the one before, and answers with the number that the client said.
"""

from typing import Any

from google.protobuf.message import Message

from penstock.errors import ConfigurationError
from penstock.v1 import run_pb2

CONTRACT = 1
"""Counts up with each release whose messages a peer of the release before reads otherwise, or can't read."""

_OLDEST = max(1, CONTRACT - 1)


def stamped(message: Message | bytes, number: int = CONTRACT) -> bytes:
    """The first message of a stream, serialised with the number: the field is the same in all of them."""
    data = message if isinstance(message, bytes) else message.SerializeToString()
    return run_pb2.JoinRequest(contract=number).SerializeToString() + data


def contract_of(message: Any) -> int:
    """The number in the first message of a stream; 0: there is none."""
    # Messages with payloads are read into a head and the payload.
    head: Any = message if isinstance(message, Message) else message.message
    return int(head.contract)


def check_contract(number: int, peer: str) -> None:
    """Raises `ConfigurationError` if the peer goes by a contract that this side does not know."""
    if not _OLDEST <= number <= CONTRACT:
        said = f"contract {number}" if number else "no contract number (0)"
        raise ConfigurationError(
            f"{peer} has {said}, and its peer has contract {CONTRACT}; update the older of the two to the other's"
            " version of Penstock"
        )
