"""The certificates of a run on Slurm: made in the run's folder, and packed for nodes that do not share it.

Packed ones are the value of a variable that Slurm gives to a job, so that no key is in a script.
"""

import base64
import io
import tarfile
from collections.abc import Sequence
from typing import Final

from penstock.config.security import SecurityConfig
from penstock.errors import ConfigurationError
from penstock.run_folder import RunFolder
from penstock.security.authority import DAYS, issue, run_of
from penstock.security.roles import Role, run_name_of

OF_SERVICES: Final[tuple[Role, ...]] = ("replay", "learner", "evaluator", "operator")
"""Roles in the services' job, where the operator's is that of the process which follows the wanted number of actors."""

OF_ACTORS: Final[tuple[Role, ...]] = ("actor",)
"""Roles in the array of actors."""


def refuse_others(security: SecurityConfig) -> None:
    """Raises `ConfigurationError` if the user has chosen how services are protected; a launched run has its way."""
    plain = SecurityConfig()
    chosen = [name for name in SecurityConfig.model_fields if getattr(security, name) != getattr(plain, name)]
    if chosen:
        raise ConfigurationError(
            f"a launched run has certificates of its own, and security.{chosen[0]} is {getattr(security, chosen[0])};"
            " unset it, or write scripts of your own after those of --print"
        )


def make(folder: RunFolder, *, now: float) -> None:
    """Makes the certificates of a run in its folder as far as they are missing or due.

    `now` is the Unix time in seconds. Raises `ConfigurationError` as `security.authority.issue`.
    """
    run = run_of(folder.certificates) or run_name_of(folder.root.name)
    issue(folder.certificates, run, days=DAYS, hosts={}, now=now)


def packed(folder: RunFolder, roles: Sequence[Role]) -> str:
    """Returns the folders of some roles as a compressed archive in base64."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for role in roles:
            archive.add(folder.certificates / role, arcname=f"{folder.certificates.name}/{role}")
    return base64.b64encode(content.getvalue()).decode()
