"""Which spaces the policies here can work with. Imports no torch, so that a launcher can ask before it starts
anything.
"""

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigurationError
from penstock.types import BoxSpace, DiscreteSpace, EnvironmentSpec, Space


def check_spaces(spec: EnvironmentSpec) -> None:
    """Raises `ConfigurationError` for an observation or action space that no policy here can work with."""
    observation, action = spec.observation, spec.action
    if not isinstance(observation, BoxSpace) or len(observation.shape) != 1:
        raise ConfigurationError(
            f"{spec.id} has the observation space {_describe(observation)}; flat boxes (one dimension) are supported."
            " Wrap it,"
            " for instance in gymnasium.wrappers.FlattenObservation"
        )
    if isinstance(action, BoxSpace) and not action.dtype.startswith("float"):
        raise ConfigurationError(f"{spec.id} has the action space {_describe(action)}; boxes must be of floats")


def bounded(space: BoxSpace) -> NDArray[np.bool_]:
    """<bool>[A] which elements have finite bounds on both sides."""
    both: NDArray[np.bool_] = np.isfinite(np.array(space.low)) & np.isfinite(np.array(space.high))
    return both


def _describe(space: Space) -> str:
    if isinstance(space, DiscreteSpace):
        return f"Discrete({space.n}, start={space.start})"
    return f"Box(shape={space.shape}, dtype={space.dtype})"
