"""Gradient steps captured into CUDA graphs, compared with eager steps on the same device."""

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from penstock.algo.losses import LossSettings
from penstock.algo.network import Network
from penstock.config import Execution, Precision, SamplingConfig
from penstock.errors import ConfigurationError
from penstock.learning.durable import checkpoints
from penstock.learning.durable.checkpoints import RunProgress
from penstock.learning.step.learner import Learner
from penstock.losses import Minibatch, Policy, ppo
from penstock.runs.folder import RunFolder
from penstock.types.spaces import MemoryKind
from tests.support.training.training import SMALL, make_batch, make_learner, numbers_of, parameters_of

SHARED = dataclasses.replace(SMALL, trunk="shared")
RAW = dataclasses.replace(SMALL, normalise_observations=False, normalise_returns=False)
SQUASHED = dataclasses.replace(SMALL, squash_actions=True, state_dependent_std=True)
SCHEDULED: dict[str, Any] = {
    "clip_range_schedule": "linear",
    "entropy_coefficient": 0.02,
    "entropy_schedule": "linear",
    "learning_rate_schedule": "linear",
}
RUN = ((0.0, 4), (0.2, 6), (0.4, 6), (0.6, 5), (0.8, 6))
"""Progress and number of segments of each batch. The batches also differ in their valid steps."""


def assert_close(one: Learner, other: Learner) -> None:
    torch.testing.assert_close(one.parameters, other.parameters, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize(
    ("env_id", "network"),
    [("CartPole-v1", SMALL), ("CartPole-v1", SHARED), ("Pendulum-v1", SMALL), ("Pendulum-v1", SQUASHED)],
)
def test_captured_and_eager_steps_learn_the_same_from_batches_of_all_sizes(
    cuda: torch.device, env_id: str, network: Network
) -> None:
    eager, graphed = (
        make_learner(env_id, network=network, device=cuda, execution=name, epochs=3, minibatches=3, **SCHEDULED)
        for name in ("eager", "graphed")
    )
    for progress, segments in RUN:
        batch = make_batch(env_id, device=cuda, segments=segments)
        expected, outcome = (learner.train(batch, progress) for learner in (eager, graphed))
        for ours, theirs in zip(numbers_of(outcome), numbers_of(expected), strict=True):
            assert ours == pytest.approx(theirs, rel=1e-2, abs=1e-4)
        assert_close(graphed, eager)


def waiting(policy: Policy, batch: Minibatch, settings: LossSettings) -> Tensor:
    loss, _ = ppo(policy, batch, settings)
    return loss * (1.0 if bool(loss.isfinite()) else 0.0)


def with_statistic(policy: Policy, batch: Minibatch, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    loss, statistics = ppo(policy, batch, settings)
    return loss, {**statistics, "clip_range": torch.as_tensor(settings.clip_range)}


def test_a_loss_of_ones_own_is_captured_and_learns_the_same(cuda: torch.device) -> None:
    name = f"{__name__}:with_statistic"
    eager = make_learner(device=cuda, execution="eager", epochs=3, minibatches=3, **SCHEDULED)
    captured = make_learner(device=cuda, loss=name, epochs=3, minibatches=3, **SCHEDULED)
    assert captured.execution == "graphed" and captured.notices[0].endswith("(graphed)")
    for progress, segments in RUN:
        batch = make_batch(device=cuda, segments=segments)
        expected, outcome = (learner.train(batch, progress) for learner in (eager, captured))
        for ours, theirs in zip(numbers_of(outcome), numbers_of(expected), strict=True):
            assert ours == pytest.approx(theirs, rel=1e-2, abs=1e-4)
        # A schedule is no constant in a graph.
        assert outcome.statistics.own["clip_range"] == pytest.approx(0.2 * (1.0 - progress), rel=1e-4)
        assert_close(captured, eager)


def test_a_loss_that_waits_for_the_gpu_is_not_captured(cuda: torch.device) -> None:
    learner = make_learner(device=cuda, loss=f"{__name__}:waiting")
    assert learner.execution == "eager" and "waits for the GPU" in learner.notices[0]
    for segments in (4, 6, 5):
        assert learner.train(make_batch(device=cuda, segments=segments), 0.0).refused_steps == 0


def capturable(parameters: list[torch.nn.Parameter], learning_rate: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, learning_rate, eps=1e-5, capturable=True)


def test_a_capturable_optimizer_of_ones_own_is_captured_and_learns_the_same(cuda: torch.device) -> None:
    eager = make_learner(device=cuda, execution="eager", epochs=3, minibatches=3, **SCHEDULED)
    captured = make_learner(device=cuda, optimizer=f"{__name__}:capturable", epochs=3, minibatches=3, **SCHEDULED)
    assert captured.execution == "graphed" and captured.notices[0].endswith("(graphed)")
    for progress, segments in RUN:
        batch = make_batch(device=cuda, segments=segments)
        for learner in (eager, captured):
            assert learner.train(batch, progress).refused_steps == 0
        # A schedule is no constant in a graph.
        assert_close(captured, eager)


def test_a_captured_step_that_is_refused_leaves_an_optimizer_of_ones_own_as_it_was(cuda: torch.device) -> None:
    name = f"{__name__}:capturable"
    learner = make_learner(network=RAW, device=cuda, optimizer=name, epochs=1, minibatches=1)
    batch = make_batch(device=cuda)
    absurd = dataclasses.replace(batch, reward=torch.full_like(batch.reward, 1e30))
    for _ in range(6):
        assert learner.train(batch, 0.0).refused_steps == 0
    before = {name: each.clone() for name, each in learner.optimizer.state.items()}
    parameters = learner.parameters.detach().clone()
    assert learner.train(absurd, 0.0).refused_steps == 1
    assert torch.equal(learner.parameters, parameters) and before
    assert all(torch.equal(learner.optimizer.state[name], each) for name, each in before.items())


def test_an_optimizer_that_is_not_capturable_is_not_captured(cuda: torch.device, tmp_path: Path) -> None:
    name = "torch.optim:AdamW"
    learner = make_learner(device=cuda, optimizer=name)
    assert learner.execution == "eager" and "because it is not capturable" in learner.notices[0]
    for segments in (4, 6, 5):
        assert learner.train(make_batch(device=cuda, segments=segments), 0.0).refused_steps == 0
    # Its counts of steps are on the host.
    folder = RunFolder(tmp_path)
    folder.create()
    path = checkpoints.save(folder, checkpoints.take(learner, RunProgress(env_steps=1)), keep=1)
    resumed = make_learner(device=cuda, optimizer=name)
    checkpoints.restore(resumed, path)
    for each in (learner, resumed):
        each.train(make_batch(device=cuda), 0.5)
    assert_close(resumed, learner)
    with pytest.raises(ConfigurationError, match="makes AdamW, which can't be captured into a CUDA graph; give it"):
        make_learner(device=cuda, optimizer=name, execution="graphed")


def test_priorities_and_advantages_of_ones_own_take_captured_steps(cuda: torch.device) -> None:
    sampling = SamplingConfig(priority="penstock.priorities:mean_advantage")
    own = make_learner(device=cuda, sampling=sampling, advantage="penstock.advantages:v_trace")
    shipped = make_learner(device=cuda)
    assert own.execution == shipped.execution == "graphed"
    for progress, segments in RUN:
        batch = make_batch(device=cuda, segments=segments, fresh=segments - 2)
        ours, theirs = own.train(batch, progress), shipped.train(batch, progress)
        assert ours.priorities == pytest.approx(theirs.priorities, rel=1e-4)
        assert_close(own, shipped)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_captured_and_eager_steps_learn_the_same_with_memory(cuda: torch.device, kind: MemoryKind) -> None:
    network = dataclasses.replace(SMALL, memory=kind, memory_size=8)
    eager, graphed = (
        make_learner(network=network, device=cuda, execution=name, burn_in_steps=4, epochs=3, **SCHEDULED)
        for name in ("eager", "graphed")
    )
    for progress, segments in RUN:
        batch = make_batch(device=cuda, segments=segments, network=network, burn_in=4, windows=2)
        for learner in (eager, graphed):
            assert learner.train(batch, progress).refused_steps == 0
        assert_close(graphed, eager)


@pytest.mark.parametrize("name", ["learning_rate", "clip_range", "entropy_coefficient"])
def test_a_schedule_continues_after_the_capture(cuda: torch.device, name: str) -> None:
    schedule = {
        "learning_rate": "learning_rate_schedule",
        "clip_range": "clip_range_schedule",
        "entropy_coefficient": "entropy_schedule",
    }[name]

    def trained(last: float, schedule_is: str) -> Learner:
        options: dict[str, Any] = {"learning_rate": 1e-2, "entropy_coefficient": 0.1, schedule: schedule_is}
        learner = make_learner(device=cuda, execution="graphed", epochs=4, **options)
        for progress in (0.0, 0.0, last):
            learner.train(batch, progress)
        return learner

    batch = make_batch(device=cuda)
    assert not torch.equal(trained(0.9, "linear").parameters, trained(0.0, "linear").parameters)
    if name == "learning_rate":
        before, over = trained(0.0, "linear"), trained(0.0, "linear")
        over.train(batch, 1.0)
        assert torch.equal(over.parameters, before.parameters)


@pytest.mark.parametrize("execution", ["eager", "graphed"])
def test_a_step_without_a_finite_norm_is_refused_while_warming_up_and_when_captured(
    cuda: torch.device, execution: Execution
) -> None:
    learner = make_learner(network=RAW, device=cuda, execution=execution, epochs=1, minibatches=1)
    batch = make_batch(device=cuda)
    # Its square exceeds float32. The first round refuses a warm-up step, the second a captured one.
    absurd = dataclasses.replace(batch, reward=torch.full_like(batch.reward, 1e30))
    for ordinary_before in (1, 6):
        for _ in range(ordinary_before):
            assert learner.train(batch, 0.0).refused_steps == 0
        state = learner.optimizer.state
        held = [learner.parameters.detach(), *(state[name] for name in ("exp_avg", "exp_avg_sq", "step"))]
        before = [tensor.clone() for tensor in held]
        assert learner.train(absurd, 0.0).refused_steps == 1
        assert all(torch.equal(tensor, other) for tensor, other in zip(held, before, strict=True))
        learner.train(batch, 0.0)
        assert not torch.equal(learner.parameters, before[0])
        learner.check_finite()


@pytest.mark.parametrize("execution", ["eager", "graphed"])
@pytest.mark.parametrize("minibatches", [2, 16])
@pytest.mark.parametrize(("target_kl", "most"), [(None, 1), (1e3, 1 + 4)])
def test_the_host_waits_once_for_a_batch_and_for_the_divergence_of_each_epoch(
    cuda: torch.device, execution: Execution, minibatches: int, target_kl: float | None, most: int
) -> None:
    learner = make_learner(device=cuda, execution=execution, epochs=4, minibatches=minibatches, target_kl=target_kl)
    batch = make_batch(device=cuda)
    learner.train(batch, 0.0)  # warms up and captures
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            learner.train(batch, 0.0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert 1 <= sum("synchronizing" in str(warning.message) for warning in caught) <= most


@pytest.mark.parametrize("execution", ["eager", "graphed"])
@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_rounded_precisions_learn_nearly_the_same_as_float32_on_a_gpu(
    cuda: torch.device, precision: Precision, execution: Execution
) -> None:
    start = make_learner(device=cuda).parameters.detach()

    def learnt(precision: Precision) -> Tensor:
        # One after the other, because the precision is that of the process.
        learner = make_learner(device=cuda, execution=execution, precision=precision)
        for _ in range(3):
            learner.train(make_batch(device=cuda), 0.0)
        return learner.parameters.detach() - start

    ours, theirs = learnt(precision), learnt("float32")
    assert not torch.equal(ours, theirs)
    assert torch.nn.functional.cosine_similarity(ours, theirs, dim=0) > 0.95


def test_a_captured_learner_continues_from_a_checkpoint(cuda: torch.device, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.create()
    learner, resumed = (make_learner(device=cuda, execution="graphed") for _ in range(2))
    batch = make_batch(device=cuda)
    for _ in range(3):
        learner.train(batch, 0.0)
    path = checkpoints.save(folder, checkpoints.take(learner, RunProgress(env_steps=1)), keep=1)
    checkpoints.restore(resumed, path)
    before = parameters_of(resumed)
    for each in (learner, resumed):
        each.train(batch, 0.5)
    assert any(not torch.equal(tensor, before[name]) for name, tensor in resumed.policy.state_dict().items())
    assert_close(resumed, learner)


@pytest.mark.nightly
def test_compiled_and_eager_steps_learn_the_same_on_a_gpu(cuda: torch.device) -> None:
    eager, compiled = (make_learner(device=cuda, execution=name) for name in ("eager", "compiled"))
    for progress, segments in RUN[:3]:
        batch = make_batch(device=cuda, segments=segments)
        for learner in (eager, compiled):
            learner.train(batch, progress)
        assert_close(compiled, eager)
