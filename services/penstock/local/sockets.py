"""The socket files of a run on one machine: in its folder, or among temporary files if that can't hold them.

Each session of a run has a folder of its own, which no other user can enter. So a service that outlives a killed
launcher can neither take the place of a new one nor remove its socket when it ends. The system limits the length of a
socket's path, and some file systems hold no sockets, such as shared folders of virtual machines and FUSE.
"""

import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ConfigurationError
from penstock.machine.addresses import Address
from penstock.machine.file_systems import is_own_folder, scratch_folders
from penstock.runs.folder import SOCKETS, RunFolder

_ELSEWHERE = f"penstock-{SOCKETS}"
"""Beginning of the name of such a folder among temporary files."""

_LONGEST_NAME = "replay-1000"
"""Name of a service that is as long as any of a run on one machine."""


@dataclass(frozen=True, slots=True)
class Sockets:
    """Folder of the socket files of one session."""

    root: Path

    def address(self, service: str) -> str:
        """Returns the address of a service of this name."""
        return str(Address(path=str(self.root / service)))


@contextmanager
def sockets_of(folder: RunFolder) -> Iterator[Sockets]:
    """Makes the folder of a session, in the run's folder or else among temporary files, and removes it at the end.

    First removes the folders of sessions whose launcher was killed, so no service of the run may be active. Raises
    `ConfigurationError` if no place can hold sockets.
    """
    _remove_left(folder)
    made = _made(folder)
    try:
        yield Sockets(made)
    finally:
        _remove(made)


def _made(folder: RunFolder) -> Path:
    places = [(folder.root, SOCKETS), *((above, _ELSEWHERE) for above in scratch_folders())]
    for above, prefix in places:
        with suppress(OSError):
            # With mode 0700, whatever the umask.
            made = Path(tempfile.mkdtemp(prefix=prefix, dir=above.absolute()))
            if _holds_sockets(made):
                return made
            made.rmdir()
    raise ConfigurationError(
        f"none of {', '.join(str(above) for above, _ in places)} can hold the sockets of the services: a path is too"
        " long or has a comma, or the folder can't be written or is on a file system without sockets; name another"
        " folder in the variable TMPDIR"
    )


def _remove_left(folder: RunFolder) -> None:
    left = set(folder.root.glob(f"{SOCKETS}*"))
    with suppress(OSError, ValueError):
        addresses = [Address.parse(each) for place in folder.places().values() for each in place.addresses]
        left |= {Path(address.path).parent for address in addresses if address.path}
    for path in left:
        if path.name.startswith((SOCKETS, _ELSEWHERE)) and is_own_folder(path):
            _remove(path)


def _remove(folder: Path) -> None:
    """Removes a folder and its sockets, and nothing else: the list of services could name any folder."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.is_socket():
                path.unlink()
        folder.rmdir()


def _holds_sockets(folder: Path) -> bool:
    """Returns whether a service with the longest name can be reached in a folder, by trying it."""
    path = folder / _LONGEST_NAME
    try:
        Address.parse(f"unix:{path}")
        with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
            server.bind(str(path))
            server.listen()
            client.connect(str(path))
        path.unlink()
    except (OSError, ValueError):
        path.unlink(missing_ok=True)
        return False
    return True
