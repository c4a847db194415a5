"""Mapping between Penstock's errors and gRPC status codes, in both directions, and refusals of clients.

The trailing metadata also names the error, so that Penstock's clients raise the error that the server raised.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Literal

import grpc

from penstock import errors
from penstock.errors import PenstockError, PermissionDenied, PlaceLost, SchemaMismatch
from penstock.rpc.tls import explained
from penstock.telemetry import logs, metrics

_ERROR_KEY = "penstock-error"
_TAKEN_BY_KEY = "penstock-taken-by"

_CODES: dict[type[PenstockError], grpc.StatusCode] = {
    errors.InvalidSegment: grpc.StatusCode.INVALID_ARGUMENT,
    errors.DamagedWindow: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ConfigurationError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.SchemaMismatch: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.NotReady: grpc.StatusCode.UNAVAILABLE,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.PlaceLost: grpc.StatusCode.FAILED_PRECONDITION,
    errors.RunFinished: grpc.StatusCode.FAILED_PRECONDITION,
    errors.PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
}
_ADDRESS = re.compile(r"\b(unix|ipv4|ipv6):\S+")
"""An address in gRPC's description of a failed connection, in which the path of a socket file has no spaces."""

_SILENCES = (
    (
        # gRPC's own bound on an attempt ended it, after the kernel of the other host had accepted the connection.
        # grpcio 1.76 says no more than the last of these texts.
        ("Endpoint closing", "endpoint shutdown", "before receiving SETTINGS frame", "Handshake read failed\n"),
        "it accepts connections and does not answer: it is paused, hung or overloaded; see the state of its process",
    ),
    (
        ("connect() timed out", "tcp handshaker shutdown"),
        "nothing answers at this address: its host is down, a firewall is between, or the service has hung for long",
    ),
)
"""Meanings of parts of gRPC's descriptions when an attempt to connect ends without an answer."""

_BY_NAME = {error.__name__: error for error in _CODES}
_WITHOUT_NAME: dict[grpc.StatusCode, type[PenstockError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidSegment,
    grpc.StatusCode.FAILED_PRECONDITION: errors.SchemaMismatch,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.Overloaded,
    grpc.StatusCode.UNIMPLEMENTED: errors.ConfigurationError,
    grpc.StatusCode.PERMISSION_DENIED: errors.PermissionDenied,
}


def to_status(error: PenstockError) -> grpc.StatusCode:
    """Returns the status code of an error."""
    return _CODES.get(type(error), grpc.StatusCode.INTERNAL)


def trailing_metadata(error: PenstockError) -> tuple[tuple[str, str], ...]:
    """Returns the trailing metadata of an error: its name and the attributes that a client needs."""
    named = (_ERROR_KEY, type(error).__name__)
    return (named, (_TAKEN_BY_KEY, str(error.taken_by))) if isinstance(error, errors.PlaceLost) else (named,)


def from_rpc(error: grpc.aio.AioRpcError, peer: str, *, certified: bool = True) -> PenstockError:
    """Returns the error behind a failed call to `peer` by a client with a certificate, or without one."""
    details = error.details() or error.code().name
    beside = {key: str(value) for key, value in error.trailing_metadata() or ()}
    kind = _BY_NAME.get(beside.get(_ERROR_KEY, ""))
    if kind is errors.PlaceLost:
        taken_by = beside.get(_TAKEN_BY_KEY, "")
        return errors.PlaceLost(details, int(taken_by) if taken_by.isdecimal() else 0)
    if kind is not None:
        return kind(details)
    if error.code() in _WITHOUT_NAME:
        return _WITHOUT_NAME[error.code()](f"{peer}: {details}")
    if error.code() == grpc.StatusCode.UNKNOWN:
        return errors.PeerFailed(f"{peer} failed with an error that it did not expect ({details}); see its log")
    # gRPC gives the reason as text alone, beside addresses whose paths are chosen by users.
    reason = f"{_ADDRESS.sub('', details)}\n"
    silence = next((meaning for parts, meaning in _SILENCES if any(part in reason for part in parts)), "")
    if meaning := silence or explained(reason, certified=certified):
        return errors.Unavailable(f"{peer} can't be reached: {meaning}")
    if "Connection refused" in reason or "No such file or directory" in reason:
        return errors.Unavailable(f"{peer} can't be reached: it is not listening yet, or it has ended; see its log")
    if any(part in reason for part in ("DNS resolution failed", "errors resolving", "not known")):
        return errors.Unavailable(f"{peer} can't be reached: no host has this name here; name another address of it")
    return errors.Unavailable(f"{peer} can't be reached or did not answer ({error.code().name}: {details})")


def is_passing(error: PenstockError) -> bool:
    """Returns whether the same call may succeed later."""
    return isinstance(error, (errors.Unavailable, errors.NotReady, errors.Overloaded, errors.DamagedWindow))


@contextlib.contextmanager
def logged_refusal(who: Literal["actor", "evaluator", "learner", "operator"], **where: str) -> Iterator[None]:
    """Logs and counts the refusal of a client that the enclosed check finds not to be the run's.

    `where` has further fields of the event, such as the client's address.
    """
    try:
        yield
    except (SchemaMismatch, PlaceLost, PermissionDenied) as error:
        metrics.REFUSED_CLIENTS.labels(who).inc()
        logs.note(f"{who} refused", **where, reason=str(error))
        raise
