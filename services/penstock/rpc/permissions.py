"""Which role may call which method with how large messages, and the check of calls to a service with certificates.

The role of a client is in its certificate, which the TLS handshake has verified. Health checks are not in the table:
every client of the run may make them.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.errors import PermissionDenied
from penstock.rpc import methods
from penstock.rpc.direct_socket import MAX_MESSAGE_BYTES
from penstock.rpc.service import Method, ServicerContext
from penstock.security.roles import Role
from penstock.telemetry import logs
from penstock.types.replay import MAX_BATCH_SEGMENTS, MAX_SLOTS

if TYPE_CHECKING:
    from penstock.security.credentials import Credentials

PERMISSIONS: Mapping[Method, frozenset[Role]] = {
    methods.APPEND_SEGMENTS: frozenset({"actor"}),
    methods.SAMPLE_BATCHES: frozenset({"learner"}),
    methods.COMMIT_BATCH: frozenset({"learner"}),
    methods.FINISH_RUN: frozenset({"learner"}),
    methods.GET_REPLAY_STATUS: frozenset({"learner", "operator"}),
    methods.TAKE_SNAPSHOT: frozenset({"learner"}),
    methods.LIST_SNAPSHOTS: frozenset({"learner", "operator"}),
    methods.JOIN: frozenset({"actor"}),
    methods.GET_RUN_STATUS: frozenset({"operator"}),
    methods.TAKE_RUN_SNAPSHOT: frozenset({"operator"}),
    methods.CHANGE_VARIANTS: frozenset({"operator"}),
    methods.RUN_EVALUATIONS: frozenset({"evaluator"}),
}
"""Roles that may call each method of the contract."""

_SMALL_BYTES = 2**12
_COMMIT_BYTES = 16 * MAX_BATCH_SEGMENTS + _SMALL_BYTES
"""A key and a priority of 8 bytes each for every segment of the largest batch."""

REQUEST_BYTES: Mapping[Method, int] = {
    methods.APPEND_SEGMENTS: MAX_MESSAGE_BYTES,
    methods.SAMPLE_BATCHES: _COMMIT_BYTES + 16 * MAX_SLOTS,
    methods.COMMIT_BATCH: _COMMIT_BYTES,
    methods.FINISH_RUN: _SMALL_BYTES,
    methods.GET_REPLAY_STATUS: _SMALL_BYTES,
    methods.TAKE_SNAPSHOT: MAX_MESSAGE_BYTES,
    methods.LIST_SNAPSHOTS: _SMALL_BYTES,
    methods.JOIN: MAX_MESSAGE_BYTES,
    methods.GET_RUN_STATUS: _SMALL_BYTES,
    methods.TAKE_RUN_SNAPSHOT: _SMALL_BYTES,
    methods.CHANGE_VARIANTS: MAX_MESSAGE_BYTES,
    methods.RUN_EVALUATIONS: MAX_MESSAGE_BYTES,
}
"""Bytes of the largest request of each method of the contract.

The largest are parts of windows, weights of snapshots, and the spaces of an environment.
"""

_MOST_LOGGED = 1_000
"""Refusals that are remembered, so that each is logged once; later ones are counted only."""


class Callers:
    """Check of the clients of one server. Used on its event loop."""

    def __init__(self, credentials: "Credentials | None") -> None:
        """Creates the check for a service with these credentials; without any, every call is admitted."""
        self._credentials = credentials
        self._logged: set[tuple[str, str]] = set()

    def admit(self, method: Method, call: ServicerContext) -> float | None:
        """Checks a call by the certificate of its client.

        Returns the seconds until that certificate expires; None without certificates.

        Raises `PermissionDenied` if the client's role may not call the method, or it belongs to another run.
        """
        if self._credentials is None:
            return None
        # Only a process with certificates loads the library that parses them.
        from penstock.security.certificate import expiry_of, identity_of

        own, allowed = self._credentials.identity, PERMISSIONS[method]
        context: dict[str, Any] = dict(call.auth_context())
        pem = next(iter(context.get("x509_pem_cert", ())), b"")
        try:
            client = identity_of(pem)
        except ValueError as error:
            self._refuse(method, call.peer(), f"a certificate without a role ({error})", f"one of run {own.run}")
        if client.run != own.run:
            self._refuse(method, call.peer(), f"the certificate of the {client}", f"one of run {own.run}")
        if client.role not in allowed:
            self._refuse(
                method,
                call.peer(),
                f"the certificate of the {client}",
                f"a certificate of {' or '.join(sorted(allowed))}",
            )
        return expiry_of(pem) - self._credentials.clock()

    def _refuse(self, method: Method, peer: str, received: str, wanted: str) -> NoReturn:
        reason = (
            f"{method.name} was called with {received}, and needs {wanted}; set security.certificate of the client to"
            " the file of its role"
        )
        if (peer_host(peer), reason) not in self._logged and len(self._logged) < _MOST_LOGGED:
            self._logged.add((peer_host(peer), reason))
            logs.warn("call refused", peer=peer, reason=reason)
        raise PermissionDenied(reason)


def peer_host(peer: str) -> str:
    """Returns the host of a client as gRPC names it, without its port, which each connection changes."""
    return peer.rpartition(":")[0]
