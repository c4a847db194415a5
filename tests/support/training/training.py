"""Learners of small networks, and batches for them from a real collector."""

from typing import Any

import numpy as np
import torch

from penstock.acting.collector import Collector
from penstock.acting.policies.inference import PolicyRunner
from penstock.acting.values.spaces import segment_schema
from penstock.algo.network import Network
from penstock.config import Execution, PPOConfig, Precision, SamplingConfig
from penstock.learning.step.batches import TrainingBatch, to_tensors
from penstock.learning.step.learner import Learner, TrainingOutcome
from penstock.types.replay import Batch, BatchHead, StoreCounts
from tests.support.environments.made import make_environments
from tests.support.environments.tiny import assignment, spec_of
from tests.support.training.policies import fresh_policy, weights_of

CPU = torch.device("cpu")
SMALL = Network(hidden_sizes=(16, 16))


def make_learner(
    env_id: str = "CartPole-v1",
    *,
    network: Network = SMALL,
    seed: int = 0,
    device: torch.device = CPU,
    precision: Precision = "float32",
    execution: Execution = "auto",
    sampling: SamplingConfig | None = None,
    loss: str | None = None,
    optimizer: str | None = None,
    **ppo: object,
) -> Learner:
    """Creates a learner for this environment, with settings of [ppo]; it makes all passes over a batch by default."""
    return Learner(
        spec_of(env_id),
        network,
        ppo=PPOConfig(**{"epochs": 2, "minibatches": 2, "target_kl": None, **ppo}),
        sampling=sampling or SamplingConfig(),
        device=device,
        seed=seed,
        precision=precision,
        execution=execution,
        loss=loss,
        optimizer=optimizer,
    )


def make_batch(env_id: str = "CartPole-v1", *, device: torch.device = CPU, **options: Any) -> TrainingBatch:
    """Returns the batch of `collect_batch` in a learner's form."""
    return to_tensors(collect_batch(env_id, **options), device)


def collect_batch(
    env_id: str = "CartPole-v1",
    *,
    segments: int = 6,
    unroll_length: int = 32,
    fresh: int | None = None,
    learner: Learner | None = None,
    network: Network | None = None,
    burn_in: int = 0,
    windows: int = 1,
    number: int = 5,
    version: int = 3,
) -> Batch:
    """Collects windows of `segments` environments and returns the last; segments from `fresh` on count as replayed.

    `learner`, or an untrained one with this network, acts. With memory, segments begin with `burn_in` earlier rows.
    """
    policy = learner.policy if learner else fresh_policy(spec_of(env_id), seed=9, network=network)
    runner = PolicyRunner(weights_of(policy, version), module=policy.network.module)
    environments = make_environments(env_id, segments, kwargs={})
    schema = segment_schema(environments.spec, unroll_length, memory=policy.memory_shape, burn_in=burn_in)
    collector = Collector(environments, assignment(*range(segments)), schema=schema, discount=0.99)
    for _ in range(windows):
        window = collector.collect(runner)
    fresh = segments if fresh is None else fresh
    replayed = np.arange(segments) >= fresh
    return Batch(
        BatchHead(
            number=number,
            fresh_segments=fresh,
            keys=np.arange(segments, dtype=np.uint64),
            versions=np.full(segments, version, np.int64),
            priorities=np.where(replayed, np.linspace(0.1, 2.0, segments), 0.0),
            probabilities=np.where(replayed, np.linspace(0.1, 0.5, segments), 1.0),
            counts=StoreCounts(),
        ),
        window.columns,
    )


def parameters_of(learner: Learner) -> dict[str, torch.Tensor]:
    """Returns a copy of all state of the policy, including normalisers."""
    return {name: tensor.clone() for name, tensor in learner.policy.state_dict().items()}


def same_parameters(one: Learner, other: Learner) -> bool:
    """Returns whether two policies are bitwise equal."""
    ours, theirs = one.policy.state_dict(), other.policy.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def numbers_of(outcome: TrainingOutcome) -> list[float | None]:
    """Returns the losses of a batch and the statistics of its steps."""
    learning = outcome.statistics.learning
    moved = [learning.entropy, learning.gradient_norm, learning.approximate_kl, learning.clipped_share]
    return [learning.policy_loss, learning.value_loss, *moved]
