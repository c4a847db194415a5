"""Rules of the experiments, compared with their formulas, and with runs without a rule where they change nothing."""

import dataclasses
import math
import pickle
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from benchmarks.study.hypotheses import HYPOTHESES
from benchmarks.study.rules import AgeByPolicy, CriticReplay, ErrorPriority, GradientBound, Reanalysis, StepByEss
from benchmarks.study.running import Run
from helpers.environments import spec_of
from helpers.policy_outputs import distribution_of
from helpers.rule import PENSTOCK, Rule
from helpers.single_process import train
from helpers.training import CPU, make_batch
from penstock.algo import weights as policy_weights
from penstock.algo.network import Network
from penstock.algo.parameters import beginning_of
from penstock.algo.priorities import preferences
from penstock.config import Config, build
from penstock.learning import schedules
from penstock.learning.assembly import learner_of
from penstock.learning.batches import TrainingBatch, to_tensors
from penstock.learning.gradient_steps import Estimated
from penstock.learning.learner import Learner
from penstock.learning.protocols import BatchSource
from penstock.types.replay import Batch
from penstock.types.run import Weights

pytestmark = pytest.mark.nightly

FRESH, BATCHES, T = 4, 24, 8


def configuration(*, memory: str = "none", sampling: dict[str, object] | None = None, **ppo: object) -> Config:
    """Returns a short run on CartPole with 4 fresh and 12 replayed segments per batch."""
    return build(
        {
            "run": {"total_steps": BATCHES * FRESH * T - 1, "seed": 5},
            "environment": {"id": "CartPole-v1"},
            "train": {"actors": 1},
            "policy": {"hidden_sizes": [8], "memory": memory, "memory_size": 8},
            "ppo": {"epochs": 2, "minibatches": 2, "learning_rate": 1e-2, **ppo},
            "actor": {"environments": FRESH, "unroll_length": T},
            "evaluation": {"interval_steps": 10**9, "episodes": 1},
            "sampling": {
                "batch_segments": 4 * FRESH,
                "fresh_fraction": 0.25,
                "min_replay_segments": FRESH,
                "max_staleness": 16,
                **(sampling or {}),
            },
        }
    )


@dataclasses.dataclass
class Recorded:
    """Every version, every batch as the store drew it, and every commit."""

    weights: list[Weights] = dataclasses.field(default_factory=list)
    drawn: list[Batch] = dataclasses.field(default_factory=list)
    commits: list[tuple[Batch, NDArray[np.float64]]] = dataclasses.field(default_factory=list)

    def run(self, config: Config, rule: Rule) -> "Recorded":
        train(
            config,
            watch=self.drawn.append,
            watch_weights=self.weights.append,
            watch_commit=lambda batch, priorities: self.commits.append((batch, priorities)),
            rule=rule,
        )
        return self

    def learner(self, config: Config, version: int) -> Learner:
        """Returns a learner with the policy of a version."""
        policy = policy_weights.load(self.weights[version])
        learner = learner_of(config, policy.spec, CPU)
        policy_weights.load_into(learner.policy, self.weights[version])
        return learner


def made(rule: Rule, config: Config) -> Learner:
    """Returns the learner of a rule that leaves the source of batches as it is."""
    return rule.parts(config, spec_of("CartPole-v1"), CPU, cast(BatchSource, None))[0]


# Plumbing


@pytest.mark.parametrize(
    ("rule", "sampling"),
    [
        (AgeByPolicy(0.0), {"half_life": math.inf, "alpha": 0.6}),
        (AgeByPolicy(0.0), {"half_life": 3.0, "alpha": 0.0}),
        (Reanalysis(interval=1000), {}),
    ],
)
def test_a_rule_whose_parameter_turns_it_off_trains_the_same_parameters(
    rule: Rule, sampling: dict[str, object]
) -> None:
    config = configuration(sampling=sampling)
    ours, theirs = Recorded().run(config, rule), Recorded().run(config, PENSTOCK)
    assert len(ours.weights) > BATCHES
    assert [each.data for each in ours.weights] == [each.data for each in theirs.weights]


@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize(
    "rule", [AgeByPolicy(2.0), CriticReplay(), StepByEss(), ErrorPriority(0.9), GradientBound(), Reanalysis(interval=4)]
)
def test_every_other_rule_trains_other_parameters(rule: Rule, memory: str) -> None:
    config = configuration(memory=memory)
    ours, theirs = Recorded().run(config, rule), Recorded().run(config, PENSTOCK)
    assert len(ours.weights) > BATCHES
    assert ours.weights[-1].data != theirs.weights[-1].data


def test_runs_that_differ_in_the_rule_alone_have_files_of_their_own(tmp_path: Path) -> None:
    for experiment in HYPOTHESES.values():
        runs = [Run(experiment, "CartPole-v1", setting, 0) for setting in experiment.settings]
        assert len({run.path(tmp_path) for run in runs}) == len(runs)
        assert {label for pair in experiment.compared for label in pair} <= {run.setting.label for run in runs}
        assert pickle.loads(pickle.dumps(runs)) == runs


# Age by policy


def overlap_by_hand(config: Config, recorded: Recorded, batch: Batch) -> list[float]:
    """Returns the overlap of each segment with the version that trains the batch, row by row."""
    policy, tensors = recorded.learner(config, batch.number).policy, to_tensors(batch, CPU)
    with torch.no_grad():
        log_prob = distribution_of(policy, tensors.observation[0][:, :-1]).log_prob(tensors.action[0])
    found = []
    for segment in range(batch.keys.size):
        rows = [
            min(1.0, math.exp(float(log_prob[segment, row] - tensors.behaviour_log_prob[segment, row])))
            for row in range(T)
            if tensors.valid[segment, row]
        ]
        found.append(sum(rows) / len(rows))
    return found


@pytest.mark.parametrize("half_life", [math.inf, 4.0])
@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_segments_are_drawn_by_priority_overlap_and_age(alpha: float, half_life: float) -> None:
    config = configuration(sampling={"alpha": alpha, "half_life": half_life})
    recorded, power, epsilon = Recorded().run(config, AgeByPolicy(3.0)), 3.0, config.sampling.epsilon
    priorities, masses, versions = dict[int, float](), dict[int, float](), dict[int, int]()
    smallest = 1.0
    for drawn, (committed, _) in zip(recorded.drawn, recorded.commits, strict=True):
        replayed = slice(drawn.fresh_segments, None)
        keys = drawn.keys[replayed].tolist()
        pool = {
            key: mass * 2.0 ** (-(drawn.number - versions[key]) / half_life)
            for key, mass in masses.items()
            if drawn.number - versions[key] <= config.sampling.max_staleness
        }
        expected = [pool[key] / sum(pool.values()) for key in keys]
        np.testing.assert_allclose(drawn.head.probabilities[replayed], expected, rtol=1e-3)
        # Training sees draws by the factor of priority and by age, of which it corrects for the former.
        preference = preferences(
            torch.from_numpy(committed.head.probabilities[replayed]), torch.from_numpy(drawn.ages[replayed]), half_life
        ).numpy()
        by_priority = np.array([alpha * math.log(priorities[key] + epsilon) for key in keys])
        np.testing.assert_allclose(np.diff(preference), np.diff(by_priority), atol=1e-3)
        np.testing.assert_allclose(committed.priorities[replayed], [priorities[key] for key in keys], rtol=1e-3)

        learner = recorded.learner(config, drawn.number)
        found = learner.priorities_of(estimated_in_training(learner, to_tensors(drawn, CPU)), 0)[0]
        overlaps = overlap_by_hand(config, recorded, drawn)
        smallest = min(smallest, *overlaps)
        for key, version, priority, overlap in zip(
            drawn.keys.tolist(), drawn.head.versions.tolist(), found.tolist(), overlaps, strict=True
        ):
            priorities[key], versions[key] = priority, version
            masses[key] = (priority + epsilon) ** alpha * overlap**power
    assert smallest < 0.9


# Replay for the critic


def only_fresh(batch: TrainingBatch) -> TrainingBatch:
    def part(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(map(part, value))
        return value[: batch.fresh_segments] if isinstance(value, torch.Tensor | np.ndarray) else value

    return TrainingBatch(*(part(getattr(batch, name)) for name in batch.__slots__))  # type: ignore[arg-type]


def estimated_in_training(learner: Learner, batch: TrainingBatch) -> Estimated:
    """Returns estimates as `train` makes them: with rewards that are scaled by returns that include the batch's own."""
    fresh = slice(None, batch.fresh_segments)
    learner.policy.begin_returns(batch.discounted_return[fresh][batch.valid[fresh]])
    return learner.estimate(batch, 0.0)


def gradient(learner: Learner, batch: TrainingBatch, config: Config) -> torch.Tensor:
    """Returns the gradient of the loss over the whole batch."""
    learner.optimizer.zero_gradient()
    steps = learner.estimate(batch, 0.0).steps
    _, loss = learner.step.objective(steps, schedules.loss_settings(config.ppo, 0.0), None)
    loss.total.backward()  # type: ignore[no-untyped-call]
    assert learner.parameters.grad is not None
    return learner.parameters.grad.clone()


def batch_for(config: Config) -> TrainingBatch:
    """Returns 2 fresh and 4 replayed segments of a policy that is far from a new learner's."""
    batch = make_batch(fresh=2, network=Network(**dict(config.policy)))
    away = torch.linspace(-0.5, 0.5, batch.reward.numel()).view(batch.reward.shape)
    return dataclasses.replace(batch, behaviour_log_prob=batch.behaviour_log_prob + away)


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_the_gradient_of_the_policy_is_that_of_the_fresh_rows_alone(memory: str) -> None:
    config = configuration(memory=memory, value_coefficient=0.0, entropy_coefficient=0.1)
    batch, plain = batch_for(config), made(PENSTOCK, config)
    found = gradient(made(CriticReplay(), config), batch, config)
    expected = gradient(plain, only_fresh(batch), config)
    assert expected.norm() > 1e-2 and (gradient(plain, batch, config) - expected).norm() > 0.1 * expected.norm()
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)


def test_the_gradient_of_the_critic_is_that_of_all_rows() -> None:
    config = configuration()
    batch, plain, learner = batch_for(config), made(PENSTOCK, config), made(CriticReplay(), config)
    own = plain.policy.own_value_network
    assert own is not None
    found, expected = (gradient(each, batch, config)[beginning_of(own) :] for each in (learner, plain))
    assert expected.norm() > 1e-2
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_replayed_rows_alone_do_not_train_the_policy(memory: str) -> None:
    config = configuration(memory=memory, entropy_coefficient=0.1)
    learner = made(CriticReplay(), config)
    found = gradient(learner, dataclasses.replace(batch_for(config), fresh_segments=0), config)
    heads = [*learner.policy.actor.parameters()]
    assert heads and found.any()
    learner.parameters.grad = found
    assert not any(bool(each.grad.any()) for each in heads if each.grad is not None)


# Learning rate by effective sample size


def test_the_learning_rate_is_multiplied_by_the_root_of_the_effective_sample_share() -> None:
    config = configuration(learning_rate_schedule="linear")
    batch = batch_for(config)
    learner, policy = made(StepByEss(), config), made(PENSTOCK, config).policy
    with torch.no_grad():
        log_prob = distribution_of(policy, batch.observation[0][:, :-1]).log_prob(batch.action[0])
    weight = (log_prob - batch.behaviour_log_prob)[batch.valid].exp().clamp(max=config.ppo.behaviour_weight_clip)
    share = float(weight.sum() ** 2 / (weight.square().sum() * weight.numel()))
    assert share < 0.99
    outcome = learner.train(batch, 0.25)
    assert outcome.statistics.learning_rate == pytest.approx(0.75e-2 * math.sqrt(share), rel=1e-4)


# Temporal differences as priorities


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_priorities_mix_the_largest_and_the_mean_error(memory: str) -> None:
    config = configuration(memory=memory)
    batch, learner = batch_for(config), made(ErrorPriority(0.75), config)
    estimated = estimated_in_training(learner, batch)
    errors = [each[usable].abs().tolist() for each, usable in zip(estimated.correction, estimated.usable, strict=True)]
    expected = [0.75 * max(each) + 0.25 * sum(each) / len(each) for each in errors]
    np.testing.assert_allclose(learner.train(batch, 0.0).priorities, expected, rtol=1e-4)


# Bound on the gradient


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_priorities_are_the_sizes_of_the_gradients_at_both_outputs(memory: str) -> None:
    config = configuration(memory=memory)
    batch, learner = batch_for(config), made(GradientBound(), config)
    estimated = estimated_in_training(learner, batch)
    with torch.no_grad():
        distribution, _ = learner.policy.evaluate(batch.inputs, bootstraps=True)
    probability = distribution.parts[0].log_probs.exp()  # type: ignore[union-attr]
    sizes: list[list[tuple[float, float]]] = []
    rows = iter(estimated.steps.advantage[... if estimated.steps.usable is None else estimated.steps.usable].tolist())
    for segment in range(batch.valid.shape[0]):
        sizes.append([])
        for row in estimated.usable[segment].nonzero().flatten().tolist():
            # The gradient of log softmax is the chosen action's unit vector minus the probabilities.
            at_logits = -probability[segment, row]
            at_logits[batch.action[0][segment, row]] += 1.0
            policy = abs(next(rows)) * float(at_logits.norm())
            sizes[-1].append((abs(float(estimated.correction[segment, row])), policy))
    means = np.mean([pair for segment in sizes for pair in segment], axis=0)
    steps = batch.valid.shape[1]
    expected = [sum(value / means[0] + policy / means[1] for value, policy in segment) / steps for segment in sizes]
    np.testing.assert_allclose(learner.train(batch, 0.0).priorities, expected, rtol=1e-4)


# Reanalysis


def test_recomputed_priorities_are_those_that_training_commits_at_once() -> None:
    # The scale of a batch's rewards includes the batch's own returns.
    config = configuration().changed({"policy": {"normalise_returns": False}})
    recorded, interval = Recorded().run(config, Reanalysis(interval=4)), 4
    compared = 0
    for number, (batch, priorities) in enumerate(recorded.commits[:-1]):
        fresh_or_drawn = recorded.drawn[number].keys.size
        recomputed = dict(zip(batch.keys[fresh_or_drawn:].tolist(), priorities[fresh_or_drawn:].tolist(), strict=True))
        assert bool(recomputed) == (number % interval == interval - 1)
        # The next batch is trained under the parameters with which they were recomputed.
        following, committed = recorded.commits[number + 1]
        for index, key in enumerate(recorded.drawn[number + 1].keys.tolist()):
            if key in recomputed:
                assert following.priorities[index] == recomputed[key]
                assert committed[index] == pytest.approx(recomputed[key], rel=1e-4)
                compared += 1
    assert compared > 10


def test_as_many_of_the_oldest_segments_as_were_trained_are_recomputed() -> None:
    config = configuration()
    recorded = Recorded().run(config, Reanalysis(interval=1))
    versions: dict[int, int] = {}
    for drawn, (batch, _) in zip(recorded.drawn, recorded.commits, strict=True):
        own = drawn.keys.tolist()
        versions |= dict(zip(own, drawn.head.versions.tolist(), strict=True))
        oldest = drawn.number + 1 - config.sampling.max_staleness
        others = [key for key, version in versions.items() if key not in own and version >= oldest]
        # Keys count insertions.
        assert batch.keys[len(own) :].tolist() == sorted(others)[: len(own)]
    assert len(others) > len(own)
