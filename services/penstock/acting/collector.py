"""Steps environments with a policy and records the steps in preallocated columns, one window at a time."""

import contextlib
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from penstock.acting import faults
from penstock.acting.environments import Environments
from penstock.acting.observation_bounds import ObservationBounds
from penstock.acting.protocols import Runner
from penstock.acting.randomness import Streams
from penstock.acting.recorder import Recorder
from penstock.acting.single_environments import StepOutcome
from penstock.acting.spaces import ActionMap
from penstock.errors import EnvironmentFailed
from penstock.types.block import Schema
from penstock.types.replay import Window, WindowHead
from penstock.types.run import Assignment, Episode
from penstock.types.statistics import Timing


class Collector:
    """Collects the windows of one incarnation of an actor. Used by one thread.

    A step costs one policy call and one environment call for all N environments. Noise is drawn once per window. The
    next `collect` overwrites the columns of a window.

    An `EnvironmentFailed` drops the window in collection, and `begin_again` must be called before the next `collect`.
    The noise and the seeds of a dropped window are not used again.
    """

    def __init__(
        self,
        environments: Environments,
        assignment: Assignment,
        *,
        schema: Schema,
        discount: float,
        failures: int = 0,
    ) -> None:
        """Resets each environment with its own seed. Raises `EnvironmentFailed` if an environment failed.

        There is one environment for each environment number of the assignment. `schema` has the columns of a segment
        (`segment_schema`) and its steps, T. `discount` is the gamma of the running discounted return, and `failures`
        counts earlier failures under this assignment.
        """
        self._environments, self._assignment = environments, assignment
        numbers = np.array(assignment.environments, np.uint32)
        self._streams = Streams(assignment.seed, assignment.incarnation, numbers)
        self._unroll_length, self._discount = schema.unroll_length, np.float32(discount)
        self._columns = schema.empty(environments.count)
        self._recorder = Recorder(environments.spec, self._columns)
        self._action_map = ActionMap(environments.spec.action)
        self._sequence, self._steps, self._failures = 1, 0, failures
        self._episode_return = np.zeros(environments.count)
        self._episode_steps = np.zeros(environments.count, np.int64)
        self._discounted_return = np.zeros(environments.count, np.float32)
        self._episodes: list[Episode] = []
        self._valid_steps = 0
        self._bounds = ObservationBounds(environments.spec)
        self._warning: str | None = None
        self.timing = Timing()
        self._reset()

    def begin_again(self, environments: Environments) -> None:
        """Resets these environments, the old or similar ones, after a failure. Raises `EnvironmentFailed`."""
        self._environments = environments
        self._failures += 1
        self._episode_return[:], self._episode_steps[:], self._discounted_return[:] = 0.0, 0, 0.0
        self._recorder.forget()
        self._reset()

    def _reset(self) -> None:
        progress = self._environments.progress
        progress.numbers, progress.doing = self._assignment.environments, "reset"
        progress.window_step, progress.window_steps = 0, self._unroll_length
        seeds = self._streams.reset_seeds(failures=self._failures)
        try:
            with self._numbered():
                self._environments.reset(seeds)
        finally:
            progress.doing = ""

    @contextlib.contextmanager
    def _numbered(self) -> Iterator[None]:
        """Replaces the environment's index in a failure by its run-wide number."""
        try:
            yield
        except EnvironmentFailed as failed:
            numbers = self._assignment.environments
            if failed.environment is not None:
                raise EnvironmentFailed(failed.what, numbers[failed.environment]) from failed
            of = f"one of environments {min(numbers)} to {max(numbers)}"
            raise EnvironmentFailed(f"{of}: {failed.what}") from failed

    def collect(self, runner: Runner) -> Window:
        """Steps each environment T times with the runner's weights; returns the window. Raises `EnvironmentFailed`."""
        noise = self._streams.draw(runner.noise, self._steps, self._unroll_length)
        ended_before = len(self._episodes)
        self._steps += self._unroll_length
        self._environments.progress.doing = "step"
        try:
            with self._numbered():
                self._fill(runner, noise)
                self._check()
        except EnvironmentFailed:
            del self._episodes[ended_before:]
            raise
        finally:
            self._environments.progress.doing = ""
        window = Window(
            WindowHead(
                slot=self._assignment.slot,
                incarnation=self._assignment.incarnation,
                first_sequence=self._sequence,
                version=runner.version,
                environments=self._streams.environments,
            ),
            self._columns,
        )
        self._sequence += self._environments.count
        self._valid_steps += int(self._columns.column("valid").sum())
        return window

    def _fill(self, runner: Runner, noise: NDArray[np.float32]) -> None:
        columns, recorder = self._columns, self._recorder
        reward, terminated, truncated = (columns.column(name) for name in ("reward", "terminated", "truncated"))
        valid, discounted_return = columns.column("valid"), columns.column("discounted_return")
        environments, progress = self._environments, self._environments.progress
        recorder.begin_window()
        for step in range(self._unroll_length):
            started = time.perf_counter()
            progress.window_step = step
            begun = recorder.observe(step, environments, runner.state)
            action, log_prob = runner.act(
                environments.acting_observation, noise[:, step], mask=environments.action_mask, begun=begun
            )
            recorder.act(step, action, log_prob)
            acted = time.perf_counter()
            outcome = environments.step(self._action_map(action, squashed=runner.squashes))
            stepped = time.perf_counter()
            reward[:, step], valid[:, step] = outcome.reward, outcome.valid
            terminated[:, step], truncated[:, step] = outcome.terminated, outcome.truncated
            recorder.advance(outcome.begun)
            self._discounted_return = self._discounted_return * self._discount + outcome.reward
            discounted_return[:, step] = self._discounted_return
            self._count_episodes(outcome)
            self.timing.policy_s += acted - started
            self.timing.environment_s += stepped - acted
        recorder.observe(self._unroll_length, environments, runner.state)

    def _check(self) -> None:
        """Checks derived values; the environments' own were checked when returned. Notes a warning on bounds."""
        env_id = self._environments.spec.id
        actions = self._environments.spec.action.columns("action")
        for name, what in (
            ("discounted_return", "rewards whose discounted sum is {}"),
            *((name, "an observation for which the policy's action is {}") for name in actions),
            ("behaviour_log_prob", "an observation for which the policy's log-probability is {}"),
        ):
            if unusable := faults.find_unusable(self._columns.column(name)):
                raise faults.failure(what.format(unusable[1]), "in its last window", env_id, unusable[0])
        if self._warning is None:
            found = self._bounds.find_outside(self._columns)
            if found is not None:
                self._warning = f"environment {self._assignment.environments[found[0]]}: {found[1]} ({env_id})"

    def take_warning(self) -> str:
        """Returns the first warning about the observations once; empty otherwise."""
        warning = self._warning
        if warning:
            self._warning = ""
        return warning or ""

    def _count_episodes(self, outcome: StepOutcome) -> None:
        returns, steps = self._episode_return, self._episode_steps
        returns += outcome.reward
        steps += outcome.valid
        ended = outcome.terminated | outcome.truncated
        if not np.count_nonzero(ended):
            return
        for index in ended.nonzero()[0].tolist():
            self._episodes.append(
                Episode(
                    returns.item(index),
                    steps.item(index),
                    self._assignment.environments[index],
                    bool(outcome.truncated[index]),
                )
            )
            returns[index], steps[index], self._discounted_return[index] = 0.0, 0, 0.0

    def take_episodes(self) -> tuple[tuple[Episode, ...], int]:
        """Returns the episodes that ended and the number of valid steps since the last call."""
        episodes, steps = tuple(self._episodes), self._valid_steps
        self._episodes, self._valid_steps = [], 0
        return episodes, steps

    def take_timing(self) -> Timing:
        """Returns the seconds spent since the last call."""
        timing, self.timing = self.timing, Timing()
        return timing
