"""Names of a service: one address or several, or where to read them, because a service may move."""

from collections.abc import Callable, Sequence

Names = Callable[[], Sequence[str]]
"""Function that returns the present addresses of a service, the preferred one first. It may read a file.

Raises `NotReady` if they are not known yet, or `RunFinished` if the service will not return."""

Peer = str | Sequence[str] | Names
"""An address, several in order of preference, or a function that returns them."""
