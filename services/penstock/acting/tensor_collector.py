"""Collects windows of environments that return tensors, on the device of these tensors."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.acting.collector import Collector
from penstock.acting.environments.offsets import stacked_offsets
from penstock.acting.environments.single_environments import StepOutcome
from penstock.acting.environments.tensors import TensorRows
from penstock.acting.environments.vectors import NextStepEnvironments
from penstock.acting.policies.inference import PolicyRunner
from penstock.acting.protocols import Runner
from penstock.acting.values.returned_values import array_of
from penstock.types.run import Episode
from penstock.types.spaces import Leaves


class TensorCollector(Collector):
    """Collects windows whose rows stay on the device until the window's end, if the environments return tensors.

    Policy and environments exchange tensors. After the last step, each column of the window is copied to the host once,
    and its rows are checked and recorded there. Until then, the host does not wait for the device.
    """

    def _reset(self) -> None:
        super()._reset()
        assert isinstance(self._environments, NextStepEnvironments)
        with self._numbered():
            self._rows = self._environments.rows_on_device()
        self._seen = _Rows(self._unroll_length + 1)
        self._taken, self._states = _Rows(self._unroll_length), _Rows(self._unroll_length)

    def _fill(self, runner: Runner, noise: NDArray[np.float32]) -> list[Episode]:
        """Fills the columns; returns the episodes that ended. All actions are of the runner's version."""
        rows, timing, clock = self._rows, self.timing, time.perf_counter
        if rows is None:
            return super()._fill(runner, noise)
        assert isinstance(runner, PolicyRunner)
        self._prepare(runner)
        offsets = stacked_offsets(self._environments.spec, runner.network.observation_offsets)
        policy = runner.begin_on_device(noise)
        for step in range(self._unroll_length):
            started = clock()
            self._environments.progress.window_step = step
            self._seen.write(step, _differences(rows.observation, offsets))
            state = () if policy.state is None else (policy.state,)
            action, taken, log_prob = policy.act(_differences(rows.acting, offsets), rows.begun)
            acted = clock()
            outcome = rows.step(taken)
            self._taken.write(step, (*action, log_prob, *outcome, rows.begun))
            self._states.write(step, state)
            timing.policy_s += acted - started
            timing.environment_s += clock() - acted
        stepped = clock()
        self._seen.write(self._unroll_length, _differences(rows.observation, offsets))
        self._record(rows)
        # It contains the wait for the device.
        timing.environment_s += clock() - stepped
        return self._outcomes.finish()

    def _record(self, rows: TensorRows) -> None:
        """Copies the rows of a window to the host, checks the observations, and records all."""
        rows.check()
        recorder, leaves = self._recorder, len(self._environments.spec.action.leaves)
        seen, taken = self._seen.on_host(), self._taken.on_host()
        actions, (log_prob, *outcomes, begun) = taken[:leaves], taken[leaves:]
        reward, terminated, truncated, valid = outcomes
        states = self._states.on_host()
        recorder.begin_window()
        for step in range(self._unroll_length):
            recorder.observe(step, _checked(rows, seen, step), state=states[0][step] if states else None)
            recorder.act(step, tuple(leaf[step] for leaf in actions))
            ends = terminated[step], truncated[step], valid[step]
            self._outcomes.record(step, StepOutcome(reward[step], *ends, begun[step]))
            recorder.advance(begun[step])
        recorder.observe(self._unroll_length, _checked(rows, seen, self._unroll_length))
        recorder.finish(log_prob.T)


class _Rows:
    """Rows of a window on the device, in one tensor for each column."""

    def __init__(self, count: int) -> None:
        self._count, self._columns = count, list[Any]()

    def write(self, row: int, values: Sequence[Any]) -> None:
        """Copies one tensor for each column into a row."""
        if not self._columns:
            self._columns = [each.new_empty((self._count, *each.shape)) for each in values]
        for column, value in zip(self._columns, values, strict=True):
            column[row] = value.detach()

    def on_host(self) -> list[NDArray[Any]]:
        """Returns the columns, [rows, ...] each. The next `write` may overwrite them."""
        return [array_of(column) for column in self._columns]


def _checked(rows: TensorRows, seen: list[NDArray[Any]], step: int) -> Leaves:
    observation = tuple(leaf[step] for leaf in seen)
    rows.check_observation(observation)
    return observation


def _differences(leaves: tuple[Any, ...], offsets: Sequence[NDArray[np.float64] | None]) -> tuple[Any, ...]:
    """Returns tensors of observations without their offsets (`offsets.subtracted`)."""
    return tuple(
        leaf if part is None else leaf.double() - leaf.double().new_tensor(part)
        for leaf, part in zip(leaves, offsets, strict=True)
    )
