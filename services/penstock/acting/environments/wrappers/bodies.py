"""Wrappers with which variants of different bodies share a policy: padded spaces, and numbers of a variant as an input.

Robots with another number of joints have other spaces. `wrapping` returns the wrappers of a variant; users may also
name them in `environment.wrappers`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from penstock.acting.environments.wrappers.named import Wrapping
from penstock.acting.values.masks import KEY, METHOD
from penstock.errors import ConfigurationError
from penstock.types.spaces import BoxSpace, DiscreteSpace, EnvironmentSpec, Space, Tree

_OBSERVATION, _VARIANT = "observation", "variant"


class Sizes(NamedTuple):
    """Sizes to which spaces are padded: numbers of an observation, and numbers or alternatives of an action.

    0: the space is the same in all variants, and is not padded.
    """

    observation: int
    action: int


def wrapping(sizes: Sizes | None, shown: Sequence[float]) -> list[Wrapping]:
    """Returns the wrappers that pad spaces to these sizes (None: none), and show the policy these numbers."""
    found: list[Wrapping] = []
    if sizes is not None:
        # Outside of the action's, which may take the mask out of an observation.
        padded = {"PadAction": sizes.action, "PadObservation": sizes.observation}
        found += [{"name": name, "size": size} for name, size in padded.items() if size]
    if shown:
        found.append({"name": "ShowNumbers", "numbers": list(shown)})
    return found


def common_sizes(variants: Sequence[tuple[str, EnvironmentSpec]]) -> Sizes:
    """Returns the sizes that fit all variants, each with its name for messages.

    Raises `ConfigurationError` if spaces differ and can't be padded.
    """
    return Sizes(_common_size("observation", variants), _common_size("action", variants))


class PadObservation(gymnasium.ObservationWrapper[Any, Any, Any]):
    """An environment whose observation, a row of numbers, ends with zeros up to the size of larger bodies.

    The padded space has no bounds, because other bodies may have different ones.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], size: int) -> None:
        """Raises `ConfigurationError` if the observation is not a row of numbers, or is larger than `size`."""
        super().__init__(env)
        space = _row(env.observation_space, "observations")
        self._kind, self._size = np.dtype(space.dtype), size
        limits = (
            (-np.inf, np.inf)
            if self._kind.kind == "f"
            else (np.iinfo(self._kind.name).min, np.iinfo(self._kind.name).max)
        )
        low, high = (np.full(size, limit, self._kind) for limit in limits)
        self.observation_space = spaces.Box(low, high, dtype=self._kind.type)
        _require_room("numbers of an observation", space.shape[0], size)

    def observation(self, observation: Any) -> NDArray[np.generic]:
        """Returns the numbers and zeros, [size]."""
        padded = np.zeros(self._size, self._kind)
        padded[: len(observation)] = observation
        return padded


class PadAction(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose action, a row of numbers or Discrete, has the size of larger bodies.

    The environment gets the first numbers of a row. Further ones have no effect, and the bounds of the last one.
    Further alternatives of Discrete are illegal, by an action mask.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], size: int) -> None:
        """Raises `ConfigurationError` if the action is neither of them, or is larger than `size`."""
        super().__init__(env)
        self._given = env.observation_space
        self._mask: Any = None
        if isinstance(env.action_space, spaces.Discrete):
            self._own, self._first, self._size = int(env.action_space.n), int(env.action_space.start), size
            self.action_space = spaces.Discrete(size, start=self._first)
            # An attribute of the object, because an environment without choices has no method for masks.
            setattr(self, METHOD, self._legal)
            if isinstance(self._given, spaces.Dict) and KEY in self._given.spaces:
                parts = self._given.spaces.items()
                self.observation_space = spaces.Dict({key: part for key, part in parts if key != KEY})
            _require_room("alternatives of an action", self._own, size)
            return
        space = _row(env.action_space, "actions that are not Discrete")
        self._own = space.shape[0]
        _require_room("numbers of an action", self._own, size)
        low, high = (np.append(side, np.repeat(side[-1:], size - self._own)) for side in (space.low, space.high))
        self.action_space = spaces.Box(low, high, dtype=space.dtype.type)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode."""
        return self._seen(*self.env.reset(seed=seed, options=options))

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Takes one step with the part of an action that the body has. Raises `ValueError` for another alternative."""
        if isinstance(self.action_space, spaces.Box):
            action = action[: self._own]
        elif action >= self._first + self._own:
            raise ValueError(f"it has {self._own} actions, and {action} is none; set environment.action_masks to true")
        observation, reward, terminated, truncated, info = self.env.step(action)
        observation, info = self._seen(observation, info)
        return observation, reward, terminated, truncated, info

    def _seen(self, observation: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Keeps the mask, and returns the observation without it."""
        self._mask = info.get(KEY)
        if self.observation_space is self._given:
            return observation, info
        self._mask = observation[KEY]
        return {key: part for key, part in observation.items() if key != KEY}, info

    def _legal(self) -> NDArray[np.bool_]:
        own = self.env.get_wrapper_attr(METHOD)() if self.env.has_wrapper_attr(METHOD) else self._mask
        legal = np.zeros(self._size, np.bool_)
        legal[: self._own] = True if own is None else np.asarray(own).ravel() != 0
        return legal


class ShowNumbers(gymnasium.ObservationWrapper[Any, Any, Any]):
    """An environment whose observations include these numbers, such as the length of its limbs.

    They follow the numbers of an observation that is a row of floats, and are the part `variant` of others.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], numbers: Sequence[float]) -> None:
        """Raises `ConfigurationError` if the observation already has a part of that name."""
        super().__init__(env)
        space, self._numbers = env.observation_space, np.array(numbers, np.float32)
        ends = np.full(len(numbers), np.inf, np.float32)
        inner: list[str] = env.get_wrapper_attr("notices") if env.has_wrapper_attr("notices") else []
        self.notices = [*inner, f"numbers of the variant in an observation: {len(numbers)}"]
        self._row = (
            space if isinstance(space, spaces.Box) and len(space.shape) == 1 and space.dtype.kind == "f" else None
        )
        if self._row is not None:
            low, high = np.append(self._row.low, -ends), np.append(self._row.high, ends)
            self.observation_space = spaces.Box(low, high, dtype=self._row.dtype.type)
            return
        parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {_OBSERVATION: space}
        if _VARIANT in parts:
            raise ConfigurationError(
                f"an observation has a part {_VARIANT!r} already; set environment.show_variant to false"
            )
        self.observation_space = spaces.Dict({**parts, _VARIANT: spaces.Box(-ends, ends, dtype=np.float32)})

    def observation(self, observation: Any) -> Any:
        """Returns the observation with the numbers."""
        if self._row is not None:
            return np.concatenate([observation, self._numbers], dtype=self._row.dtype)
        parts = dict(observation) if isinstance(observation, Mapping) else {_OBSERVATION: observation}
        return {**parts, _VARIANT: self._numbers}


def _row(space: gymnasium.Space[Any], what: str) -> spaces.Box:
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return space
    raise ConfigurationError(f"{what} can only be padded if they are rows of numbers, not {space}")


def _require_room(what: str, own: int, size: int) -> None:
    if own > size:
        raise ConfigurationError(
            f"it has {own} {what}, and environment.pad_spaces has room for {size}; raise it, or set it to auto"
        )


def _common_size(role: str, variants: Sequence[tuple[str, EnvironmentSpec]]) -> int:
    trees: list[Tree] = [getattr(spec, role) for _, spec in variants]
    if all(tree == trees[0] for tree in trees):
        return 0
    forms = [form for tree in trees if (form := _form(tree, role)) is not None]
    if len(forms) == len(trees) and len({kind for kind, _ in forms}) == 1:
        return max(size for _, size in forms)
    wrong = next(place for place, tree in enumerate(trees) if tree != trees[0])
    shown = " and ".join(f"{trees[place].shown()} ({variants[place][0]})" for place in (0, wrong))
    raise ConfigurationError(
        f"environment.pad_spaces pads rows of numbers and Discrete actions, and not {role}s as {shown}; make them rows"
        " of numbers (the wrapper FlattenObservation), or remove one of the variants"
    )


def _form(tree: Tree, role: str) -> tuple[type[Space], int] | None:
    """Returns the kind and the size of a space that can be padded; None of others."""
    space = tree.spaces[0]
    if tree.leaves[0].path:
        return None
    if isinstance(space, DiscreteSpace) and role == "action":
        return DiscreteSpace, space.n
    return (BoxSpace, space.size) if isinstance(space, BoxSpace) and len(space.shape) == 1 else None
