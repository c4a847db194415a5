"""One environment in the form in which a policy sees it, with Gymnasium's interface for a caller's own loop."""

from typing import Any, assert_never

import gymnasium
import numpy as np
from gymnasium import spaces

from penstock.acting.environments.vectors import Environments
from penstock.acting.values import masks
from penstock.acting.values.leaves import flatten, unflatten
from penstock.errors import ConfigurationError
from penstock.types.spaces import BoxSpace, DiscreteSpace, MultiBinarySpace, MultiDiscreteSpace, Space, Tree


class PlayedEnvironment(gymnasium.Env[Any, Any]):
    """An environment of a run, whose observations and action masks have the form on which the run's policy was trained.

    Frames are stacked, images have channels first, and `info["action_mask"]` is the action mask, if there are masks.
    `info` has no other values. An environment in its own vectorised form that resets in the same step
    (`acting.environments.vectors`) returns the first observation of the next episode where an episode ends.
    """

    def __init__(self, environments: Environments, *, rendered: gymnasium.Env[Any, Any] | None = None) -> None:
        """Takes ownership of a single environment. `rendered` is the environment to render; None: it can't be."""
        assert environments.count == 1
        self._environments, self._rendered = environments, rendered
        self.observation_space = _space_of(environments.spec.observation)
        self.action_space = _space_of(environments.spec.action)
        self._ended = True
        if rendered is not None:
            self.metadata, self.render_mode, self.spec = rendered.metadata, rendered.render_mode, rendered.spec

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode. Raises `ConfigurationError` for options, which runs do not use."""
        super().reset(seed=seed)
        if options:
            raise ConfigurationError(f"an environment of a run is reset without options; got {options}")
        self._environments.reset([int(self.np_random.integers(2**31)) if seed is None else seed])
        self._ended = False
        return self._observed()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes one step with an action of the policy. Raises `EnvironmentFailed` if the environment fails."""
        if self._ended:
            raise gymnasium.error.ResetNeeded("the episode has ended, or none has begun; call reset")
        leaves = flatten(self._environments.spec.action, action)
        outcome = self._environments.step(tuple(np.asarray(leaf)[None] for leaf in leaves))
        terminated, truncated = bool(outcome.terminated[0]), bool(outcome.truncated[0])
        self._ended = terminated or truncated
        observation, info = self._observed()
        return observation, float(outcome.reward[0]), terminated, truncated, info

    def render(self) -> Any:
        """Returns the rendered frame; None if it was made without a `render_mode`."""
        return None if self._rendered is None else self._rendered.render()

    def close(self) -> None:
        """Closes the environment."""
        self._environments.close()

    def _observed(self) -> tuple[Any, dict[str, Any]]:
        environments = self._environments
        # Copies, because the arrays change with the next step.
        rows = [np.copy(leaf[0])[()] for leaf in environments.acting_observation]
        mask = environments.action_mask
        return unflatten(environments.spec.observation, rows), {} if mask is None else {masks.KEY: mask[0].copy()}


def _space_of(tree: Tree) -> gymnasium.Space[Any]:
    """Returns Gymnasium's space of a tree."""
    nested = unflatten(tree, [_leaf_space(space) for space in tree.spaces])
    return _gathered(nested)


def _gathered(nested: Any) -> gymnasium.Space[Any]:
    if isinstance(nested, dict):
        return spaces.Dict({key: _gathered(each) for key, each in nested.items()})
    return spaces.Tuple([_gathered(each) for each in nested]) if isinstance(nested, tuple) else nested


def _leaf_space(space: Space) -> gymnasium.Space[Any]:
    match space:
        case BoxSpace(dtype=dtype, shape=shape):
            low, high = (np.broadcast_to(np.array(side), space.size).reshape(shape) for side in (space.low, space.high))
            kind: Any = np.dtype(dtype).type
            return spaces.Box(low.astype(kind), high.astype(kind), shape, kind)
        case DiscreteSpace(n=n, start=start):
            return spaces.Discrete(n, start=start)
        case MultiDiscreteSpace(shape=shape, n=n, start=start):
            counts, starts = np.array(n).reshape(shape), np.array(start).reshape(shape)
            return spaces.MultiDiscrete(counts, start=starts)
        case MultiBinarySpace(shape=shape):
            return spaces.MultiBinary(shape)
        case _:
            assert_never(space)
