"""Statements at the beginning of a call: the number of the contract, and the identity of the service it is meant for.

The first message of every stream carries the number in both directions. Both sides must have the same number: actors of
contract 3 can't build policies with `policy.variance_epsilon`, and clients of contracts 2 and 1 can't prove the run's
key. The identity distinguishes services of different runs, because an address may belong to another run by the time
that a client uses it, as when a batch system starts a job on a node that has lost its former one.
"""

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import Message

from penstock.errors import ConfigurationError, NotReady
from penstock.wire.run import encode_contract

CONTRACT = 4
"""Number of the contract, incremented by each release whose messages the previous release misreads or can't read."""


def stamped(message: Message | bytes, number: int = CONTRACT) -> bytes:
    """Serialises the first message of a stream with the contract number, whose field is the same in all messages."""
    data = message if isinstance(message, bytes) else message.SerializeToString()
    return encode_contract(number) + data


def contract_of(message: Any) -> int:
    """Returns the contract number in the first message of a stream; 0 if it has none."""
    # Messages with payloads are parsed into a head and the payload.
    head: Any = message if isinstance(message, Message) else message.message
    return int(head.contract)


def check_contract(number: int, peer: str) -> None:
    """Raises `ConfigurationError` if this side does not support the peer's contract number."""
    if number != CONTRACT:
        has = f"contract {number}" if number else "no contract number (0)"
        raise ConfigurationError(
            f"{peer} has {has}, and its peer has contract {CONTRACT}; update the older of the two to the other's"
            " version of Penstock"
        )


_KEY = "penstock-identity"
"""Key in the metadata of a call."""


def claimed(identity: int) -> tuple[tuple[str, str], ...]:
    """Returns the metadata of a call to the service with this identity; none if it is 0, for unknown."""
    return ((_KEY, f"{identity:x}"),) if identity else ()


def check_identity(metadata: Sequence[tuple[str, str | bytes]], own: int) -> None:
    """Raises `NotReady` if a call is meant for another service than that with the identity `own`; 0: it has none."""
    wanted = next((value for key, value in metadata if key == _KEY), "")
    if wanted and own and wanted != f"{own:x}":
        raise NotReady(
            "the service at this address belongs to another run, or it has been replaced; its client looks for it again"
        )
