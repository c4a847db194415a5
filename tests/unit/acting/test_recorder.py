"""What a window holds besides rewards: the rows before its first step, ages, masks and states of the policy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

import tests.support.environments.exact_tasks
import tests.support.environments.failing
from penstock.acting.collector import Collector
from penstock.acting.environments.frames import with_frames
from penstock.acting.environments.vectors import Environments, SameStepEnvironments
from penstock.acting.policies.inference import PolicyRunner
from penstock.acting.policies.randomness import Streams
from penstock.acting.values.spaces import segment_schema
from penstock.algo.policies import Inputs, Policy
from penstock.errors import EnvironmentFailed
from penstock.types.block import Column, Schema
from penstock.types.spaces import MemoryKind
from tests.support.environments.made import make_environments
from tests.support.environments.tiny import Drifting, assignment, spec_of
from tests.support.training.policies import fresh_policy, remembering_policy, weights_of

STEPS, COUNT, WINDOWS = 5, 3, 12
PLACE = assignment(*range(COUNT))
Rows = dict[str, NDArray[Any]]

KINDS = pytest.mark.parametrize("kind", ["gru", "lstm"])
BURN_INS = pytest.mark.parametrize("burn_in", [0, 3, 2 * STEPS + 2])
MODES = pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])


@dataclass(frozen=True)
class Recording:
    """Copies of the columns of consecutive windows."""

    schema: Schema
    windows: Sequence[Rows]

    def column(self, name: str) -> Column:
        return self.schema.columns[self.schema.index(name)]

    def rows(self, name: str) -> NDArray[Any]:
        """Returns all rows of a column in the order of the steps, [N, W * T, ...]."""
        lead = self.column(name).lead
        return np.concatenate([window[name][:, lead : lead + STEPS] for window in self.windows], axis=1)

    @property
    def begun(self) -> NDArray[np.bool_]:
        """First rows of episodes, [N, W * T]: after rows that only reset, and after an end that no such row follows."""
        begun, valid = np.ones((COUNT, len(self.windows) * STEPS), np.bool_), self.rows("valid")
        ended = self.rows("terminated") | self.rows("truncated")
        begun[:, 1:] = ~valid[:, :-1] | (ended[:, :-1] & valid[:, 1:])
        return begun


def drifting(mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> Environments:
    if mode is AutoresetMode.NEXT_STEP:
        return make_environments("Drifting-v0", COUNT, kwargs={})
    envs = SyncVectorEnv([Drifting] * COUNT, copy=False, autoreset_mode=mode)
    return SameStepEnvironments(envs, spec_of("Drifting-v0"))


def runner_of(policy: Policy) -> PolicyRunner:
    return PolicyRunner(weights_of(policy, 0))


def start(environments: Environments, policy: Policy, burn_in: int = 0) -> Collector:
    schema = segment_schema(environments.spec, STEPS, memory=policy.memory_shape, burn_in=burn_in)
    return Collector(environments, PLACE, schema=schema, discount=0.9)


def record(collector: Collector, runner: PolicyRunner, windows: int = WINDOWS) -> Recording:
    parts = []
    for _ in range(windows):
        columns = collector.collect(runner).columns
        parts.append({column.name: columns.column(column.name).copy() for column in columns.schema.columns})
    return Recording(columns.schema, parts)


def states_before(policy: Policy, recording: Recording) -> NDArray[np.float32]:
    """Returns the states before all rows, [N, W * T, parts, H], from zeros at the first row of each episode."""
    observation, begun = recording.rows("observation"), recording.begun
    assert policy.memory_shape is not None
    state, states = torch.zeros(COUNT, *policy.memory_shape), []
    for row in range(observation.shape[1]):
        state = torch.where(torch.from_numpy(begun[:, row, None, None]), 0.0, state)
        states.append(state.numpy())
        with torch.inference_mode():
            _, after = policy.act(
                (torch.from_numpy(observation[:, row]),), None, state, torch.zeros(COUNT, dtype=torch.bool)
            )
        assert after is not None
        state = after
    return np.stack(states, axis=1)


@KINDS
@BURN_INS
@MODES
def test_the_memory_of_a_segment_is_the_state_before_the_first_row_that_it_holds(
    kind: MemoryKind, burn_in: int, mode: AutoresetMode
) -> None:
    environments = drifting(mode)
    policy = remembering_policy(environments.spec, kind)
    recording = record(start(environments, policy, burn_in), runner_of(policy))
    states, compared = states_before(policy, recording), 0
    for number, window in enumerate(recording.windows):
        first = number * STEPS - burn_in
        assert window["memory"].shape == (COUNT, 1, *(policy.memory_shape or ()))
        if first < 0:
            assert not window["memory"].any()
            continue
        memory, going_on = window["memory"][:, 0], ~recording.begun[:, first]
        np.testing.assert_allclose(memory, states[:, first], atol=1e-6)
        assert not memory[~going_on].any()
        for row in (first - 1, first + 1):
            assert (np.abs(memory - states[:, row])[going_on].max(axis=(1, 2)) > 0.01).all()
        compared += int(going_on.sum())
    assert compared > WINDOWS


@KINDS
@BURN_INS
@MODES
def test_a_policy_that_starts_from_the_recorded_memory_has_the_recorded_log_probabilities(
    kind: MemoryKind, burn_in: int, mode: AutoresetMode
) -> None:
    environments = drifting(mode)
    policy = remembering_policy(environments.spec, kind)
    for window in record(start(environments, policy, burn_in), runner_of(policy)).windows:
        tensors = {name: torch.from_numpy(column) for name, column in window.items()}
        memory, begun = tensors["memory"][:, 0], tensors["frame_age"] == 0
        inputs = Inputs((tensors["observation"],), state=memory, begun=begun)
        with torch.inference_mode():
            distribution, _ = policy.evaluate(inputs, burn_in=burn_in, bootstraps=True)
            log_prob = distribution.log_prob((tensors["action"],)).numpy()
        # Where environments reset in the last step of an episode, the policy acted on another observation.
        used = window["valid"] if mode is AutoresetMode.SAME_STEP else np.ones_like(window["valid"])
        np.testing.assert_allclose(log_prob[used], window["behaviour_log_prob"][used], atol=1e-4)


@pytest.mark.parametrize(("frames", "kind"), [(1, "gru"), (2, None), (4, None), (4, "lstm")])
@MODES
def test_the_age_of_a_row_is_zero_exactly_at_first_rows_and_counts_the_rows_since(
    frames: int, kind: MemoryKind | None, mode: AutoresetMode
) -> None:
    environments = with_frames(drifting(mode), frames)
    policy = remembering_policy(environments.spec, kind) if kind else fresh_policy(environments.spec)
    recording = record(start(environments, policy), runner_of(policy))
    ages, oldest = recording.rows("frame_age"), max(frames - 1, 1)
    expected = np.zeros_like(ages)
    for row in range(1, ages.shape[1]):
        older = np.minimum(expected[:, row - 1] + 1, oldest)
        expected[:, row] = np.where(recording.begun[:, row], 0, older)
    assert recording.begun[:, 1:].any(axis=1).all()
    assert np.array_equal(ages, expected)
    for window, following in zip(recording.windows, recording.windows[1:], strict=False):
        assert np.array_equal(window["frame_age"][:, -1], following["frame_age"][:, 0])


def test_ages_are_recorded_only_where_frames_are_stacked_or_the_policy_has_memory() -> None:
    assert "frame_age" not in {column.name for column in segment_schema(spec_of("Drifting-v0"), STEPS).columns}


@pytest.mark.parametrize("frames", [1, 3])
@BURN_INS
def test_the_rows_before_the_first_step_are_the_last_rows_of_the_windows_before(frames: int, burn_in: int) -> None:
    environments = with_frames(make_environments("Gears-v0", COUNT, kwargs={}), frames)
    policy = remembering_policy(environments.spec, "gru")
    recording = record(start(environments, policy, burn_in), runner_of(policy))
    leads = {"observation.load": burn_in, "observation.speed": burn_in + frames - 1, "frame_age": burn_in}
    for name, lead in leads.items():
        assert recording.column(name).lead == lead
        rows = recording.rows(name)
        padded = np.concatenate([np.zeros((COUNT, lead, *rows.shape[2:]), rows.dtype), rows], axis=1)
        assert np.unique(rows).size > 1
        for number, window in enumerate(recording.windows):
            held = padded[:, number * STEPS : (number + 1) * STEPS + lead]
            assert np.array_equal(window[name][:, : lead + STEPS], held)


@BURN_INS
def test_a_dropped_window_leaves_no_rows_and_no_states_behind(burn_in: int) -> None:
    expected = spec_of("Failing-v0")
    policy = remembering_policy(expected, "gru")

    def environments(at: int) -> Environments:
        return make_environments("Failing-v0", COUNT, kwargs={"at": at}, expected=expected)

    collector, runner = start(environments(at=3 * STEPS + 2), policy, burn_in), runner_of(policy)
    before = record(collector, runner, windows=3)
    assert before.windows[-1]["frame_age"].any()
    with pytest.raises(EnvironmentFailed):
        collector.collect(runner)
    collector.begin_again(environments(at=-1))
    recording = record(collector, runner)
    first = recording.windows[0]
    assert not first["memory"].any()
    assert not first["observation"][:, :burn_in].any()
    assert (first["frame_age"][:, : burn_in + 2] == [0] * (burn_in + 1) + [1]).all()
    # The environments show their step, so that the states of the failed episode would differ.
    states = states_before(policy, recording)
    for number in range(-(-burn_in // STEPS), len(recording.windows)):
        memory = recording.windows[number]["memory"][:, 0]
        np.testing.assert_allclose(memory, states[:, number * STEPS - burn_in], atol=1e-6)


def played_masks(env: gymnasium.Env[Any, Any], seed: int, actions: Sequence[Any], valid: Sequence[bool]) -> Any:
    """Returns the masks that an environment shows when these actions are taken; ones where a row only resets."""
    _, info = env.reset(seed=seed)
    masks = []
    for action, is_step in zip(actions, valid, strict=True):
        masks.append(info["action_mask"] if is_step else np.ones_like(info["action_mask"]))
        if is_step:
            _, _, _, _, info = env.step(action)
        else:
            _, info = env.reset()
    return masks


@pytest.mark.parametrize("convention", ["info", "observation", "method"])
@pytest.mark.parametrize("env_id", ["MaskedChoice-v0", "MaskedLocks-v0"])
def test_recorded_masks_are_those_that_acted(
    env_id: str, convention: tests.support.environments.exact_tasks.Convention
) -> None:
    environments = make_environments(env_id, COUNT, kwargs={"masks": convention})
    policy = fresh_policy(environments.spec)
    recording, bits = record(start(environments, policy), runner_of(policy)), environments.spec.mask_bits
    packed, action, valid = (recording.rows(name) for name in ("action_mask", "action", "valid"))
    recorded = np.unpackbits(packed, axis=-1, bitorder="little")[..., :bits]
    seeds = Streams(PLACE.seed, PLACE.incarnation, np.array(PLACE.environments, np.uint32)).reset_seeds()
    assert not valid.all()
    for index, seed in enumerate(seeds):
        # The masks do not depend on their place.
        env = gymnasium.make(env_id, masks="info")
        assert np.array_equal(recorded[index], played_masks(env, seed, action[index], valid[index]))
    (column,) = environments.spec.observation.columns("observation")
    rows = recording.rows(column)
    with torch.inference_mode():
        for mask, differs in ((torch.from_numpy(recorded).bool(), False), (None, True)):
            distribution, _ = policy.act((torch.from_numpy(rows),), mask, None, None)
            log_prob = distribution.log_prob((torch.from_numpy(action),)).numpy()
            assert (np.abs(log_prob - recording.rows("behaviour_log_prob")).max() > 0.1) == differs
