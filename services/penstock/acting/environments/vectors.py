"""Vector environments with one common sequence of rows, in which each row continues the one before.

In Gymnasium's NEXT_STEP autoreset mode, the row after an episode's last step holds the episode's final observation, and
its action only resets. Vector environments in SAME_STEP mode are adapted to the same rows.
"""

import contextlib
import dataclasses
import functools
import inspect
import io
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol, TextIO, TypeVar

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from penstock.acting.environments.checked_vector import CheckedVector
from penstock.acting.environments.interfaces.parallel_agents import ParallelAgents
from penstock.acting.environments.making import Making
from penstock.acting.environments.native.choice import is_chosen
from penstock.acting.environments.progress import Progress
from penstock.acting.environments.refusals import can_not_make
from penstock.acting.environments.registry import import_and_find, make, registered_spec
from penstock.acting.environments.shared_generator import SeparateGenerators
from penstock.acting.environments.single_environments import AnswerTogether, SingleEnvironments, StepOutcome
from penstock.acting.environments.tensors import TensorRows, TensorVector, is_tensor, takes_tensors
from penstock.acting.environments.varied import Instances, Variation, VariedEpisodes
from penstock.acting.environments.workers.pool import ProcessEnvironments
from penstock.acting.environments.wrappers.named import wrapped
from penstock.acting.environments.wrappers.one_choice import OneChoice, OneChoiceVector, masked_as_one
from penstock.acting.environments.wrappers.texts import readable
from penstock.acting.values import masks
from penstock.acting.values.info_metrics import InfoMetrics
from penstock.acting.values.leaves import flatten
from penstock.acting.values.masks import MaskSource
from penstock.acting.values.spaces import describe
from penstock.errors import ConfigurationError, EnvironmentFailed
from penstock.machine import foreign_errors
from penstock.types.spaces import EnvironmentSpec

Made = TypeVar("Made")
FindMasks = Callable[
    [
        gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any],
        gymnasium.Space[Any],
        EnvironmentSpec,
        Callable[[int], Mapping[str, Any]],
    ],
    tuple[EnvironmentSpec, MaskSource | None],
]

_PROBES = 3
"""Resets that are tried in search of action masks, because a simulator's reset may fail now and then."""

_KEPT = 1000
"""Characters that are kept of the output of a constructor, which say why it ended its process."""


class MadeOnce(ConfigurationError):
    """The first environment of a process was made, and another one was not."""


class Environments(Protocol):
    """N environments that are stepped together.

    Attributes:
        spec: Spaces of the environments.
        count: Number of environments, N.
        timed: Whether a registered time limit or a `TimeLimit` ends each episode.
        observation: [N, ...] observations that the next row records, one array per leaf.
        acting_observation: [N, ...] observations that the policy acts on, one array per leaf. They differ from
            `observation` where an adapted environment has already reset, and where frames are stacked.
        action_mask: <bool>[N, bits] legal actions at `acting_observation`; None without masks.
        progress: Record of the environment that is being called.
    """

    spec: EnvironmentSpec
    count: int
    timed: bool
    progress: Progress
    observation: tuple[NDArray[np.generic], ...]
    acting_observation: tuple[NDArray[np.generic], ...]
    action_mask: NDArray[np.bool_] | None

    def reset(self, seeds: Sequence[int]) -> None:
        """Starts new episodes; each environment's generator gets its own seed. Raises `EnvironmentFailed`."""

    def step(self, action: tuple[NDArray[np.generic], ...]) -> StepOutcome:
        """Takes one step in each environment, with one array of actions [N, ...] per leaf.

        Raises `EnvironmentFailed`.
        """

    def send(self, action: tuple[NDArray[np.generic], ...], environments: NDArray[np.intp]) -> None:
        """Begins a step in the environments with these indices, none of which is in a step.

        The arrays of actions have a row for each of the N environments; the rows of others are not read.
        """

    def receive(self, least: int) -> tuple[NDArray[np.intp], StepOutcome]:
        """Waits until at least `least` of the environments in a step have ended it.

        Returns the indices of all that have, and outcomes, of which their rows are valid. The rows of other
        environments, here and in the attributes, may change until these have answered. Raises `EnvironmentFailed`.
        """

    def close(self) -> None:
        """Releases the environments' resources."""


class NextStepEnvironments(AnswerTogether):
    """Environments in Gymnasium's NEXT_STEP autoreset mode."""

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        spec: EnvironmentSpec,
        progress: Progress | None = None,
        mask_source: MaskSource | None = None,
        info_metrics: Sequence[str] = (),
    ) -> None:
        self.spec, self.count, self.progress = spec, envs.num_envs, progress or Progress()
        self.timed = envs.spec is not None and envs.spec.max_episode_steps is not None
        self._envs = CheckedVector(envs, spec, self.progress, mask_source)
        self._info = InfoMetrics(info_metrics, self.count, self.progress.notice) if info_metrics else None
        # Masks and infos are read on the host.
        on_device = isinstance(envs, TensorVector) and mask_source is None and self._info is None
        self._tensors = envs if on_device and isinstance(envs, TensorVector) else None
        # Environments whose next row is not trained on.
        self._invalid: NDArray[np.bool_] = np.zeros(self.count, np.bool_)
        self.observation: tuple[NDArray[np.generic], ...] = ()
        self.acting_observation: tuple[NDArray[np.generic], ...] = ()
        self.action_mask: NDArray[np.bool_] | None = None

    def reset(self, seeds: Sequence[int]) -> None:
        """Starts new episodes."""
        infos = self._envs.reset(seeds)
        self.observation = self.acting_observation = self._envs.observation
        self._invalid = np.zeros(self.count, np.bool_)
        self.action_mask = self._envs.masks(infos, self._invalid)
        if self._info is not None:
            self._info.begin(infos)

    def step(self, action: tuple[NDArray[np.generic], ...]) -> StepOutcome:
        """Takes one step in each environment."""
        reward, terminated, truncated, infos = self._envs.step(action)
        self.observation = self.acting_observation = self._envs.observation
        reset, self._invalid = self._invalid, terminated | truncated
        self.action_mask = self._envs.masks(infos, self._invalid)
        info = None if self._info is None else self._info.step(infos, reset, self._invalid)
        return StepOutcome(reward, terminated, truncated, ~reset, reset, info=info)

    def close(self) -> None:
        """Closes the environments."""
        self._envs.close()

    @property
    def device(self) -> Any:
        """Device of torch on which `rows_on_device` are; None if there is none, or the host reads masks or infos."""
        return None if self._tensors is None else self._tensors.env.unwrapped.device  # type: ignore[attr-defined]

    def rows_on_device(self) -> TensorRows | None:
        """Returns the rows from the last reset on, on the device; None if the environments do not return tensors.

        They replace `step` until the next reset. Raises `EnvironmentFailed` if the observations have another shape.
        """
        assert self._tensors is not None
        if not all(map(is_tensor, flatten(self.spec.observation, self._envs.returned))):
            return None
        return TensorRows(self._tensors, self._envs, self.spec, at_once=isinstance(self, SameStepEnvironments))


class SameStepEnvironments(NextStepEnvironments):
    """Environments in SAME_STEP autoreset mode, adapted to the rows of NEXT_STEP mode.

    Where an episode terminates, nothing depends on its final observation, and the next row is the first of the next
    episode. Where it is truncated, the next row records the final observation. At the same time, the policy takes the
    first step of the next episode, acting on that episode's first observation. This hidden step counts in the episode's
    return but is not trained on.
    """

    def step(self, action: tuple[NDArray[np.generic], ...]) -> StepOutcome:
        """Takes one step in each environment."""
        reward, terminated, truncated, infos = self._envs.step(action)
        valid = ~self._invalid
        # An episode that ends in its hidden first step has no row to record, so the next episode begins at once.
        self._invalid = truncated & ~terminated & valid
        self.observation = self.acting_observation = self._envs.observation
        # Masks belong to the observation that the policy acts on, which is never a final one.
        self.action_mask = self._envs.masks(infos, np.zeros(self.count, np.bool_))
        if self._invalid.any():
            self.observation = tuple(leaf.copy() for leaf in self.acting_observation)
            for index in np.flatnonzero(self._invalid):
                for leaf, final in zip(self.observation, self._envs.final(infos, int(index)), strict=True):
                    leaf[index] = final
            self._envs.check(self.observation)
        info = None if self._info is None else self._info.step_at_once(infos, terminated | truncated)
        return StepOutcome(reward, terminated, truncated, valid, ~valid | terminated, info=info)


class AgentEnvironments(NextStepEnvironments):
    """Rows that are the agents of environments, each of which may begin and end before the others."""

    def __init__(self, agents: ParallelAgents, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._agents = agents
        self.notices = [f"{agents.agents} agents, each of which is a row of its own", *agents.notices]

    @property
    def agents(self) -> int:
        """Number of rows of one environment."""
        return self._agents.agents

    def render(self) -> Any:
        """Returns a picture of the first environment, <uint8>[H, W, 3]."""
        return self._agents.render()

    def step(self, action: tuple[NDArray[np.generic], ...]) -> StepOutcome:
        """Takes one step in each environment. A row is valid if its agent acted."""
        reward, terminated, truncated, infos = self._envs.step(action)
        self.observation = self.acting_observation = self._envs.observation
        acted, begun, absent = (each.copy() for each in (self._agents.acted, self._agents.begun, self._agents.absent))
        self.action_mask = self._envs.masks(infos, absent)
        info = None if self._info is None else self._info.step(infos, begun, terminated | truncated)
        return StepOutcome(reward, terminated, truncated, acted, begun, info=info)


def agents_of(environments: Environments) -> int:
    """Returns how many rows one environment has: the number of its agents, or 1."""
    return environments.agents if isinstance(environments, AgentEnvironments) else 1


def device_of(environments: Environments) -> Any:
    """Returns the device of torch on which windows of these environments can be collected; None: only on the host."""
    return environments.device if isinstance(environments, NextStepEnvironments) else None


def make_environments(
    making: Making, count: int, *, progress: Progress | None = None, expected: EnvironmentSpec | None = None
) -> Environments:
    """Makes N environments.

    The first environment is reset once if its action masks may be in its infos. It is not reset if the `expected` spec
    says whether there are masks.

    Raises `ConfigurationError` if there is no such environment, it can't be made (`MadeOnce`: made again), an argument
    is text in place of a truth value, its spaces differ each time it is made, or its spaces or autoreset mode are not
    supported.
    """
    progress = progress or Progress()
    if making.vectorization == "process":
        return ProcessEnvironments(making, count, progress=progress, expected=expected)
    env_id = making.env_id
    found = import_and_find(env_id, making.imports, making.python)
    find_masks = functools.partial(_masks_of, use_masks=making.use_masks, expected=expected)
    spec = registered_spec(found)
    auto = making.vectorization == "auto" and not making.wrappers and making.turns is None
    if making.vectorization == "native" or (auto and spec is not None and is_chosen(spec, making.kwargs, count)):
        return _make_native(making, count, progress, found if spec is None else spec, find_masks)
    if isinstance(found, EnvSpec) and found.entry_point is None:
        raise ConfigurationError(
            f"{env_id} is a class of vector environments, which have no single form; set environment.vectorization to"
            " auto, environment.vary to actors, and remove environment.wrappers"
        )
    envs: list[gymnasium.Env[Any, Any]] = []
    try:
        envs.extend(_singles(making, count, found, progress))
        described = describe(env_id, envs[0].observation_space, envs[0].action_space)
        _require_equal_spaces(env_id, envs)
        made = SingleEnvironments(envs, described, progress)
        made.use_masks(*find_masks(envs[0], envs[0].observation_space, described, made.first_info))
        made.report_info(making.info_metrics)
    except BaseException:
        for env in envs:
            foreign_errors.close_quietly(env)
        raise
    return made


def _singles(making: Making, count: int, found: str | EnvSpec, progress: Progress) -> Iterator[gymnasium.Env[Any, Any]]:
    """Makes N single environments, one after another. Raises `ConfigurationError`."""

    def one(variation: Variation) -> gymnasium.Env[Any, Any]:
        kwargs, wrappers = variation.kwargs, variation.wrappers
        env = readable(
            _made(making.env_id, found, kwargs, lambda: wrapped(make(found, kwargs), making.env_id, wrappers))
        )
        try:
            check_arguments(env, making.env_id, kwargs)
        except ConfigurationError:
            foreign_errors.close_quietly(env)
            raise
        joint = making.use_masks and masked_as_one(env.observation_space, env.action_space)
        return OneChoice(env) if joint else env

    instances = None if making.turns is None else Instances(making.turns, one, count)
    for index in range(count):
        progress.environment = index
        try:
            if instances is None:
                yield one(Variation(0, making.kwargs, making.wrappers))
            else:
                known = instances.turns.variations
                yield VariedEpisodes(instances, known[index % len(known)], progress.notice)
        except ConfigurationError as error:
            if not index:
                raise
            raise MadeOnce(
                f"{error}; the first of them was made, so environment.vectorization process, with an environment in"
                " each process, may help"
            ) from error


def _require_equal_spaces(env_id: str, envs: Sequence[gymnasium.Env[Any, Any]]) -> None:
    for env in envs[1:]:
        for role in ("observation_space", "action_space"):
            spaces = [getattr(each, role) for each in (envs[0], env)]
            if spaces[0] != spaces[1]:
                differ = " and ".join(foreign_errors.shortened(str(space)) for space in spaces)
                raise ConfigurationError(
                    f"two environments {env_id} made with the same arguments differ in their {role}, {differ}; one"
                    " policy needs the same spaces everywhere, so they must depend only on the arguments"
                )


def check_arguments(
    made: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any], env_id: str, kwargs: Mapping[str, object]
) -> None:
    """Raises `ConfigurationError` if an argument of a made environment is text and its default is True or False.

    An argument such as "no" remains text, and a constructor treats any text that is not empty as true.
    """
    texts = {name: value for name, value in kwargs.items() if isinstance(value, str)}
    if not texts:
        return
    parameters = inspect.signature(type(made.unwrapped)).parameters
    for name, text in texts.items():
        if name in parameters and isinstance(default := parameters[name].default, bool):
            raise ConfigurationError(
                f"the argument {name} of {env_id} must be True or False (its default is {default}), not the text"
                f" {text!r}; write {name}=True or {name}=False"
            )


def _make_native(
    making: Making, count: int, progress: Progress, found: str | EnvSpec, find_masks: FindMasks
) -> Environments:
    progress.environment = None
    env_id, kwargs = making.env_id, dict(making.kwargs)
    made = _made(
        env_id,
        found,
        kwargs,
        lambda: gymnasium.make_vec(found, count, vectorization_mode="vector_entry_point", **kwargs),
    )
    check_arguments(made, env_id, kwargs)
    envs: VectorEnv[Any, Any, Any] = TensorVector(made) if takes_tensors(made) else SeparateGenerators(made)
    if making.use_masks and masked_as_one(envs.single_observation_space, envs.single_action_space):
        envs = OneChoiceVector(envs)
    described = describe(env_id, envs.single_observation_space, envs.single_action_space)
    mode = envs.metadata.get("autoreset_mode")
    if mode not in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
        raise ConfigurationError(
            f"{env_id} does not reset automatically (autoreset mode {mode}); NEXT_STEP and SAME_STEP are supported"
        )
    checked = CheckedVector(envs, described, progress)
    spec, source = find_masks(
        envs, envs.single_observation_space, described, lambda seed: checked.reset([seed] * count)
    )
    if isinstance(made.unwrapped, ParallelAgents):
        return AgentEnvironments(made.unwrapped, envs, spec, progress, source, making.info_metrics)
    adapted = NextStepEnvironments if mode == AutoresetMode.NEXT_STEP else SameStepEnvironments
    return adapted(envs, spec, progress, source, making.info_metrics)


def _masks_of(
    env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any],
    observation: gymnasium.Space[Any],
    spec: EnvironmentSpec,
    reset: Callable[[int], Mapping[str, Any]],
    *,
    use_masks: bool,
    expected: EnvironmentSpec | None,
) -> tuple[EnvironmentSpec, MaskSource | None]:
    """Returns the spec with the number of mask bits, and where the environment returns its masks.

    `reset` resets the environment with a seed and returns the info.
    """
    if not use_masks or (expected is not None and not expected.mask_bits):
        return spec, None

    def first_info() -> Mapping[str, Any]:
        if expected is not None:
            return {masks.KEY: True}
        for attempt in range(_PROBES):
            try:
                return reset(attempt)
            except EnvironmentFailed as failed:
                failure = failed
        raise ConfigurationError(failure.what) from failure

    source = masks.find(env, observation, spec.action, first_info)
    return dataclasses.replace(spec, mask_bits=source.bits if source else 0), source


def _made(env_id: str, found: str | EnvSpec, given: Collection[str], make: Callable[[], Made]) -> Made:
    # Gymnasium prints hints about versions on stderr, which would garble a terminal display.
    unshown = _Unshown(sys.stderr)
    try:
        with contextlib.redirect_stderr(unshown):
            return make()
    except ConfigurationError:
        raise
    except foreign_errors.MISBEHAVIOUR as error:
        foreign_errors.let_ctrl_c_pass(error)
        if isinstance(error, SystemExit):
            sys.stderr.write(unshown.last)
        raise can_not_make(env_id, error, found, given) from error
    finally:
        unshown.making = False


class _Unshown(io.StringIO):
    """Standard error that shows nothing while an environment is made, and keeps the `last` text.

    Constructors may use its descriptor, as some simulators do, and keep it for later, as handlers of logs do.
    """

    def __init__(self, stderr: TextIO) -> None:
        super().__init__()
        self._stderr, self.making, self.last = stderr, True, ""

    def fileno(self) -> int:
        return self._stderr.fileno()

    def write(self, text: str, /) -> int:
        if not self.making:
            return self._stderr.write(text)
        self.last = (self.last + text)[-_KEPT:]
        return len(text)
