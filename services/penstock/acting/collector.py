"""Steps environments with a policy and writes what happens into preallocated columns, a window at a time."""

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.acting import randomness
from penstock.acting.environments import Environments
from penstock.acting.inference import PolicyRunner
from penstock.acting.spaces import ActionMap, segment_schema
from penstock.types import Assignment, DiscreteSpace, Episode, Window


@dataclass(slots=True)
class Timing:
    """Seconds an actor spent, since it was last asked."""

    environment_s: float = 0.0
    policy_s: float = 0.0
    building_s: float = 0.0
    waiting_s: float = 0.0


class Collector:
    """Collects windows of one incarnation of an actor. Used by one thread.

    A step costs one policy call and one environment call for all N environments; noise is drawn a window at a time. The
    columns of a window are written over by the next `collect`.
    """

    def __init__(
        self, environments: Environments, assignment: Assignment, *, unroll_length: int, discount: float
    ) -> None:
        """Resets the environments with seeds of their own.

        Args:
            environments: As many as the assignment has numbers.
            assignment: Seed, incarnation and environment numbers.
            unroll_length: T.
            discount: Gamma of the running discounted return.
        """
        self._environments, self._assignment = environments, assignment
        self._numbers = np.array(assignment.environments, np.uint32)
        self._unroll_length, self._discount = unroll_length, np.float32(discount)
        self._columns = segment_schema(environments.spec, unroll_length).empty(environments.count)
        self._action_map = ActionMap(environments.spec.action)
        self._frames_before = environments.spec.frames - 1
        self._sequence, self._steps = 1, 0
        self._episode_return = np.zeros(environments.count)
        self._episode_steps = np.zeros(environments.count, np.int64)
        self._discounted_return = np.zeros(environments.count, np.float32)
        self._episodes: list[Episode] = []
        self._valid_steps = 0
        self.timing = Timing()
        environments.reset(
            randomness.reset_seeds(seed=assignment.seed, incarnation=assignment.incarnation, environments=self._numbers)
        )

    def collect(self, runner: PolicyRunner) -> Window:
        """Steps every environment T times; weights stay as they are meanwhile."""
        noise = self._noise(runner.policy.noise_size)
        columns = self._columns
        frames, action = columns.column("observation"), columns.column("action")
        # Before the first step, where frames are stacked, come the last ones of the window before.
        before, observation = frames[:, : self._frames_before], frames[:, self._frames_before :]
        before[:] = frames[:, self._unroll_length :][:, : self._frames_before]
        log_prob, reward = columns.column("behaviour_log_prob"), columns.column("reward")
        terminated, truncated = columns.column("terminated"), columns.column("truncated")
        valid, discounted_return = columns.column("valid"), columns.column("discounted_return")
        environments = self._environments
        if self._frames_before:
            frame_age = columns.column("frame_age")
        for step in range(self._unroll_length):
            started = time.perf_counter()
            observation[:, step] = environments.observation
            if self._frames_before:
                frame_age[:, step] = environments.frame_age
            action[:, step], log_prob[:, step] = runner.act(environments.acting_observation, noise[:, step])
            acted = time.perf_counter()
            outcome = environments.step(self._action_map(action[:, step], squashed=runner.squashes))
            stepped = time.perf_counter()
            reward[:, step], valid[:, step] = outcome.reward, outcome.valid
            terminated[:, step], truncated[:, step] = outcome.terminated, outcome.truncated
            self._discounted_return = self._discounted_return * self._discount + outcome.reward
            discounted_return[:, step] = self._discounted_return
            self._count_episodes(outcome.reward, outcome.terminated, outcome.truncated, outcome.valid)
            self.timing.policy_s += acted - started
            self.timing.environment_s += stepped - acted
        observation[:, self._unroll_length] = environments.observation
        if self._frames_before:
            frame_age[:, self._unroll_length] = environments.frame_age
        window = Window(
            slot=self._assignment.slot,
            incarnation=self._assignment.incarnation,
            first_sequence=self._sequence,
            version=runner.version,
            environments=self._numbers,
            columns=columns,
        )
        self._sequence += environments.count
        self._steps += self._unroll_length
        self._valid_steps += int(valid.sum())
        return window

    def _noise(self, size: int) -> NDArray[np.float32]:
        discrete = isinstance(self._environments.spec.action, DiscreteSpace)
        return (randomness.uniforms if discrete else randomness.normals)(
            seed=self._assignment.seed,
            incarnation=self._assignment.incarnation,
            environments=self._numbers,
            first_step=self._steps,
            steps=self._unroll_length,
            size=size,
        )

    def _count_episodes(
        self,
        reward: NDArray[np.float32],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        valid: NDArray[np.bool_],
    ) -> None:
        self._episode_return += reward
        self._episode_steps += valid
        ended = terminated | truncated
        if not ended.any():
            return
        for index in np.flatnonzero(ended):
            self._episodes.append(
                Episode(
                    float(self._episode_return[index]),
                    int(self._episode_steps[index]),
                    int(self._numbers[index]),
                    bool(truncated[index]),
                )
            )
        self._episode_return[ended] = 0.0
        self._episode_steps[ended] = 0
        self._discounted_return[ended] = 0.0

    def take_episodes(self) -> tuple[tuple[Episode, ...], int]:
        """Episodes that ended, and valid steps taken, since the last call."""
        episodes, steps = tuple(self._episodes), self._valid_steps
        self._episodes, self._valid_steps = [], 0
        return episodes, steps

    def take_timing(self) -> Timing:
        """Seconds spent since the last call."""
        timing, self.timing = self.timing, Timing()
        return timing
