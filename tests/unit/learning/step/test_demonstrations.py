"""Demonstrations as segments of batches: the rows that an actor records, drawn by the batch's number, and trained."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from penstock.acting.collector import Collector
from penstock.acting.environments.frames import with_frames
from penstock.acting.environments.vectors import Environments, SameStepEnvironments
from penstock.acting.policies.inference import PolicyRunner
from penstock.acting.values.spaces import segment_schema
from penstock.algo.network import Network
from penstock.algo.policies import Policy
from penstock.apps.demonstrations import demonstrated
from penstock.config import SamplingConfig, build, merge
from penstock.errors import ConfigurationError
from penstock.learning.step.batches import BatchFeed, TrainingBatch
from penstock.learning.step.demonstrations import DemonstratedSegments
from penstock.runs.demonstration_file import read, write
from penstock.types.block import Columns
from penstock.types.demonstrations import Demonstrations
from penstock.types.replay import Batch
from tests.support.environments.made import make_environments
from tests.support.environments.tiny import Drifting, assignment, spec_of
from tests.support.training.policies import fresh_policy, weights_of
from tests.support.training.training import CPU, collect_batch, make_learner, same_parameters

STEPS, WINDOWS = 5, 9


def pushing(observation: Any) -> int:
    return int(observation[2] + 0.5 * observation[3] > 0.0)


def of_expert(
    path: Path, *, env_id: str = "CartPole-v1", steps: int = 300, noise: float = 0.2, **sections: Any
) -> Path:
    """Records an expert, by default of CartPole, and returns the file."""
    config = build(merge({"environment": {"id": env_id}}, sections))
    expert = pushing if env_id == "CartPole-v1" else lambda observation: [float(observation[0])]
    found, _, _ = demonstrated(config, expert, steps=steps, noise=noise)
    write(path / f"{env_id}-{noise}.safetensors", found)
    return path / f"{env_id}-{noise}.safetensors"


def segments_of(file: Path, batch: Batch, policy: Policy, **sampling: Any) -> DemonstratedSegments:
    settings = SamplingConfig(demonstrations=str(file), batch_segments=16, **sampling)
    return DemonstratedSegments.of(read(file), settings, batch.columns.schema, policy, seed=3)


def drifting(mode: AutoresetMode) -> Environments:
    if mode is AutoresetMode.NEXT_STEP:
        return make_environments("Drifting-v0", 1, kwargs={})
    return SameStepEnvironments(SyncVectorEnv([Drifting], copy=False, autoreset_mode=mode), spec_of("Drifting-v0"))


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_segments_have_the_rows_that_an_actor_records(mode: AutoresetMode) -> None:
    """One long window, cut, equals the short windows of an actor with stacked frames."""

    def collector(steps: int) -> tuple[Collector, PolicyRunner]:
        environments = with_frames(drifting(mode), 3)
        policy = fresh_policy(environments.spec, seed=4)
        schema = segment_schema(environments.spec, steps)
        made = Collector(environments, assignment(0), schema=schema, discount=0.9)
        return made, PolicyRunner(weights_of(policy, 0))

    short, runner = collector(STEPS)
    expected = []
    for _ in range(WINDOWS):
        columns = short.collect(runner).columns
        expected.append([array.copy() for array in columns.arrays])
    schema = columns.schema
    long, runner = collector(STEPS * WINDOWS)
    whole = long.collect(runner).columns
    rows = {each.name: whole.column(each.name)[0, each.lead :] for each in whole.schema.columns}
    del rows["frame_age"]
    spec = runner.policy.spec
    made = Demonstrations(
        spec, squash_actions=False, widest_range=Network().widest_range, has_log_probs=True, columns=rows
    )
    found = DemonstratedSegments.of(made, SamplingConfig(batch_segments=16), schema, runner.policy, seed=0)
    assert found.columns.segments == WINDOWS
    for column, cut, windows in zip(schema.columns, found.columns.arrays, zip(*expected, strict=True), strict=True):
        np.testing.assert_array_equal(cut, np.concatenate(windows), err_msg=column.name)
    assert not whole.column("valid").all() or whole.column("terminated").any()


def test_the_last_segment_overlaps_the_one_before_it_so_that_no_row_is_left_out(tmp_path: Path) -> None:
    learner, batch = make_learner(), collect_batch(unroll_length=50)
    found = segments_of(of_expert(tmp_path), batch, learner.policy)
    rows = read(of_expert(tmp_path)).rows
    assert found.columns.segments == -(-rows // 50) and rows % 50
    reward, valid = found.columns.column("reward"), found.columns.column("valid")
    recorded = read(of_expert(tmp_path)).columns
    np.testing.assert_array_equal(reward[-1], recorded["reward"][-50:])
    np.testing.assert_array_equal(valid[1], recorded["valid"][50:100])


def test_each_batch_gets_other_segments_and_a_repeated_one_the_same(tmp_path: Path) -> None:
    learner, batch = make_learner(), collect_batch()
    found = segments_of(of_expert(tmp_path, steps=2_000), batch, learner.policy, demonstration_fraction=0.5)
    assert found.per_batch == 8 and "8 of " in found.notice

    def added(number: int) -> Columns:
        return found.added_to(Batch(replace(batch.head, number=number), batch.columns)).columns

    one, again, other = added(7), added(7), added(8)
    for before, first, second in zip(batch.columns.arrays, one.arrays, again.arrays, strict=True):
        np.testing.assert_array_equal(first[: len(before)], before)
        np.testing.assert_array_equal(first, second)
    observations = one.column("observation")[batch.keys.size :]
    assert len(observations) == 8
    assert len({row.tobytes() for row in observations}) == 8
    assert not np.array_equal(observations, other.column("observation")[batch.keys.size :])


def test_few_segments_are_drawn_several_times(tmp_path: Path) -> None:
    learner, batch = make_learner(), collect_batch()
    found = segments_of(of_expert(tmp_path, steps=100), batch, learner.policy, demonstration_fraction=2.0)
    assert found.columns.segments < found.per_batch == 32
    assert found.added_to(batch).columns.segments == batch.keys.size + 32


def whole_batch(path: Path, *, noise: float = 0.2, env_id: str = "CartPole-v1", **options: Any) -> TrainingBatch:
    """Returns a batch with demonstrations of half as many segments as a full batch has."""
    batch, learner = collect_batch(env_id, fresh=2, **options), make_learner(env_id)
    file = of_expert(path, env_id=env_id, noise=noise)
    return BatchFeed(CPU, segments_of(file, batch, learner.policy, demonstration_fraction=0.5)).tensors(batch)


@pytest.mark.parametrize("execution", ["auto", "eager"])
def test_they_are_trained_on_and_have_no_priority(execution: Any, tmp_path: Path) -> None:
    batch, alone = whole_batch(tmp_path), BatchFeed(CPU).tensors(collect_batch(fresh=2))
    assert (batch.stored_segments, batch.demonstrations, alone.demonstrations) == (6, 8, 0)
    learner, without = make_learner(execution=execution), make_learner(execution=execution)
    outcome, before = learner.train(batch, 0.0), without.train(alone, 0.0)
    assert outcome.priorities.shape == (6,)
    np.testing.assert_allclose(outcome.priorities, before.priorities, rtol=1e-4)
    assert (outcome.fresh_steps, outcome.fresh_episodes) == (before.fresh_steps, before.fresh_episodes)
    assert not same_parameters(learner, without)
    share, share_before = (each.statistics.learning.effective_sample_share for each in (outcome, before))
    assert share == pytest.approx(share_before, rel=1e-5)
    assert outcome.statistics.staleness_mean == before.statistics.staleness_mean
    assert outcome.unsound_rows == 0


def test_all_executions_take_the_same_steps_with_them(tmp_path: Path) -> None:
    batch, learners = whole_batch(tmp_path), [make_learner(), make_learner(execution="eager")]
    assert learners[0].execution == "direct"
    for learner in learners:
        learner.train(batch, 0.0)
    torch.testing.assert_close(learners[0].parameters, learners[1].parameters, rtol=1e-4, atol=1e-6)


def test_their_importance_is_one(tmp_path: Path) -> None:
    batch, learner = whole_batch(tmp_path), make_learner(execution="eager")
    importance = learner._importance(batch, 1.0)
    alone = learner._importance(batch.replayed, 1.0)
    assert importance[batch.stored_segments :].tolist() == [1.0] * batch.demonstrations
    torch.testing.assert_close(importance[batch.fresh_segments : batch.stored_segments], alone)


@pytest.mark.parametrize("execution", ["auto", "eager"])
def test_an_action_of_unknown_probability_counts_as_one_of_the_policys_own(execution: Any, tmp_path: Path) -> None:
    batch = whole_batch(tmp_path, env_id="Pendulum-v1", noise=0.0)
    shown = slice(batch.stored_segments, None)
    assert batch.behaviour_log_prob[shown].isnan().all()
    learner, known = (make_learner("Pendulum-v1", execution=execution) for _ in range(2))
    with torch.no_grad():
        log_prob, _ = known._execution.evaluate(batch.inputs, batch.action)
    given = torch.where(batch.behaviour_log_prob.isnan(), log_prob, batch.behaviour_log_prob)
    outcome = learner.train(batch, 0.0)
    known.train(replace(batch, behaviour_log_prob=given), 0.0)
    assert same_parameters(learner, known)
    assert outcome.unsound_rows == 0


def test_a_policy_with_memory_begins_them_with_states_of_zeros(tmp_path: Path) -> None:
    network = Network(hidden_sizes=(16,), memory="gru", memory_size=8)
    learner = make_learner(network=network, burn_in_steps=4)
    batch = collect_batch(network=network, burn_in=4, windows=3)
    found = segments_of(of_expert(tmp_path), batch, learner.policy)
    memory, age = found.columns.column("memory"), found.columns.column("frame_age")
    assert not memory.any() and (age[0, :5] == 0).all()
    valid = read(of_expert(tmp_path)).columns["valid"]
    np.testing.assert_array_equal(age[1, 4:36] == 0, ~valid[31:63])
    outcome = learner.train(BatchFeed(CPU, found).tensors(batch), 0.0)
    assert np.isfinite(outcome.priorities).all() and outcome.unsound_rows == 0


@pytest.mark.parametrize(
    ("env_id", "network", "message"),
    [
        ("Acrobot-v1", Network(), "was recorded for CartPole-v1 with observation Box"),
        (
            "Pendulum-v1",
            Network(squash_actions=True),
            "recorded with policy.squash_actions False, and the run has True",
        ),
        ("Pendulum-v1", Network(observation_offsets=(1e6, 0.0, 0.0)), "can't be used with policy.observation_offsets"),
    ],
)
def test_demonstrations_of_other_runs_are_refused(env_id: str, network: Network, message: str, tmp_path: Path) -> None:
    file = of_expert(tmp_path, env_id="CartPole-v1" if env_id == "Acrobot-v1" else env_id)
    policy = fresh_policy(spec_of(env_id), network=network)
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        segments_of(file, collect_batch(env_id), policy)


def test_scaling_does_not_matter_for_choices(tmp_path: Path) -> None:
    policy = fresh_policy(spec_of("CartPole-v1"), network=Network(squash_actions=True))
    assert segments_of(of_expert(tmp_path), collect_batch(), policy).columns.segments


def test_too_few_rows_for_a_segment_are_refused(tmp_path: Path) -> None:
    batch = collect_batch(unroll_length=200)
    with pytest.raises(ConfigurationError, match=r"has 128 rows, fewer than a segment of actor.unroll_length 200"):
        segments_of(of_expert(tmp_path, steps=10), batch, make_learner().policy)
