"""The section [security]: the certificate of a service, and what services allow others to do."""

from pathlib import PurePath
from typing import Literal

import pydantic

from penstock.config.settings.section import Section


class SecurityConfig(Section):
    """[security] The protection of services."""

    certificate: str | None = None
    """PEM file with the certificate of this service, which `penstock certificates` makes. With it, all connections of
    the service use TLS, and both sides verify each other; all services of a run have one or none has. A renewed
    file is read without a restart. Unset: no TLS."""
    key: str | None = None
    """PEM file with the key of the certificate, which other users must not be able to read. Unset: key.pem in the
    folder of the certificate."""
    authority: str | None = None
    """PEM file with the certificates of the authorities whose signature is trusted. Unset: authority.pem in the folder
    of the certificate."""
    server_names: Literal["role", "address"] = "role"
    """Name that clients expect in the certificate of a server. role: the name of its role in the run, as
    `penstock certificates` issues it, whatever its address. address: the host at which they reach it, for certificates
    of an authority of your own."""
    insecure: bool = False
    """Whether services may listen where other hosts can reach them. They neither authenticate nor encrypt, so that
    whatever reaches a port can read, change and end the run; set it only in a private network. false: services listen
    on loopback and on Unix sockets only."""

    @property
    def files(self) -> tuple[str, str, str] | None:
        """Paths of certificate, key and authority; None without a certificate."""
        if self.certificate is None:
            return None
        folder = PurePath(self.certificate).parent
        return self.certificate, self.key or str(folder / "key.pem"), self.authority or str(folder / "authority.pem")

    @property
    def admits_others(self) -> bool:
        """Whether the service may listen where other hosts can reach it."""
        return self.insecure or self.certificate is not None

    @pydantic.model_validator(mode="after")
    def _check_files(self) -> "SecurityConfig":
        for name, path in (("key", self.key), ("authority", self.authority)):
            if path is not None and self.certificate is None:
                raise ValueError(
                    f"security.{name} is {path}, but security.certificate is unset; name the certificate that it"
                    f" belongs to, or unset security.{name}"
                )
        return self
