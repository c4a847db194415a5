"""Environments that are stepped one after another, so that a failure can be attributed to one of them."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.wrappers import PassiveEnvChecker, TimeLimit
from numpy.typing import NDArray

from penstock import foreign_errors
from penstock.acting import faults, leaves
from penstock.acting.leaf_buffers import LeafBuffer, Unusable
from penstock.acting.masks import MaskSource
from penstock.acting.progress import Progress
from penstock.acting.returned_values import number_of, truth_of
from penstock.errors import ConfigurationError, EnvironmentFailed
from penstock.types.spaces import EnvironmentSpec

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
    """

    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    begun: NDArray[np.bool_]


class SingleEnvironments:
    """N environments with the rows of `acting.environments.Environments`.

    They behave like Gymnasium's SyncVectorEnv in NEXT_STEP autoreset mode, without infos. All values that an
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
        self._infos: list[Any] = [None] * self.count
        self._ended = np.zeros(self.count, np.bool_)
        self._episode_steps = [0] * self.count
        self._masks, self._mask_of = masks, [masks.reader(env) for env in envs] if masks else []
        self.observation: tuple[NDArray[np.generic], ...] = tuple(buffer.rows for buffer in self._buffers)
        self.acting_observation = self.observation
        self.action_mask = np.ones((self.count, masks.bits), np.bool_) if masks else None

    def reset(self, seeds: Sequence[int]) -> None:
        """Starts new episodes. Raises `EnvironmentFailed` if an environment failed."""
        for index, seed in enumerate(seeds):
            self._begin(index, seed=seed)
        self._ended = np.zeros(self.count, np.bool_)
        self._observe()
        self._read_masks()

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
        return StepOutcome(np.array(reward, np.float32), terminations, truncations, ~ended, ended)

    def close(self) -> None:
        """Closes the environments."""
        for env in self.envs:
            env.close()

    def _begin(self, index: int, **seed: int) -> None:
        progress, before = self.progress, self.progress.doing
        result: Any = _NOTHING
        progress.doing, progress.environment = "reset", index
        try:
            result = self._reset(index, **seed)
            # A reset of the old API returns only the observation, which may have two elements.
            if not isinstance(result, tuple):
                raise TypeError
            self._rows[index], self._infos[index] = result
        except foreign_errors.MISBEHAVIOUR as error:
            if result is _NOTHING:
                raise faults.raised(error, "in reset", self.spec.id, index) from error
            raise self._returned(index, "reset", "an observation and a dict", result) from error
        self._episode_steps[index] = 0
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
            self._rows[index], reward, terminated, truncated, self._infos[index] = result
            if type(reward) is not float:
                reward = number_of(reward)
            # Comparisons with NaN are false, so that NaN fails this test.
            if -_LARGEST <= reward <= _LARGEST:
                return (
                    reward,
                    terminated if type(terminated) is bool else truth_of(terminated),
                    truncated if type(truncated) is bool else truth_of(truncated),
                )
        except foreign_errors.MISBEHAVIOUR as error:
            if result is _NOTHING:
                raise faults.raised(error, self._where(index), self.spec.id, index) from error
            if not isinstance(result, tuple) or len(result) != 5:
                expected = "observation, reward, terminated, truncated and info"
                raise self._returned(index, "step", expected, result) from error
            what = f"step returned {foreign_errors.shortened(repr(result[1:4]))} as reward, terminated and truncated:"
            raise self._failure(f"{what} {foreign_errors.describe(error)}", index) from error
        raise self._failure(f"step returned the reward {faults.not_finite(reward)}", index)

    def _observe(self) -> None:
        values: Iterable[Sequence[Any]] = self._flattened() if self._nested else (self._rows,)
        try:
            for buffer, rows in zip(self._buffers, values, strict=True):
                buffer.fill(rows)
        except Unusable as fault:
            if fault.index is None:
                raise faults.failure(fault.what, "", self.spec.id, None) from fault.__cause__
            raise self._failure(fault.what, fault.index) from fault.__cause__

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
        if self._masks is None or self.action_mask is None:
            return
        for index, (ended, read) in enumerate(zip(self._ended.tolist(), self._mask_of, strict=True)):
            if ended:
                self.action_mask[index] = True
                continue
            try:
                self.action_mask[index] = self._masks.row(read(self._rows[index], self._infos[index]))
            except ConfigurationError as error:
                raise self._refused(str(error), index) from None
            except foreign_errors.MISBEHAVIOUR as error:
                raise faults.raised(error, f"in {self._masks.place.value}", self.spec.id, index) from error
        if found := self._masks.find_illegal(self.action_mask):
            raise self._refused(found[1], found[0])

    def _returned(self, index: int, call: str, expected: str, result: Any) -> EnvironmentFailed:
        count = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
        what = f"{call} returned {count}, where {expected} are expected: {foreign_errors.shortened(repr(result))}"
        return self._failure(what, index, "" if call == "reset" else None)

    def _failure(self, what: str, index: int, where: str | None = None) -> EnvironmentFailed:
        return faults.failure(what, self._where(index) if where is None else where, self.spec.id, index)

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
    return False
