"""Environments that are stepped one after another, so that a failure can be attributed to one of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import gymnasium
import numpy as np
from gymnasium.wrappers import PassiveEnvChecker, TimeLimit
from numpy.typing import NDArray

from penstock.acting.environments.progress import Progress
from penstock.acting.values import faults, leaves
from penstock.acting.values.info_metrics import InfoMetrics
from penstock.acting.values.leaf_buffers import LeafBuffer, Unusable
from penstock.acting.values.masks import MaskSource
from penstock.acting.values.returned_values import NUMBERS, number_of, shape_of, truth_of
from penstock.errors import ConfigurationError, EnvironmentFailed
from penstock.machine import foreign_errors
from penstock.types.spaces import EnvironmentSpec, Leaves

Value = TypeVar("Value")

_NOTHING = object()
_RESET = (0.0, False, False)
_LARGEST = faults.LARGEST
_SMALL_SEEDS = 2**31


class StepOutcome(NamedTuple):
    """The outcome of one step of N environments. The next step may overwrite its arrays, except `begun`.

    It is a tuple because one is made in every step, which takes a fifth of the time of a frozen dataclass.

    Attributes:
        reward: <float32>[N] raw rewards.
        terminated, truncated: <bool>[N] whether the episode ended, and how.
        valid: <bool>[N] whether the row is trained on; False where it only reset.
        begun: <bool>[N] whether the next row is the first of an episode.
        lost: Failures of environments whose episode ended without its last step, by their index: their row is not
            trained on, and they have begun the next episode.
        info: <float64>[N, M] values so far of the keys of `environment.info_metrics` in each episode, NaN where there
            is none; None without such keys.
    """

    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    begun: NDArray[np.bool_]
    lost: Mapping[int, EnvironmentFailed] = MappingProxyType({})
    info: NDArray[np.float64] | None = None


class AnswerTogether:
    """The methods `send` and `receive` of environments that one call steps, so that all of them answer at once."""

    count: int
    _sent: Leaves = ()

    def step(self, action: tuple[NDArray[np.generic], ...]) -> StepOutcome:
        """Takes one step in each environment."""
        raise NotImplementedError

    def send(self, action: tuple[NDArray[np.generic], ...], environments: NDArray[np.intp]) -> None:
        """Keeps the actions of all environments."""
        assert len(environments) == self.count
        self._sent = action

    def receive(self, least: int) -> tuple[NDArray[np.intp], StepOutcome]:
        """Takes one step in each environment; returns all indices and the outcomes."""
        assert least <= self.count
        return np.arange(self.count), self.step(self._sent)


class SingleEnvironments(AnswerTogether):
    """N environments with the rows of `acting.environments.vectors.Environments`.

    They behave like Gymnasium's SyncVectorEnv in NEXT_STEP autoreset mode, without its infos. All values that an
    environment returns are checked before they are used. After an episode's last step every action is legal, because
    the next row only resets.
    """

    def __init__(
        self,
        envs: Sequence[gymnasium.Env[Any, Any]],
        spec: EnvironmentSpec,
        progress: Progress | None = None,
        masks: MaskSource | None = None,
    ) -> None:
        """Takes ownership of environments with the same spaces. `masks` is None if they have no action masks."""
        self.envs, self.spec, self.count = list(envs), spec, len(envs)
        self.progress, self.timed = progress or Progress(), all(map(_has_time_limit, envs))
        self._space = envs[0].observation_space
        self._nested = bool(spec.observation.leaves[0].path)
        self._actions = leaves.ActionForm(spec.action, spec.action_types)
        self._buffers = [
            LeafBuffer(leaf, leaves.space_at(self._space, leaf.path), self.count) for leaf in spec.observation.leaves
        ]
        self._rows: list[Any] = [None] * self.count
        self.infos: list[Any] = [None] * self.count
        self._ended = np.zeros(self.count, np.bool_)
        self._episode_steps = [0] * self.count
        self.observation: tuple[NDArray[np.generic], ...] = tuple(buffer.rows for buffer in self._buffers)
        self.acting_observation = self.observation
        self._begun_with: int | None = None
        self._info: InfoMetrics | None = None
        self.use_masks(spec, masks)

    def use_masks(self, spec: EnvironmentSpec, masks: MaskSource | None) -> None:
        """Reads masks from here on; the spec has their bits."""
        self.spec, self.masks = spec, masks
        self._mask_of = [masks.reader(env) for env in self.envs] if masks else []
        self.action_mask = np.ones((self.count, masks.bits), np.bool_) if masks else None

    def report_info(self, keys: Sequence[str]) -> None:
        """Reports the values of these keys of the infos from the next reset on; none without keys."""
        self._info = InfoMetrics(keys, self.count, self.progress.notice) if keys else None

    def move_to(self, observation: Leaves, action_mask: NDArray[np.bool_] | None) -> None:
        """Keeps observations and masks in these arrays from here on."""
        for buffer, rows in zip(self._buffers, observation, strict=True):
            buffer.rows = rows
        self.observation = self.acting_observation = observation
        self.action_mask = action_mask

    @property
    def notices(self) -> list[str]:
        """Lines for the user about parts of the environments that are used or left out."""
        lines = []
        if self.masks is not None:
            lines.append(f"action masks from {self.masks.place.value}, {self.masks.bits} bits")
        if texts := leaves.left_out(self._space):
            lines.append(f"the policy does not see {', '.join(texts)}; the wrapper TextTokens lets it read texts")
        if self.envs[0].has_wrapper_attr("notices"):
            lines += self.envs[0].get_wrapper_attr("notices")
        return lines

    def first_info(self, seed: int) -> Any:
        """Starts an episode of the first environment, and returns its info. Raises `EnvironmentFailed` if it failed."""
        self._begin(0, seed=seed)
        self._begun_with = seed
        return self.infos[0]

    def reset(self, seeds: Sequence[int]) -> None:
        """Starts new episodes. Raises `EnvironmentFailed` if an environment failed."""
        for index, seed in enumerate(seeds):
            # The episode that `first_info` started is not started twice.
            if index or seed != self._begun_with:
                self._begin(index, seed=seed)
        self._begun_with = None
        self._ended = np.zeros(self.count, np.bool_)
        self._observe()
        self._read_masks()
        if self._info is not None:
            self._info.begin(self.infos)

    def step(self, action: tuple[NDArray[np.generic], ...]) -> StepOutcome:
        """Takes one step in each environment. Raises `EnvironmentFailed` if an environment failed."""
        progress, ended, outcomes, actions = self.progress, self._ended, [], self._actions.rows(action)
        for index, resets in enumerate(ended.tolist()):
            progress.environment = index
            if resets:
                self._begin(index)
                outcomes.append(_RESET)
            else:
                outcomes.append(self._take(index, actions[index]))
            progress.steps += 1
        self._observe()
        reward, terminated, truncated = zip(*outcomes, strict=True)
        terminations, truncations = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        self._ended = terminations | truncations
        self._read_masks()
        info = None if self._info is None else self._info.step(self.infos, ended, self._ended)
        return StepOutcome(np.array(reward, np.float32), terminations, truncations, ~ended, ended, info=info)

    def close(self) -> None:
        """Closes the environments."""
        for env in self.envs:
            env.close()

    def _begin(self, index: int, **seed: int) -> None:
        progress, before = self.progress, self.progress.doing
        progress.doing, progress.environment = "reset", index
        self._episode_steps[index] = 0
        try:
            result = self._reset(index, **seed)
        except foreign_errors.MISBEHAVIOUR as error:
            raise faults.raised(error, self._where(index), self.spec.id, index) from error
        if fault := faults.of_form(result, 2):
            raise self._failure(*fault, index)
        self._rows[index], self.infos[index] = result
        progress.doing = before

    def _reset(self, index: int, seed: int | None = None) -> Any:
        """Resets an environment, with a smaller seed if it refuses a large one.

        NumPy's older generator, which dm_control uses, takes 32 bits. Simulators in C take a C integer.
        """
        env = self.envs[index]
        if seed is None:
            return env.reset()
        try:
            return env.reset(seed=seed)
        except (OverflowError, ValueError):
            if seed < _SMALL_SEEDS:
                raise
        _repeat_check(env)
        return env.reset(seed=seed % _SMALL_SEEDS)

    def _take(self, index: int, action: Any) -> tuple[float, bool, bool]:
        result: Any = _NOTHING
        self._episode_steps[index] += 1
        try:
            result = self.envs[index].step(action)
            self._rows[index], reward, terminated, truncated, info = result
            self.infos[index] = info
            if type(reward) is not float:
                reward = float(reward) if isinstance(reward, NUMBERS) else self._one("a reward", reward, number_of)
            # Comparisons with NaN are false, so that NaN fails this test.
            if -_LARGEST <= reward <= _LARGEST and isinstance(info, dict):
                return (
                    reward,
                    terminated if type(terminated) is bool else self._one("terminated", terminated, truth_of),
                    truncated if type(truncated) is bool else self._one("truncated", truncated, truth_of),
                )
        except foreign_errors.MISBEHAVIOUR as error:
            if result is _NOTHING:
                raise faults.raised(error, self._where(index), self.spec.id, index) from error
            raise self._failure(*faults.of_step(result), index) from error
        raise self._failure(*faults.of_step(result), index)

    def _one(self, what: str, value: Any, read: Callable[[Any], Value]) -> Value:
        """Returns the one number or truth value in a value, and notes a value that has a shape."""
        found = read(value)
        if shape := shape_of(value):
            expected = "a number" if read is number_of else "True or False"
            self.progress.note(f"{what} of shape {shape}, where {expected} was expected; its one element is used")
        return found

    def _observe(self) -> None:
        values: Iterable[Sequence[Any]] = self._flattened() if self._nested else (self._rows,)
        try:
            for buffer, rows in zip(self._buffers, values, strict=True):
                buffer.fill(rows)
        except Unusable as fault:
            where = "in step" if fault.index is None else self._where(fault.index)
            raise faults.failure(fault.what, where, self.spec.id, fault.index, fault.remedy) from fault.__cause__

    def _flattened(self) -> Iterable[Sequence[Any]]:
        """Returns the values of each leaf in the environments' observations."""
        rows = []
        for index, row in enumerate(self._rows):
            try:
                leaves.check_keys(self._space, row)
                rows.append(leaves.flatten(self.spec.observation, row))
            except ConfigurationError as error:
                raise self._refused(str(error), index) from None
        return zip(*rows, strict=True)

    def _read_masks(self) -> None:
        if self.masks is None or self.action_mask is None:
            return
        for index, (ended, read) in enumerate(zip(self._ended.tolist(), self._mask_of, strict=True)):
            if ended:
                self.action_mask[index] = True
                continue
            self.progress.environment = index
            try:
                self.action_mask[index] = self.masks.row(read(self._rows[index], self.infos[index]))
            except ConfigurationError as error:
                raise self._refused(str(error), index) from None
            except foreign_errors.MISBEHAVIOUR as error:
                raise faults.raised(error, f"in {self.masks.place.value}", self.spec.id, index) from error
        if found := self.masks.find_illegal(self.action_mask):
            raise self._refused(found[1], found[0])

    def _failure(self, what: str, remedy: str, index: int) -> EnvironmentFailed:
        return faults.failure(what, self._where(index), self.spec.id, index, remedy)

    def _refused(self, refusal: str, index: int) -> EnvironmentFailed:
        return faults.refused(refusal, self._where(index), self.spec.id, index)

    def _where(self, index: int) -> str:
        steps = self._episode_steps[index]
        return f"in step {steps} of its episode" if steps else "in reset"


def _repeat_check(env: gymnasium.Env[Any, Any]) -> None:
    """Lets Gymnasium check the next reset. After a failed one, it would compare the next step with no observation."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, PassiveEnvChecker):
            env.checked_reset = False
        env = env.env


def _has_time_limit(env: gymnasium.Env[Any, Any]) -> bool:
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, TimeLimit):
            return True
        env = env.env
    return bool(getattr(env, "timed", False))
