"""Commands that ask the services of a run, with the operator's credentials."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final

from penstock.config.settings.security import SecurityConfig
from penstock.errors import ConfigurationError, SchemaMismatch
from penstock.local.variables import settings_of_variables
from penstock.process.own_certificate import credentials_of
from penstock.rpc.clients.operator import StatusClient, VariantClient
from penstock.rpc.loop import LoopThread
from penstock.runs.folder import LEARNER, RunFolder, kept_identity
from penstock.types.location import Place
from penstock.types.variants import RunVariant, VariantChange

if TYPE_CHECKING:
    from penstock.security.credentials import Credentials

_ROLE: Final = "operator"
_CERTIFICATE = "certificate.pem"
_ANSWER_S = 10.0


def operator_of(folder: RunFolder | None, security: SecurityConfig | None = None) -> "Credentials | None":
    """Returns the credentials for a run; None if its services have no certificates.

    They are taken from `security`, by default from the variables PENSTOCK__SECURITY__*, or else the operator's in the
    run's folder.

    Args:
        folder: Folder of the run; None if only the address of its learner is known.
        security: Settings that the command was given.

    Raises `ConfigurationError` if the services have certificates and there is none for this command, or it can't be
    used.
    """
    chosen = security or _of_variables()
    if (credentials := credentials_of(chosen, _ROLE)) is not None:
        return credentials
    if folder is None or not folder.certified:
        return None
    own = folder.certificates / _ROLE / _CERTIFICATE
    if not own.exists():
        raise ConfigurationError(
            f"the services of {folder.root} have certificates, and there is none for this command at {own}; name the"
            " operator's in the variable PENSTOCK__SECURITY__CERTIFICATE"
        )
    return credentials_of(SecurityConfig(certificate=str(own)), _ROLE)


@contextmanager
def asking(learner: Place, credentials: "Credentials | None") -> Iterator[StatusClient]:
    """Yields a client of a learner, with these credentials."""
    with closing(LoopThread(credentials)) as thread, closing(StatusClient(thread, learner)) as client:
        yield client


def change_variants(folder: RunFolder, change: VariantChange) -> list[RunVariant]:
    """Changes the variants of an active run; returns all that it has had, with the added ones at the end.

    Raises `ConfigurationError` if the run is not active, or its learner refuses the change.
    """
    if not folder.services.exists():
        raise ConfigurationError(f"no run is active in {folder.root}, so its variants can't change; resume it first")
    identity = kept_identity(folder.identity)
    key = b"" if identity is None else identity.key
    with (
        closing(LoopThread(operator_of(folder))) as thread,
        closing(VariantClient(thread, folder.places()[LEARNER], key)) as client,
    ):
        try:
            return client.change(change, _ANSWER_S)
        except SchemaMismatch as refused:
            raise ConfigurationError(str(refused)) from refused


def _of_variables() -> SecurityConfig:
    given = settings_of_variables().get("security", {})
    return SecurityConfig.model_validate(given)
