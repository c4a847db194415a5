"""Steps environments with a policy and records the steps in preallocated columns, one window at a time."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.acting.environments.bounds import ObservationBounds, Precision
from penstock.acting.environments.offsets import with_offsets
from penstock.acting.environments.vectors import Environments
from penstock.acting.outcomes import Outcomes
from penstock.acting.policies.randomness import Streams
from penstock.acting.protocols import Runner
from penstock.acting.recorder import Recorder
from penstock.acting.values import faults
from penstock.acting.values.spaces import ActionMap
from penstock.errors import EnvironmentFailed
from penstock.types.block import Schema
from penstock.types.replay import Window, WindowHead
from penstock.types.run import Assignment, Episode
from penstock.types.statistics import Timing

_DRAWN = 4096
"""Draws of noise, over steps and environments, that are made at once if a window has fewer. The calls of one draw take
most of its time below that number."""


class Collector:
    """Collects the windows of one incarnation of an actor. Used by one thread.

    A step costs one policy call and one environment call for all N environments. Noise is drawn for one or more windows
    at once, and values that the environments do not need are computed after the last step of a window. The next
    `collect` overwrites the columns of a window.

    An `EnvironmentFailed` drops the window in collection, and `begin_again` must be called before the next `collect`.
    The noise and the seeds of a dropped window are not used again.
    """

    _recording: ClassVar[type[Recorder]] = Recorder

    def __init__(
        self,
        environments: Environments,
        assignment: Assignment,
        *,
        schema: Schema,
        discount: float,
        failures: int = 0,
        largest_magnitude: float = faults.LARGEST,
    ) -> None:
        """Resets each environment with its own seed. Raises `EnvironmentFailed` if an environment failed.

        There is one environment for each environment number of the assignment. `schema` has the columns of a segment
        (`segment_schema`) and its steps, T. `discount` is the gamma of the running discounted return, and `failures`
        counts earlier failures under this assignment. A window with a number above `largest_magnitude` is a failure.
        """
        self._environments, self._assignment = environments, assignment
        numbers = np.array(assignment.environments, np.uint32)
        self._streams = Streams(assignment.seed, assignment.incarnation, numbers)
        self._unroll_length, self._columns = schema.unroll_length, schema.empty(environments.count)
        self._recorder = self._recording(environments.spec, self._columns)
        self._outcomes = Outcomes(self._columns, assignment.environments, discount)
        self._action_map: ActionMap | None = None
        self._sequence, self._drawn_steps, self._failures = 1, 0, failures
        self._noise: NDArray[np.float32] = np.zeros((environments.count, 0, 0), np.float32)
        self._episodes: list[Episode] = []
        self._valid_steps = self._late_steps = self._minimum_version = 0
        self._largest_magnitude = largest_magnitude
        self._bounds, self._precision = ObservationBounds(environments.spec), Precision(environments.spec)
        self._outside_found, self._warnings, self._losses = False, list[str](), list[EnvironmentFailed]()
        self._noticed = 0
        self.timing = Timing()
        self._reset()

    def begin_again(self, environments: Environments) -> None:
        """Resets these environments, the old or similar ones, after a failure. Raises `EnvironmentFailed`."""
        self._environments = environments
        self._failures += 1
        self._outcomes.forget()
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

    def collect(self, runner: Runner, minimum_version: int = 0) -> Window:
        """Steps each environment T times with the runner's weights; returns the window. Raises `EnvironmentFailed`.

        `minimum_version` is the oldest version whose actions may be trained on.
        """
        started, noise, self._minimum_version = time.perf_counter(), self._next_noise(runner), minimum_version
        self._environments.progress.doing = "step"
        try:
            with self._numbered():
                episodes = self._fill(runner, noise)
                self._check()
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
        self._episodes += episodes
        notices = self._environments.progress.notices
        self._warnings += notices[self._noticed :]
        self._noticed = len(notices)
        self._valid_steps += int(np.count_nonzero(self._columns.column("valid")))
        self._environments.progress.window_s = time.perf_counter() - started
        return window

    def _next_noise(self, runner: Runner) -> NDArray[np.float32]:
        """Returns the random numbers of the next T steps, <float32>[N, T, ...], which are used once."""
        steps = self._unroll_length
        if not self._noise.shape[1]:
            ahead = steps * max(1, _DRAWN // (steps * self._environments.count))
            self._noise = self._streams.draw(runner.noise, self._drawn_steps, ahead)
            self._drawn_steps += ahead
        noise, self._noise = self._noise[:, :steps], self._noise[:, steps:]
        return noise

    def _prepare(self, runner: Runner) -> ActionMap:
        """Prepares the environments for a policy; returns how its actions become those of the environments."""
        self._environments = with_offsets(self._environments, runner.network)
        if self._action_map is None:
            self._action_map = ActionMap(self._environments.spec.action, runner.network)
            self._bounds = ObservationBounds(self._environments.spec, runner.network.observation_offsets)
        return self._action_map

    def _fill(self, runner: Runner, noise: NDArray[np.float32]) -> list[Episode]:
        """Fills the columns; returns the episodes that ended. All actions are of the runner's version."""
        action_map, environments = self._prepare(runner), self._environments
        recorder, outcomes = self._recorder, self._outcomes
        progress, timing, clock = environments.progress, self.timing, time.perf_counter
        policy = runner.begin(noise)
        recorder.begin_window()
        for step in range(self._unroll_length):
            started = clock()
            progress.window_step = step
            begun = recorder.observe(step, environments.observation, environments.action_mask, runner.state)
            action = policy.act(environments.acting_observation, mask=environments.action_mask, begun=begun)
            recorder.act(step, action)
            acted = clock()
            outcome = environments.step(action_map(action))
            stepped = clock()
            if outcome.lost:
                self._note(outcome.lost)
            outcomes.record(step, outcome)
            recorder.advance(outcome.begun)
            timing.policy_s += acted - started
            timing.environment_s += stepped - acted
        recorder.observe(self._unroll_length, environments.observation)
        recorder.finish(policy.log_probs())
        return outcomes.finish()

    def _note(self, lost: Mapping[int, EnvironmentFailed]) -> None:
        """Notes why episodes were lost; one reason may concern several environments."""
        for failed in dict.fromkeys(lost.values()):
            index = failed.environment
            number = None if index is None else self._assignment.environments[index]
            self._losses.append(EnvironmentFailed(failed.what, number))

    def take_losses(self) -> list[EnvironmentFailed]:
        """Returns the reasons for which episodes were lost, in windows that were collected since the last call."""
        losses, self._losses = self._losses, []
        return losses

    def _check(self) -> None:
        """Checks the window's values. The environments' own were checked to be finite. Notes warnings about them."""
        spec, column = self._environments.spec, self._columns.column
        observed = zip(spec.observation.columns("observation"), spec.observation.leaves, strict=True)
        acted = spec.action.columns("action")
        faults.require_usable(
            [
                ("a reward of", column("reward"), ""),
                *(("an observation with", column(name), leaf.place) for name, leaf in observed),
                ("rewards whose discounted sum is", column("discounted_return"), ""),
                *(("an observation for which the policy's action is", column(name), "") for name in acted),
                ("an observation for which the policy's log-probability is", column("behaviour_log_prob"), ""),
            ],
            largest=self._largest_magnitude,
            where="in its last window",
            env_id=spec.id,
        )
        if not self._outside_found and (found := self._bounds.find_outside(self._columns)):
            self._outside_found = True
            self._warnings.append(f"environment {self._assignment.environments[found[0]]}: {found[1]} ({spec.id})")
        if coarse := self._precision.find_coarse(self._environments.observation):
            self._warnings.append(f"{coarse} ({spec.id})")

    def take_warning(self) -> str:
        """Returns the next warning about the observations, each of which is given once; empty without one."""
        return self._warnings.pop(0) if self._warnings else ""

    def take_late_steps(self) -> int:
        """Returns the number of steps that were not trained on since the last call, because they took too long."""
        steps, self._late_steps = self._late_steps, 0
        return steps

    def take_episodes(self) -> tuple[tuple[Episode, ...], int]:
        """Returns the episodes that ended and the number of valid steps since the last call."""
        episodes, steps = tuple(self._episodes), self._valid_steps
        self._episodes, self._valid_steps = [], 0
        return episodes, steps

    def take_timing(self) -> Timing:
        """Returns the seconds spent since the last call."""
        timing, self.timing = self.timing, Timing()
        return timing
