"""Environments by their names and settings, as tests, benchmarks and stress programs make them."""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.acting.environments import vectors
from penstock.acting.environments.environment_check import Checked, Report, Task, check
from penstock.acting.environments.making import Making
from penstock.acting.environments.progress import Progress
from penstock.acting.environments.variants import EnvironmentVariants
from penstock.acting.environments.vectors import Environments
from penstock.types.spaces import EnvironmentSpec


def make_environments(
    env_id: str,
    count: int,
    *,
    progress: Progress | None = None,
    expected: EnvironmentSpec | None = None,
    **settings: Any,
) -> Environments:
    """Makes N environments; `settings` are the other attributes of `Making`."""
    return vectors.make_environments(Making(env_id, **settings), count, progress=progress, expected=expected)


def variants_of(
    env_id: str, variants: Sequence[Mapping[str, Any]], *, frames: int = 1, **settings: Any
) -> EnvironmentVariants:
    """Returns the variants of an environment with these arguments; `settings` as for `make_environments`."""
    return EnvironmentVariants([Making(env_id, variant, **settings) for variant in variants], frames)


def checked(
    env_id: str,
    variants: Sequence[Mapping[str, Any]],
    *,
    instances: int = 2,
    largest_magnitude: float = 1e15,
    progress: Report = lambda stage, name: None,
    **settings: Any,
) -> Checked:
    """Returns the result of the check before a run, made in this process; `settings` as for `make_environments`."""
    return check(
        [Task([Making(env_id, variant, **settings) for variant in variants], instances)],
        frames=1,
        encoders={},
        moves=None,
        widest_range=1e4,
        largest_magnitude=largest_magnitude,
        progress=progress,
    )
