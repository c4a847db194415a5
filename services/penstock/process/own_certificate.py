"""The certificate of this process: which one the configuration names, and the watch that takes renewed files.

This module does not import `cryptography` before a certificate is configured.
"""

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.config import SecurityConfig
from penstock.errors import Unavailable
from penstock.security.roles import Role
from penstock.telemetry import metrics
from penstock.telemetry.logs import Logger

if TYPE_CHECKING:
    from penstock.security.credentials import Credentials

_LOOK_S = 2.0
"""Seconds between looks at the files: three calls of stat, and soon enough for a user who watches the log."""


def credentials_of(security: SecurityConfig, role: Role) -> "Credentials | None":
    """Reads the certificate of a process with this role; None if none is configured, so that it uses no TLS.

    Raises `ConfigurationError` as `security.certificate.read`.
    """
    if security.files is None:
        return None
    # An actor without a certificate must not spend 17 MB and 50 ms on it.
    from penstock.security.certificate import Files
    from penstock.security.credentials import Credentials

    return Credentials(Files(*map(Path, security.files)), role, by_address=security.server_names == "address")


class CertificateWatch:
    """A thread that keeps `Credentials` current. It logs each change, each problem and the expiry once."""

    def __init__(self, credentials: "Credentials", logger: Logger, look_s: float = _LOOK_S) -> None:
        """Starts the watch, which looks at the files every `look_s` seconds."""
        self._credentials, self._logger, self._look_s = credentials, logger, look_s
        self._problem, self._expired = "", False
        self._show()
        self._logger.info("certificate loaded", **self._fields())
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="certificate watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the watch."""
        self._closed.set()
        self._thread.join(self._look_s)

    def _watch(self) -> None:
        while not self._closed.wait(self._look_s):
            if self._credentials.refreshed():
                self._show()
                self._expired = False
                self._logger.info("certificate renewed", **self._fields())
            problem = self._credentials.problem
            if problem and problem != self._problem:
                self._logger.warning("renewed certificate not used", reason=problem)
            self._problem = problem
            self._note_expiry()

    def _note_expiry(self) -> None:
        try:
            self._credentials.check(time.time())
        except Unavailable as expired:
            if not self._expired:
                self._logger.error("certificate expired", reason=str(expired))
            self._expired = True

    def _show(self) -> None:
        current = self._credentials.current
        metrics.CERTIFICATE_EXPIRY.labels("own").set(current.expires)
        metrics.CERTIFICATE_EXPIRY.labels("authority").set(current.authority_expires)

    def _fields(self) -> dict[str, str]:
        expires = time.gmtime(self._credentials.current.expires)
        return {"of": str(self._credentials.identity), "expires": time.strftime("%Y-%m-%d %H:%M UTC", expires)}
