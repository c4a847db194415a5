"""The certificate that a process uses: it is read at the start, and again whenever its files have changed."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.errors import ConfigurationError, Unavailable
from penstock.machine import installation
from penstock.security.certificate import Certificate, Files, covers, in_utc, read
from penstock.security.roles import Identity, Role

_Signature = tuple[tuple[int, int, int] | None, ...]


class Credentials:
    """The certificate of a process, with its key and its authority. Any thread may call it.

    Attributes:
        files: The files.
        by_address: Whether clients expect the address in a server's certificate, and not the name of its role.
        current: The certificate in use.
        clock: Returns Unix seconds.
        problem: Why the files' present content is not in use, in one line; empty if it is.
    """

    def __init__(
        self, files: Files, role: Role, *, by_address: bool = False, clock: Callable[[], float] = time.time
    ) -> None:
        """Reads the files. `clock` returns Unix seconds. Raises `ConfigurationError` as `certificate.read`."""
        self.files, self.by_address, self.problem = files, by_address, ""
        self._role, self.clock = role, clock
        # gRPC reads the certificate in threads of its own, one for each connection.
        self._lock = threading.Lock()
        self._signature = _signature(files)
        self.current: Certificate = read(files, role, now=clock())

    @property
    def identity(self) -> Identity:
        """Run and role, which never change."""
        return self.current.identity

    def refreshed(self) -> bool:
        """Reads the files again if one has changed; returns whether `current` is another certificate now.

        If they can't be used, for example because only one of them has been replaced yet, or have another run or role,
        the former certificate remains in use, and `problem` states the reason. It never raises. One of several
        callers gets True, so a caller that shares this object compares `current` with the certificate that it uses. It
        costs three calls of stat, and some ms after a change.
        """
        with self._lock:
            signature = _signature(self.files)
            # A certificate that could not be used may become valid with time, or may have been changed within a clock
            # tick.
            if signature == self._signature and not self.problem:
                return False
            # Before the content is read, so that a change meanwhile is noticed by the next call.
            self._signature = signature
            try:
                found = read(self.files, self._role, now=self.clock())
                if found.identity != self.identity:
                    raise ConfigurationError(
                        f"{self.files.certificate} now belongs to the {found.identity}, but this is the"
                        f" {self.identity}; renew it for the same run, or start the service again"
                    )
            except ConfigurationError as error:
                self.problem = str(error)
                return False
            self.problem = ""
            if found == self.current:
                return False
            self.current = found
            return True

    def check(self, now: float) -> None:
        """Raises `Unavailable` if the certificate has expired at this Unix time in seconds."""
        current = self.current
        expired = min(current.expires, current.authority_expires)
        if now > expired:
            file = self.files.certificate if current.expires == expired else self.files.authority
            present = f"; its present content can't be used: {self.problem}" if self.problem else ""
            raise Unavailable(
                f"{file} expired at {in_utc(expired)}; a renewed one is read by itself; renew it with"
                f" {installation.how_to_renew()}{present}"
            )

    def check_server(self, hosts: Sequence[str]) -> None:
        """Checks that clients can verify a server with this certificate.

        Args:
            hosts: Hosts by which clients reach it, as `Address.host` has them.

        Raises:
            ConfigurationError: The certificate lacks the names that clients expect: these hosts if they expect the
                address, or else the name of the role.
        """
        expected = hosts if self.by_address else [self.identity.server_name]
        names = self.current.names
        lacking = [host for host in expected if not covers(names, host)]
        if lacking:
            remedy = (
                "issue it with them, correct the setting advertise, or set security.server_names to role"
                if self.by_address
                else "make it with penstock certificates RUN, or set security.server_names to address"
            )
            raise ConfigurationError(
                f"{self.files.certificate} is valid for {', '.join(names) or 'no name'}, and not for"
                f" {', '.join(lacking)}, which clients expect; {remedy}"
            )


def _signature(files: Files) -> _Signature:
    """Returns a value that changes when a file is replaced or written."""
    return tuple(_of_file(path) for path in (files.certificate, files.key, files.authority))


def _of_file(path: Path) -> tuple[int, int, int] | None:
    try:
        # Follows links, by which Kubernetes replaces all files of a secret at once.
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
