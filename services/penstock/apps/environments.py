"""Environments as they are configured: for evaluations, checks and studies, in all variants."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from penstock.acting.environments import Environments
from penstock.acting.variants import Arguments, make_mixed
from penstock.apps.service import Service
from penstock.config import EnvironmentConfig


def make_configured(environment: EnvironmentConfig, count: int) -> Environments:
    """So many environments, which take turns in being of the configured variants.

    Raises:
        ConfigurationError: As `make_mixed`.
    """
    return make_of(environment, count, environment.variant_kwargs)


def make_of(environment: EnvironmentConfig, count: int, variants: Sequence[Arguments]) -> Environments:
    """So many environments, which take turns in being of these variants of the configured one.

    Raises:
        ConfigurationError: As `make_mixed`.
    """
    return make_mixed(
        environment.id,
        count,
        variants=variants,
        imports=environment.imports,
        vectorization=environment.vectorization,
        frames=environment.frame_stack,
    )


def take_process_back(service: Service, folder: Path) -> None:
    """Undoes what environments did to the process: its working directory, and who handles its signals."""
    service.take_signals()
    with contextlib.suppress(OSError):
        os.chdir(folder)
