"""Windows of environments that answer at different times hold what each of them did, in its own order."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import tests.unit.acting.values.test_values_masks as masked
from penstock.acting.collector import Collector
from penstock.acting.environments.frames import with_frames
from penstock.acting.environments.progress import Progress
from penstock.acting.environments.single_environments import StepOutcome
from penstock.acting.environments.vectors import Environments
from penstock.acting.policies.inference import PolicyRunner
from penstock.acting.policies.runners import runner_of
from penstock.acting.protocols import Runner
from penstock.acting.ready_collector import ReadyCollector
from penstock.acting.values import faults
from penstock.acting.values.spaces import segment_schema
from penstock.algo.policies import Inputs
from penstock.types.block import Schema
from penstock.types.spaces import Leaves
from tests.support.environments.made import make_environments
from tests.support.environments.tiny import assignment
from tests.support.training.policies import fresh_policy, fresh_weights, remembering_policy, weights_of

STEPS, COUNT, DISCOUNT = 5, 4, 0.5
PLACE = assignment(*range(COUNT))
Rows = dict[str, NDArray[Any]]


class Scheduled:
    """Environments that answer in a random order, and what each of them did: (observation, outcome) of each row.

    Environment 0 is the slowest. The rows of environments in a step are not a number.
    """

    def __init__(self, env_id: str, seed: int = 0, slowness: float = 0.9, **kwargs: object) -> None:
        self._single = [make_environments(env_id, 1, kwargs=kwargs) for _ in range(COUNT)]
        self.spec, self.count, self.timed, self.progress = self._single[0].spec, COUNT, False, Progress()
        self._random, self._slowness, self._pending = np.random.default_rng(seed), slowness, dict[int, Leaves]()
        self.did: list[list[tuple[Leaves, Leaves, tuple[Any, ...]]]] = [[] for _ in range(COUNT)]
        self.observation: Leaves = ()
        self.acting_observation: Leaves = ()
        self.action_mask: NDArray[np.bool_] | None = None

    def reset(self, seeds: Sequence[int]) -> None:
        for single, seed in zip(self._single, seeds, strict=True):
            single.reset([seed])
        self._pending = {}
        self._observe()

    def step(self, action: Leaves) -> StepOutcome:
        raise NotImplementedError

    def send(self, action: Leaves, environments: NDArray[np.intp]) -> None:
        assert not self._pending.keys() & set(environments.tolist())
        self._pending |= {index: tuple(leaf[index : index + 1].copy() for leaf in action) for index in environments}
        self._observe()

    def receive(self, least: int) -> tuple[NDArray[np.intp], StepOutcome]:
        assert 1 <= least <= len(self._pending)
        order = sorted(self._pending, key=lambda index: self._random.random() + self._slowness * (index == 0))
        answered = sorted(order[: self._random.integers(least, len(order) + 1)])
        reward, (terminated, truncated, valid, begun) = np.zeros(COUNT, np.float32), np.zeros((4, COUNT), np.bool_)
        whole = StepOutcome(reward, terminated, truncated, valid, begun)
        for index in answered:
            single = self._single[index]
            observed, action = tuple(leaf[0].copy() for leaf in single.observation), self._pending.pop(index)
            outcome = single.step(action)
            for values, value in zip(whole[:5], outcome[:5], strict=True):
                values[index] = value[0]
            self.did[index].append((observed, action, tuple(each[0] for each in outcome[:5])))
        self._observe()
        return np.array(answered), whole

    def close(self) -> None:
        pass

    def _observe(self) -> None:
        leaves = list(zip(*(single.observation for single in self._single), strict=True))
        self.observation = tuple(np.concatenate(rows) for rows in leaves)
        for leaf in self.observation:
            leaf[list(self._pending)] = np.nan if leaf.dtype.kind == "f" else 0
        self.acting_observation = self.observation
        masks = [each for single in self._single if (each := single.action_mask) is not None]
        self.action_mask = np.concatenate(masks) if masks else None


def ready(environments: Environments, schema: Schema, share: float) -> ReadyCollector:
    return ReadyCollector(
        environments,
        PLACE,
        schema=schema,
        discount=DISCOUNT,
        failures=0,
        largest_magnitude=faults.LARGEST,
        ready_share=share,
    )


def collected(collector: Collector, runner: Runner) -> Rows:
    columns = collector.collect(runner).columns
    return {column.name: columns.column(column.name).copy() for column in columns.schema.columns}


@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize(("env_id", "frames", "memory"), [("CartPole-v1", 1, False), ("Drifting-v0", 3, True)])
def test_environments_that_answer_together_have_the_windows_of_the_exact_collector(
    env_id: str, frames: int, memory: bool, share: float
) -> None:
    windows = []
    for kind in (Collector, ReadyCollector):
        made = with_frames(make_environments(env_id, COUNT, kwargs={}), frames)
        policy = remembering_policy(made.spec, "gru") if memory else fresh_policy(made.spec)
        schema = segment_schema(made.spec, STEPS, memory=policy.memory_shape, burn_in=2 * memory)
        collector = (
            ready(made, schema, share)
            if kind is ReadyCollector
            else Collector(made, PLACE, schema=schema, discount=DISCOUNT)
        )
        runner = PolicyRunner(weights_of(policy, 0))
        rows = [collected(collector, runner) for _ in range(8)]
        windows.append((rows, collector.take_episodes()))
    (exact, episodes), (found, others) = windows
    assert episodes == others and episodes[0]
    for one, other in zip(exact, found, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.parametrize("seed", range(3))
def test_each_environment_keeps_its_own_order(seed: int) -> None:
    made = Scheduled("Counting-v0", seed, length=4)
    collector, runner = ready(made, segment_schema(made.spec, STEPS), 0.75), runner_of(fresh_weights(made.spec))
    before, running, episodes, padded = [0] * COUNT, [0.0] * COUNT, list[tuple[int, float, int]](), 0
    valid_steps, sums = 0, [(0.0, 0)] * COUNT
    for _ in range(30):
        rows = collected(collector, runner)
        ended = list[tuple[int, float, int]]()
        for index in range(COUNT):
            did = made.did[index][before[index] :]
            before[index] += len(did)
            assert len(did) <= STEPS
            for step, ((observed,), (action,), (reward, terminated, truncated, valid, _)) in enumerate(did):
                assert rows["observation"][index, step].tolist() == observed.tolist()
                assert rows["action"][index, step] == action[0]
                found = [rows[name][index, step] for name in ("reward", "terminated", "truncated", "valid")]
                assert found == [reward, terminated, truncated, valid]
                running[index] = running[index] * DISCOUNT + reward
                assert rows["discounted_return"][index, step] == running[index]
                total, length = sums[index]
                sums[index] = total + float(reward), length + int(valid)
                if terminated or truncated:
                    ended.append((index, *sums[index]))
                    running[index], sums[index] = 0.0, (0.0, 0)
            valid_steps += sum(int(row[2][3]) for row in did)
            assert not rows["valid"][index, len(did) :].any() and rows["truncated"][index, len(did) :].all()
            assert not rows["reward"][index, len(did) :].any() and not rows["terminated"][index, len(did) :].any()
            following = made._single[index].observation[0][0]
            assert (rows["observation"][index, len(did) :] == following).all()
            padded += STEPS - len(did)
        assert np.count_nonzero(rows["valid"].any(1)) >= 3
        episodes += ended
    finished, steps = collector.take_episodes()
    assert steps == valid_steps
    assert sorted((each.environment, each.episode_return, each.steps) for each in finished) == sorted(episodes)
    assert padded > 10 and min(before) > 0


@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize("burn_in", [0, 2, 2 * STEPS + 2])
def test_a_policy_that_starts_from_the_recorded_memory_has_the_recorded_log_probabilities(
    frames: int, burn_in: int
) -> None:
    made = with_frames(Scheduled("Drifting-v0"), frames)
    policy = remembering_policy(made.spec, "gru")
    schema = segment_schema(made.spec, STEPS, memory=policy.memory_shape, burn_in=burn_in)
    collector, runner, compared = ready(made, schema, 0.5), PolicyRunner(weights_of(policy, 0)), 0
    for _ in range(20):
        window = collected(collector, runner)
        tensors = {name: torch.from_numpy(column) for name, column in window.items()}
        age = window["frame_age"].astype(int)
        lead = window["observation"].shape[1] - age.shape[1]
        rows = np.arange(age.shape[1]) + lead
        stack = [
            window["observation"][np.arange(COUNT)[:, None], rows - np.minimum(age, back)]
            for back in reversed(range(frames))
        ]
        observation = torch.from_numpy(np.concatenate(stack, axis=-1))
        inputs = Inputs((observation,), state=tensors["memory"][:, 0], begun=tensors["frame_age"] == 0)
        with torch.inference_mode():
            distribution, _ = policy.evaluate(inputs, burn_in=burn_in, bootstraps=True)
            log_prob = distribution.log_prob((tensors["action"],)).numpy()
        valid = window["valid"]
        np.testing.assert_allclose(log_prob[valid], window["behaviour_log_prob"][valid], atol=1e-4)
        compared += int(valid.sum())
    assert compared > 20 * STEPS


def test_masks_belong_to_the_rows_on_which_the_policy_acted() -> None:
    made = Scheduled(masked.__name__ + ":Masked-v0", place="info")
    assert made.spec.mask_bits
    collector, runner = ready(made, segment_schema(made.spec, STEPS), 0.5), runner_of(fresh_weights(made.spec))
    for _ in range(20):
        rows = collected(collector, runner)
        bits = np.unpackbits(rows["action_mask"], axis=-1, bitorder="little")[..., : made.spec.mask_bits]
        assert np.take_along_axis(bits, rows["action"][..., None], axis=2).all()
        assert np.isfinite(rows["behaviour_log_prob"]).all()


@pytest.mark.parametrize("minimum", [4, 5])
def test_a_step_in_progress_is_trained_on_if_the_grant_allows_the_version_that_chose_it(minimum: int) -> None:
    made = Scheduled("Counting-v0", slowness=10.0, length=100)
    collector = ready(made, segment_schema(made.spec, STEPS), 0.75)
    weights = [fresh_weights(made.spec, version=version) for version in (4, 5)]
    runner = runner_of(weights[0])
    first = collector.collect(runner).columns
    taken = len(made.did[0])
    assert taken < STEPS
    chosen = first.column("behaviour_log_prob")[0, taken].copy()
    runner.refresh(weights[1])
    while len(made.did[0]) == taken:
        columns = collector.collect(runner, minimum).columns
    assert columns.column("valid")[0, 0] == (minimum == 4)
    assert columns.column("behaviour_log_prob")[0, 0] == chosen
    assert columns.column("reward")[0, 0] and columns.column("observation")[0, 0].tolist() == [0, taken]
    late = int(minimum == 5)
    assert (collector.take_late_steps(), collector.take_late_steps()) == (late, 0)
    assert ("environment 0: a step took longer" in collector.take_warning()) == bool(late)


def test_a_failure_begins_again_in_all_environments() -> None:
    made = Scheduled("Counting-v0", length=100)
    collector, runner = ready(made, segment_schema(made.spec, STEPS), 0.5), runner_of(fresh_weights(made.spec))
    collector.collect(runner)
    collector.begin_again(made)
    rows = collected(collector, runner)
    assert (rows["observation"][:, 0, 1] == 0).all()
