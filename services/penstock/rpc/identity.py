"""The identity of a service, by which a client makes sure that it has reached the service that it looks for.

An address may belong to another run by the time that a client uses it, as when a batch system starts a job on a node
that has lost its former one.
"""

from collections.abc import Sequence

from penstock.errors import NotReady

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
