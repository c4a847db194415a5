"""Tasks of EnvPool, in its own vectorised form, as environments with names such as envpool:Pong-v5.

EnvPool steps N environments in C++. The registry finds a task here, and `vectors` makes it like an environment of
Gymnasium that has a vectorised form. EnvPool seeds a pool when it is made, so a reset with seeds makes a new pool.
"""

import functools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from penstock.acting.environments.ids import best, meant_id, newest
from penstock.acting.values.leaves import mapped, row_of
from penstock.acting.values.masks import KEY
from penstock.errors import ConfigurationError, UnknownEnvironment
from penstock.machine import extras, foreign_errors
from penstock.machine.environment_names import ENVPOOL
from penstock.machine.module_imports import import_installed
from penstock.machine.spelling import question

_GIVEN = ("num_envs", "batch_size", "seed", "env_seed", "gym_reset_return_info")
"""Arguments of EnvPool that Penstock gives, or that would change the rows of a step."""

_UNLIMITED = 2**31 - 1
"""EnvPool's limit of steps for a task without one."""

_LEGAL = "legal_action_mask"
"""EnvPool's name of the action mask in an info."""


def spec_of(given: str) -> EnvSpec:
    """Returns the argument of `gymnasium.make_vec` for a task of EnvPool.

    An id in another case, or without a version, is accepted as for Gymnasium. Raises `UnknownEnvironment` if EnvPool
    has no such task or is not installed, and `ConfigurationError` if the task lacks a library of the system, or has
    several players.
    """
    name = f"{ENVPOOL}:{given}"
    if extras.missing("envpool"):
        raise UnknownEnvironment(f"the environment {name!r} needs envpool; {extras.installation('envpool')}")
    envpool: Any = import_installed("envpool")
    tasks = envpool.list_all_envs()
    meant = meant_id(given, tasks) or given
    if (task := meant if meant in tasks else newest(meant, tasks)) is None:
        similar = best(given, tasks)
        hint = question(similar and f"{ENVPOOL}:{similar}") or "envpool.list_all_envs() returns its ids"
        raise UnknownEnvironment(f"can't make the environment {name!r}: EnvPool has no task {given!r}; {hint}")
    try:
        config = envpool.make_spec(task).config
    except foreign_errors.MISBEHAVIOUR as error:
        foreign_errors.let_ctrl_c_pass(error)
        raise ConfigurationError(f"can't make the environment {name!r}: {foreign_errors.describe(error)}") from error
    if config.max_num_players > 1:
        raise ConfigurationError(
            f"{name} has {config.max_num_players} players, and a policy of Penstock plays one; choose a task of one"
            " player"
        )
    limit = None if config.max_episode_steps == _UNLIMITED else config.max_episode_steps
    make = functools.partial(envpool.make_gymnasium, task)
    single: Any = functools.partial(PoolEnvironment, make)
    vector: Any = functools.partial(PoolEnvironments, make)
    return EnvSpec(id=task, entry_point=single, vector_entry_point=vector, max_episode_steps=limit)


def is_pool(spec: EnvSpec) -> bool:
    """Returns whether a spec is of `spec_of`."""
    return getattr(spec.vector_entry_point, "func", None) is PoolEnvironments


class PoolEnvironments(VectorEnv[Any, Any, Any]):
    """A pool of N environments of one task, stepped together by one thread unless its arguments say otherwise."""

    def __init__(self, make: Any, num_envs: int, **arguments: Any) -> None:
        """Makes the pool with arguments of `envpool.make`.

        Raises `ConfigurationError` for an argument that Penstock gives, and what EnvPool raises.
        """
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs = num_envs
        self._make = _with_arguments(make, num_envs, arguments)
        self._pool: Any = self._make()
        self.single_observation_space, self.single_action_space = _spaces(self._pool)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(  # type: ignore[override]
        self, *, seed: Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts new episodes; each environment has its own seed, of which EnvPool takes 31 bits."""
        if seed is not None:
            # The threads of the former pool end before those of the next one begin.
            self._pool = None
            self._pool = self._make(seed=[each % 2**31 for each in seed])
        observation, info = self._pool.reset()
        return observation, _with_mask(info)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Takes one step in each environment, in which those that ended in the last step reset."""
        *values, info = self._pool.step(actions)
        observation, reward, terminated, truncated = values
        return observation, reward, terminated, truncated, _with_mask(info)

    def close_extras(self, **kwargs: Any) -> None:
        """Ends the threads of the pool."""
        self._pool = None


class PoolEnvironment(gymnasium.Env[Any, Any]):
    """A pool of one environment, with Gymnasium's interface of a single one, for films and for worker processes."""

    def __init__(self, make: Any, **arguments: Any) -> None:
        """Makes the pool as `PoolEnvironments`."""
        self.metadata = {"render_modes": ["rgb_array", "human"]}
        self.render_mode = arguments.get("render_mode")
        self._make = _with_arguments(make, 1, arguments)
        self._pool: Any = self._make()
        self.observation_space, self.action_space = _spaces(self._pool)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode."""
        super().reset(seed=seed)
        if seed is not None:
            self._pool = None
            self._pool = self._make(seed=[seed % 2**31])
        observation, info = self._pool.reset()
        return row_of(observation, 0), row_of(_with_mask(info), 0)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes one step."""
        actions = mapped(action, lambda leaf: np.asarray(leaf)[None])
        observation, reward, terminated, truncated, info = self._pool.step(actions)
        values = float(reward[0]), bool(terminated[0]), bool(truncated[0])
        return row_of(observation, 0), *values, row_of(_with_mask(info), 0)

    def render(self) -> Any:
        """Returns the picture, <uint8>[H, W, 3]; None if it is shown in a window."""
        pictures = self._pool.render()
        return None if pictures is None else pictures[0]

    def close(self) -> None:
        """Ends the threads of the pool."""
        self._pool = None


def _with_arguments(make: Any, count: int, arguments: Mapping[str, Any]) -> Any:
    if taken := sorted(arguments.keys() & set(_GIVEN)):
        raise ConfigurationError(
            f"Penstock chooses the argument {taken[0]} of EnvPool; remove it from environment.kwargs, and set"
            " actor.environments for the number of environments, and run.seed for the seed"
        )
    return functools.partial(make, num_envs=count, **{"num_threads": 1, **arguments})


def _spaces(pool: Any) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """Returns the spaces of an observation and of an action, which EnvPool makes with bounds of 64 bits."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*precision lowered by casting")
        return pool.observation_space, pool.action_space


def _with_mask(info: dict[str, Any]) -> dict[str, Any]:
    """Gives the action mask of an info the name that Gymnasium's environments use."""
    return {**info, KEY: info[_LEGAL]} if _LEGAL in info else info
