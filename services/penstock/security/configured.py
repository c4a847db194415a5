"""The credentials that the configuration names. Only this module needs no `cryptography` until there are any."""

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.config.settings.security import SecurityConfig
from penstock.security.roles import Role

if TYPE_CHECKING:
    from penstock.security.credentials import Credentials


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
