"""Names of a service: one address or several, or where to read them, because a service may move."""

from collections.abc import Callable, Sequence

from penstock.types.place import Place

Names = Callable[[], Place]
"""Function that returns where a service is now. It may read a file.

Raises `NotReady` if that is not known yet, or `RunFinished` if the service will not return."""

Peer = str | Sequence[str] | Place | Names
"""An address, several in order of preference, a place, or a function that returns one."""


def place_of(peer: str | Sequence[str] | Place) -> Place:
    """Returns the place of a service that does not move."""
    if isinstance(peer, Place):
        return peer
    return Place((peer,) if isinstance(peer, str) else tuple(peer))
