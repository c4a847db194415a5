"""Environments as they are configured: for evaluations, checks and studies, in all variants."""

from penstock.acting.environments import Environments
from penstock.acting.variants import make_mixed
from penstock.config import EnvironmentConfig


def make_configured(environment: EnvironmentConfig, count: int) -> Environments:
    """So many environments, which take turns in being of the configured variants.

    Raises:
        ConfigurationError: As `make_mixed`.
    """
    return make_mixed(
        environment.id,
        count,
        variants=environment.variant_kwargs,
        imports=environment.imports,
        vectorization=environment.vectorization,
    )
