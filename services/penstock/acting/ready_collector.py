"""Collects windows from the environments that have answered, without waiting for slow ones."""

import math
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.acting.collector import Collector
from penstock.acting.environments.vectors import Environments
from penstock.acting.protocols import Runner
from penstock.acting.ready_recorder import ReadyRecorder
from penstock.types.run import Episode
from penstock.types.spaces import Leaves


class ReadyCollector(Collector):
    """Collects windows that end when a share of the environments has taken T steps.

    Each environment has a row of its own, and the policy acts for those that are not in a step. At the end of a window,
    a slow environment has fewer rows than T. The others are not valid, and end the segment like a truncation. A step
    that is still in progress is recorded in the first row of a later window, with the log probability that its action
    had. If the policy that chose it is older than the grant of that window allows, the row is not valid: it is late.
    """

    _recording = ReadyRecorder

    def __init__(self, *arguments: Any, ready_share: float, **named: Any) -> None:
        """Takes the arguments of `Collector`, and the share of the environments that complete a window."""
        super().__init__(*arguments, **named)
        count = self._environments.count
        self._left_out, self._warned = count - math.ceil(ready_share * count), False
        # The next row of each environment, whether it is in a step, and the version that chose the action of that step.
        self._row, self._in_step = np.zeros(count, np.intp), np.zeros(count, np.bool_)
        self._chosen_by = np.zeros(count, np.int64)

    def begin_again(self, environments: Environments) -> None:
        """Resets these environments, as `Collector`, none of which is in a step."""
        self._row[:], self._in_step[:] = 0, False
        super().begin_again(environments)

    def _fill(self, runner: Runner, noise: NDArray[np.float32]) -> list[Episode]:
        """Fills the columns; returns the episodes that ended."""
        action_map, environments, recorder = self._prepare(runner), self._environments, self._recorder
        assert isinstance(recorder, ReadyRecorder)
        timing, clock = self.timing, time.perf_counter
        row, in_step, steps, left_out = self._row, self._in_step, self._unroll_length, self._left_out
        late = in_step & (self._chosen_by < self._minimum_version)
        recorder.begin_from(row)
        row[:] = 0
        while (missing := int(np.count_nonzero(row < steps))) > left_out:
            started = clock()
            ready = np.flatnonzero(~in_step & (row < steps))
            if len(ready):
                recorder.observe_some(ready, row, environments, runner.state)
                action, log_prob = self._act(runner, noise, ready)
                recorder.act_some(ready, row, action, log_prob)
                environments.send(action_map(action), ready)
                in_step[ready], self._chosen_by[ready] = True, runner.version
            acted = clock()
            # All environments with missing rows are in a step now.
            answered, outcome = environments.receive(missing - left_out)
            timing.policy_s += acted - started
            timing.environment_s += clock() - acted
            if outcome.lost:
                self._note(outcome.lost)
            self._outcomes.record_some(row, answered, outcome)
            recorder.advance_some(answered, outcome.begun)
            row[answered] += 1
            in_step[answered] = False
            environments.progress.window_step = int(row.max())
        recorder.observe_some(np.flatnonzero(~in_step), row, environments, runner.state)
        recorder.finish_from(row, in_step)
        episodes = self._outcomes.finish(row)
        self._leave_out(np.flatnonzero(late & (row > 0)))
        return episodes

    def _act(
        self, runner: Runner, noise: NDArray[np.float32], ready: NDArray[np.intp]
    ) -> tuple[Leaves, NDArray[np.float32]]:
        """Samples the next actions of all environments. Only the states of those that are ready advance."""
        environments, before = self._environments, runner.state
        next_noise = noise[np.arange(len(noise)), np.minimum(self._row, self._unroll_length - 1)]
        sampled = runner.act(
            environments.acting_observation, next_noise, mask=environments.action_mask, begun=self._recorder.begun
        )
        if before is not None and len(ready) < len(noise):
            assert runner.state is not None
            others = np.ones(len(noise), np.bool_)
            others[ready] = False
            runner.state[others] = np.broadcast_to(before, runner.state.shape)[others]
        return sampled

    def _leave_out(self, late: NDArray[np.intp]) -> None:
        """Makes the first rows of these environments invalid, counts them, and warns once."""
        self._columns.column("valid")[late, 0] = False
        self._late_steps += len(late)
        if len(late) and not self._warned:
            self._warned = True
            number = self._assignment.environments[late[0]]
            self._warnings.append(
                f"environment {number}: a step took longer than sampling.off_policy_degree allows, so it was not"
                " trained on; raise the degree, actor.unroll_length or environment.ready_share"
                f" ({self._environments.spec.id})"
            )
