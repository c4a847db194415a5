"""Actions of several choices as one choice among their combinations.

In games, a move such as (piece, target) is often legal or not as a whole. The mask then has an element for each
combination, and a mask for each choice alone can't express it.
"""

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from penstock.acting.environments.wrappers.vector_wrapper import VectorWrapper
from penstock.acting.values.masks import KEY, has_mask_leaf
from penstock.errors import ConfigurationError


class OneChoice(gymnasium.ActionWrapper[Any, Any, Any]):
    """An environment with an action of several choices, with one choice among all their combinations in its place.

    Combination i has the choices `numpy.unravel_index(i, nvec)`, so the last choice changes first. A mask with an
    element for each combination fits this action.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        """Raises `ConfigurationError` if the action space is not MultiDiscrete."""
        super().__init__(env)
        self._combinations = _Combinations(env.action_space)
        self.action_space = self._combinations.space
        inner: list[str] = env.get_wrapper_attr("notices") if env.has_wrapper_attr("notices") else []
        self.notices = [f"the action {env.action_space} is one choice among {self.action_space.n} combinations", *inner]

    def action(self, action: Any) -> NDArray[np.integer]:
        """Returns the choices, <int>[*shape], of a combination."""
        return self._combinations(np.asarray(action))


class OneChoiceVector(VectorWrapper):
    """A vector environment with actions as `OneChoice`."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        """Raises `ConfigurationError` as `OneChoice`."""
        super().__init__(env)
        self._combinations = _Combinations(env.single_action_space)
        self.single_action_space = self._combinations.space
        self.action_space = batch_space(self.single_action_space, env.num_envs)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Takes combinations, <int64>[N]. The environment takes their choices, <int>[N, *shape]."""
        return self.env.step(self._combinations(actions))


class _Combinations:
    """The combinations of a MultiDiscrete space, numbered from 0."""

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        if not isinstance(space, spaces.MultiDiscrete):
            raise ConfigurationError(f"OneChoice needs actions of the space MultiDiscrete, not {space}")
        self._choices = space
        self._counts = tuple(space.nvec.ravel().tolist())
        self.space = spaces.Discrete(math.prod(self._counts))

    def __call__(self, numbers: NDArray[np.integer]) -> NDArray[np.integer]:
        choices = np.stack(np.unravel_index(numbers, self._counts), axis=-1).astype(self._choices.dtype)
        return choices.reshape(*numbers.shape, *self._choices.shape) + self._choices.start


def masked_as_one(observation: gymnasium.Space[Any], action: gymnasium.Space[Any]) -> bool:
    """Returns whether the mask in an observation has an element for each combination of an action's choices.

    If there are as many combinations as alternatives, the mask is of the alternatives.
    """
    if not isinstance(action, spaces.MultiDiscrete) or not has_mask_leaf(observation):
        return False
    assert isinstance(observation, spaces.Dict)
    elements = math.prod(observation.spaces[KEY].shape or ())
    counts: list[int] = action.nvec.ravel().tolist()
    return elements == math.prod(counts) and elements != sum(counts)
