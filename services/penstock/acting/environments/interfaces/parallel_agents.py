"""Environments of several agents with PettingZoo's parallel interface, such as pettingzoo:mpe2.simple_spread_v3.

Each agent is a row of a vector environment, and all agents share one policy. An observation has the agent's identity,
unless the argument `agent_identity` is False. With the argument `state`, it also has the state of the whole game, which
is for the critic (`policy.critic_only`). Observations and actions of different sizes are padded.
"""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from penstock.acting.values.leaves import row_of
from penstock.acting.values.masks import KEY
from penstock.errors import ConfigurationError, UnknownEnvironment
from penstock.machine import extras
from penstock.machine.module_imports import import_named

PLACE = "pettingzoo"
_MAKER, _OBSERVATION, _IDENTITY, _STATE = "parallel_env", "observation", "agent", "state"
_NUMBERS = (bool, int, float, np.number, np.bool_)


class UnevenRows(ConfigurationError):
    """A number of rows is not a multiple of the number of `agents` of an environment."""

    def __init__(self, name: str, agents: int, count: int) -> None:
        self.agents = agents
        super().__init__(
            f"{name} has {agents} agents, each of which counts as an environment, so their number must be a multiple of"
            f" {agents}; set actor.environments and evaluation.episodes to such numbers, as {self.filled(count)} in"
            f" place of {count}"
        )

    def filled(self, count: int, variants: int = 1) -> int:
        """Returns the least number of rows from `count` on that whole environments of each variant fill."""
        rows = self.agents * variants
        return -(-count // rows) * rows


def parallel_spec(name: str) -> EnvSpec:
    """Returns the specification of the environment of a module, such as mpe2.simple_spread_v3, for all its agents.

    Raises `UnknownEnvironment` if PettingZoo is not installed, and `ConfigurationError` if the module can't be
    imported, or has no parallel environment.
    """
    if extras.missing(PLACE):
        raise UnknownEnvironment(f"the environment '{PLACE}:{name}' needs {PLACE}; {extras.installation(PLACE)}")
    reason = f"{name} has no function {_MAKER}"
    try:
        if callable(make := import_named(name, _MAKER)):
            return of_agents(name, make)
    except ConfigurationError as error:
        reason = str(error)
    raise ConfigurationError(
        f"can't make the environment '{PLACE}:{name}': {reason}; name a module with a function {_MAKER}, such as"
        f" {PLACE}:mpe2.simple_spread_v3"
    )


def of_agents(name: str, make: Any) -> EnvSpec:
    """Returns the specification of a parallel environment that a class or a function makes."""
    vector: Any = functools.partial(ParallelAgents, name, make)
    return EnvSpec(id=name, vector_entry_point=vector)


def is_parallel(entry: object) -> bool:
    """Returns whether a class is of PettingZoo's parallel environments. It does not import PettingZoo."""
    package = sys.modules.get(PLACE)
    return package is not None and isinstance(entry, type) and issubclass(entry, package.ParallelEnv)


def is_of_agents(found: object) -> bool:
    """Returns whether what `registry.find` has found is a specification of `of_agents`."""
    return isinstance(found, EnvSpec) and getattr(found.vector_entry_point, "func", None) is ParallelAgents


class ParallelAgents(VectorEnv[Any, Any, Any]):
    """N rows, each of which is an agent of one of N / A environments with A possible agents.

    The rows of an environment are in the order of its `possible_agents`. An environment resets in the step after its
    last agent has ended. A row whose agent is not in the environment has an observation of zeros.

    Attributes:
        agents: Number of possible agents of an environment, A.
        acted: <bool>[N] whether the row's agent acted in the last step.
        begun: <bool>[N] whether the row's agent has appeared in the last step.
        absent: <bool>[N] whether the row's agent can't act now.
        notices: Lines about what was padded.
    """

    def __init__(
        self,
        name: str,
        make: Callable[..., Any],
        num_envs: int,
        *,
        agent_identity: bool = True,
        state: bool = False,
        **arguments: Any,
    ) -> None:
        """Makes the environments. Raises `ConfigurationError` (`UnevenRows`) if their agents can't share a policy."""
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs, self._name = num_envs, name
        first = make(**arguments)
        self._ids = list(getattr(first, "possible_agents", ()))
        self.agents = len(self._ids)
        if not self.agents:
            raise ConfigurationError(f"{name} does not name its possible_agents, each of which needs a row")
        if num_envs % self.agents:
            first.close()
            raise UnevenRows(name, self.agents, num_envs)
        self._envs = [first, *(make(**arguments) for _ in range(num_envs // self.agents - 1))]
        self.notices: list[str] = []
        self._forms = [_Form(first, agent) for agent in self._ids]
        self._width = self._common_observation()
        self._masked = self._common_action()
        self._identity = agent_identity and self.agents > 1
        self.single_observation_space = self._with_identity(self._observed)
        self._state = self._state_of(first) if state else None
        if self._state is not None:
            space = self.single_observation_space
            self.single_observation_space = self._with_part(
                space, _STATE, self._state, "the state of the game", "state"
            )
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.acted, self.begun, self.absent = (np.zeros(num_envs, np.bool_) for _ in range(3))
        self._rows: list[Any] = [None] * num_envs
        self._infos: dict[str, Any] = {}

    def reset(  # type: ignore[override]
        self, *, seed: Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts new episodes. The seed of an environment is the lower 31 bits of its first row's."""
        self._infos = {}
        for number in range(len(self._envs)):
            self._begin(number, None if seed is None else seed[number * self.agents] % 2**31)
        self.acted[:], self.begun[:] = False, ~self.absent
        return self._batch(), self._infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Takes one step in each environment, in which those without agents reset.

        Raises `ValueError` or `KeyError` if the environment leaves out what an agent needs.
        """
        reward = np.zeros(self.num_envs, np.float64)
        terminated, truncated = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.bool_)
        self.acted[:], self.begun[:], self._infos = False, False, {}
        for number, env in enumerate(self._envs):
            rows = range(number * self.agents, (number + 1) * self.agents)
            before = set(env.agents)
            if not before:
                self._begin(number, None)
                self.begun[rows] = ~self.absent[rows]
                continue
            chosen = {
                agent: form.action(row_of(actions, row))
                for row, agent, form in zip(rows, self._ids, self._forms, strict=True)
                if agent in before
            }
            observations, rewards, ends, cuts, notes = env.step(chosen)
            state, now = self._state_now(env), set(env.agents)
            if unknown := now.difference(self._ids):
                raise ValueError(f"{min(unknown)} is not among the possible_agents")
            for row, agent in zip(rows, self._ids, strict=True):
                if agent in before:
                    self.acted[row], reward[row] = True, rewards[agent]
                    terminated[row], truncated[row] = bool(ends[agent]), bool(cuts[agent])
                    if agent not in now and not (terminated[row] or truncated[row]):
                        raise ValueError(f"{agent} left without being terminated or truncated")
                    if agent not in observations and truncated[row]:
                        raise ValueError(f"{agent} was truncated without a last observation")
                ended = terminated[row] or truncated[row]
                self.begun[row] = agent in now and (agent not in before or ended)
                self._take(row, env, observations, notes, state)
        return self._batch(), reward, terminated, truncated, self._infos

    def render(self) -> Any:
        """Returns a picture of the first environment, <uint8>[H, W, 3]."""
        return self._envs[0].render()

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the environments."""
        for env in self._envs:
            env.close()

    def _begin(self, number: int, seed: int | None) -> None:
        env = self._envs[number]
        observations, notes = env.reset(seed=seed)
        if not env.agents:
            raise ValueError("reset returned no agents")
        state = self._state_now(env)
        for index in range(self.agents):
            self._take(number * self.agents + index, env, observations, notes, state)

    def _state_now(self, env: Any) -> Any:
        return None if self._state is None else np.asarray(env.state(), self._state.dtype).reshape(self._state.shape)

    def _take(self, row: int, env: Any, observations: Mapping[str, Any], notes: Mapping[str, Any], state: Any) -> None:
        """Takes what the agent of a row has observed, if it is there, its info, and the state of its game."""
        index = row % self.agents
        agent = self._ids[index]
        observation, note = observations.get(agent), notes.get(agent, {})
        self.absent[row] = agent not in env.agents
        if observation is None and not self.absent[row]:
            raise ValueError(f"there is no observation of {agent}")
        seen = self._row(index, observation)
        self._rows[row] = seen if state is None else {**_parts(seen), _STATE: state}
        mask = self._forms[index].mask(observation, note)
        if mask is not None or self._masked:
            actions = self.single_action_space
            if not isinstance(actions, spaces.Discrete):
                raise ConfigurationError(f"{self._name} has action masks, which need Discrete actions, not {actions}")
            if KEY not in self._infos:
                self._infos[KEY] = np.ones((self.num_envs, int(actions.n)), np.bool_)
            legal = self._infos[KEY][row]
            own = self._forms[index].count
            legal[:own] = True if mask is None else np.asarray(mask).ravel() != 0
            # An absent agent has no choice to make, and no action of it is illegal.
            legal[own:] = observation is None
        if numbers := {key: value for key, value in note.items() if isinstance(value, _NUMBERS) and key != KEY}:
            self._infos = self._add_info(self._infos, numbers, row)

    def _batch(self) -> Any:
        out: Any = create_empty_array(self.single_observation_space, self.num_envs)
        return concatenate(self.single_observation_space, self._rows, out)

    def _common_observation(self) -> int | None:
        """Finds the space of all agents' observations; returns the numbers to which they are padded, or None."""
        found = [form.observation for form in self._forms]
        self._observed = found[0]
        if all(space == found[0] for space in found):
            return None
        if not all(_is_row(space) for space in found):
            self._refuse("observations", found)
        widths = [int(space.shape[0]) for space in found]
        low, high = np.full(max(widths), np.inf), np.full(max(widths), -np.inf)
        for space, width in zip(found, widths, strict=True):
            low[:width], high[:width] = np.minimum(low[:width], space.low), np.maximum(high[:width], space.high)
            low[width:], high[width:] = np.minimum(low[width:], 0.0), np.maximum(high[width:], 0.0)
        self._observed = spaces.Box(low.astype(found[0].dtype), high.astype(found[0].dtype), dtype=found[0].dtype)
        if len(set(widths)) > 1:
            self.notices.append(f"observations of {_numbers(widths)} numbers are padded with zeros to {max(widths)}")
        return max(widths)

    def _common_action(self) -> bool:
        """Finds the space of all agents' actions; returns whether masks are needed."""
        found = [form.actions for form in self._forms]
        self.single_action_space = found[0]
        if all(space == found[0] for space in found):
            return any(form.masked for form in self._forms)
        if all(isinstance(space, spaces.Discrete) and space.start == 0 for space in found):
            counts = [int(space.n) for space in found]
            self.single_action_space = spaces.Discrete(max(counts))
            self.notices.append(f"{_numbers(counts)} actions are padded to {max(counts)} by action masks")
            return True
        if not all(map(_is_row, found)):
            self._refuse("actions", found)
        widest, widths = max(found, key=lambda space: int(space.shape[0])), [int(space.shape[0]) for space in found]
        for space, width in zip(found, widths, strict=True):
            if not (np.array_equal(space.low, widest.low[:width]) and np.array_equal(space.high, widest.high[:width])):
                self._refuse("actions", found)
        self.single_action_space = widest
        self.notices.append(
            f"actions of {_numbers(widths)} numbers are padded to {max(widths)}, whose last ones have no effect for"
            " some agents"
        )
        return False

    def _refuse(self, what: str, found: Sequence[gymnasium.Space[Any]]) -> None:
        other = next(index for index, space in enumerate(found) if space != found[0])
        raise ConfigurationError(
            f"the agents of {self._name} have different {what}, {found[0]} ({self._ids[0]}) and {found[other]}"
            f" ({self._ids[other]}), which one policy can't share; only rows of numbers and Discrete actions are padded"
        )

    def _with_identity(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        if not self._identity:
            return space
        if _is_row_of_floats(space):
            low = np.append(space.low, np.zeros(self.agents)).astype(space.dtype)  # type: ignore[attr-defined]
            high = np.append(space.high, np.ones(self.agents)).astype(space.dtype)  # type: ignore[attr-defined]
            return spaces.Box(low, high, dtype=space.dtype)  # type: ignore[arg-type]
        return self._with_part(space, _IDENTITY, spaces.Discrete(self.agents), "the agent's identity", "agent_identity")

    def _with_part(
        self, space: gymnasium.Space[Any], part: str, own: gymnasium.Space[Any], what: str, argument: str
    ) -> spaces.Dict:
        """Returns the space of an observation with another part. Raises `ConfigurationError` if it has one already."""
        parts = _parts(space.spaces if isinstance(space, spaces.Dict) else space)
        if part in parts:
            raise ConfigurationError(
                f"an observation of {self._name} has a part {part!r}, the name of {what}; set its argument"
                f" {argument}=False"
            )
        return spaces.Dict({**parts, part: own})

    def _state_of(self, env: Any) -> spaces.Box:
        """Returns the space of an environment's state in one row. Raises `ConfigurationError` if it has none."""
        space = getattr(env, "state_space", None)
        if not isinstance(space, spaces.Box) or not callable(getattr(env, "state", None)):
            raise ConfigurationError(
                f"{self._name} has no state() with a Box as its state_space; remove its argument state"
            )
        return spaces.Box(space.low.ravel(), space.high.ravel(), dtype=space.dtype)

    def _row(self, index: int, observation: Any) -> Any:
        """Returns the observation of an agent as the policy sees it. None: zeros, for an absent one."""
        space, form = self._observed, self._forms[index]
        seen = row_of(create_empty_array(space, 1), 0) if observation is None else form.seen(observation)
        if self._width is not None:
            values = np.zeros(self._width, space.dtype)
            values[: len(seen)] = seen
            seen = values
        if not self._identity:
            return seen
        if _is_row_of_floats(space):
            one_hot = np.zeros(self.agents, space.dtype)
            one_hot[index] = observation is not None
            return np.concatenate([np.asarray(seen), one_hot])
        return {**_parts(seen), _IDENTITY: np.int64(index)}


class _Form:
    """The spaces of one agent, without its action mask.

    Attributes:
        observation, actions: The spaces.
        masked: Whether observations have a mask.
        count: Alternatives of Discrete actions, 0 for others.
    """

    def __init__(self, env: Any, agent: str) -> None:
        given, self.actions = env.observation_space(agent), env.action_space(agent)
        self.masked = isinstance(given, spaces.Dict) and KEY in given.spaces
        self._whole = self.masked and set(given.spaces) == {_OBSERVATION, KEY}
        self.observation = given
        if self._whole:
            self.observation = given.spaces[_OBSERVATION]
        elif self.masked:
            self.observation = spaces.Dict({key: part for key, part in given.spaces.items() if key != KEY})
        self.count = int(self.actions.n) if isinstance(self.actions, spaces.Discrete) else 0
        self._width = self.actions.shape[0] if _is_row(self.actions) else None

    def seen(self, observation: Any) -> Any:
        """Returns an observation without the mask."""
        if self._whole:
            return observation[_OBSERVATION]
        if self.masked:
            return {key: part for key, part in observation.items() if key != KEY}
        return observation

    def mask(self, observation: Any, note: Mapping[str, Any]) -> Any:
        """Returns the mask of an observation or an info; None if there is none."""
        return observation[KEY] if self.masked and observation is not None else note.get(KEY)

    def action(self, chosen: Any) -> Any:
        """Returns an action for the environment."""
        if self.count:
            return int(chosen)
        return chosen if self._width is None else chosen[: self._width]


def _is_row(space: gymnasium.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) == 1


def _is_row_of_floats(space: gymnasium.Space[Any]) -> bool:
    return _is_row(space) and np.issubdtype(space.dtype, np.floating)


def _parts(observation: Any) -> Mapping[str, Any]:
    """Returns the parts of an observation, or of its space: its own, or itself as the only one."""
    return observation if isinstance(observation, Mapping) else {_OBSERVATION: observation}


def _numbers(values: Sequence[int]) -> str:
    """Returns different numbers in words."""
    return " and ".join(map(str, sorted(set(values))))
