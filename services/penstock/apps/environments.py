"""Makes the configured environments, in all variants, for evaluations, checks and studies."""

from collections.abc import Sequence

from penstock.acting.environments import Environments
from penstock.acting.variants import Arguments, make_mixed
from penstock.config import EnvironmentConfig


def make_configured(environment: EnvironmentConfig, count: int) -> Environments:
    """Makes `count` environments that cycle through the configured variants.

    Raises:
        ConfigurationError: As `make_mixed`.
    """
    return make_of(environment, count, environment.variant_kwargs)


def make_of(environment: EnvironmentConfig, count: int, variants: Sequence[Arguments]) -> Environments:
    """Makes `count` environments that cycle through these variants of the configured one.

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
