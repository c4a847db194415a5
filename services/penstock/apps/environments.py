"""Makes the configured environments, for actors, evaluations, checks and studies."""

from collections.abc import Sequence

from penstock.acting.environments import Environments
from penstock.acting.variants import Arguments, EnvironmentVariants
from penstock.config import EnvironmentConfig


def variants_of(environment: EnvironmentConfig, arguments: Sequence[Arguments]) -> EnvironmentVariants:
    """Returns variants of the configured environment, each with all its arguments."""
    return EnvironmentVariants(
        environment.id,
        arguments,
        environment.imports,
        environment.vectorization,
        environment.frame_stack,
        environment.action_masks,
    )


def make_configured(environment: EnvironmentConfig, count: int) -> Environments:
    """Makes N environments that alternate between the configured variants. Raises `ConfigurationError`."""
    return variants_of(environment, environment.variant_kwargs).make_mixed(count)
