"""A whole policy of a user's takes the place of all networks. What would train or act wrongly is refused."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from examples.bounded_actions import Bounded, Kumaraswamy
from penstock.acting.policies.inference import PolicyRunner
from penstock.acting.policies.trained import TrainedPolicy
from penstock.algo import weights
from penstock.algo.encoders import initialised
from penstock.algo.memory import Memory
from penstock.algo.network import Network, Noise, NoiseKind
from penstock.algo.own_policies import OwnPolicy
from penstock.algo.policies import Inputs
from penstock.auxiliary import Transitions
from penstock.errors import ConfigurationError, ForeignCode
from penstock.learning.step.learner import Learner
from penstock.policies import Joint, PolicyModule, PolicySpaces
from tests.support.environments.tiny import spec_of
from tests.support.training.policies import fresh_policy, weights_of
from tests.support.training.training import make_batch, make_learner, parameters_of
from tests.unit.algo.test_weights import NESTED

HERE = __name__
BOUNDED = "examples.bounded_actions:Bounded"
WIDTH, STATE = 16, 8


class Shared(PolicyModule):
    """What a policy with one hidden layer in a shared trunk computes."""

    def __init__(self, spaces: PolicySpaces) -> None:
        super().__init__()
        inputs = sum(torch.Size(shape).numel() for shape in spaces.observation)
        self.body = nn.Sequential(initialised(nn.Linear(inputs, WIDTH), math.sqrt(2.0)), nn.Tanh())
        self.actor = initialised(nn.Linear(WIDTH, spaces.outputs), 0.01)
        self.critic = initialised(nn.Linear(WIDTH, 1), 1.0)

    def encode(self, observation: tuple[Tensor, ...], state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.body(torch.cat([part.flatten(1).float() for part in observation], -1)), state

    def outputs(self, features: Tensor) -> Tensor:
        outputs: Tensor = self.actor(features)
        return outputs

    def value(self, features: Tensor) -> Tensor:
        value: Tensor = self.critic(features).squeeze(-1)
        return value


class Recurrent(Shared):
    """What a policy with a GRU and no hidden layer in a shared trunk computes."""

    def __init__(self, spaces: PolicySpaces) -> None:
        nn.Module.__init__(self)
        self.memory = Memory("gru", torch.Size(spaces.observation[0]).numel(), spaces.state_size)
        self.actor = initialised(nn.Linear(spaces.state_size, spaces.outputs), 0.01)
        self.critic = initialised(nn.Linear(spaces.state_size, 1), 1.0)

    def encode(self, observation: tuple[Tensor, ...], state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        assert state is not None
        begun = torch.zeros_like(state[:, 0], dtype=torch.bool)
        after = self.memory.step(observation[0], state.unsqueeze(1), begun)[:, 0]
        return after, after


class WithoutValue(PolicyModule):
    def encode(self, observation: tuple[Tensor, ...], state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return observation[0], state


class OnlyFeatures(Shared):
    def encode(self, observation: tuple[Tensor, ...], state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return super().encode(observation, state)[0]  # type: ignore[return-value]


class Dropping(Shared):
    def outputs(self, features: Tensor) -> Tensor:
        return nn.functional.dropout(super().outputs(features))


class Mixing(Shared):
    def value(self, features: Tensor) -> Tensor:
        return super().value(features) - features.mean()


class WideValue(Shared):
    def value(self, features: Tensor) -> Tensor:
        value: Tensor = self.critic(features)
        return value


class TooFewOutputs(Shared):
    def outputs(self, features: Tensor) -> Tensor:
        return super().outputs(features)[:, :-1]


class StateOfItsOwn(Shared):
    def encode(self, observation: tuple[Tensor, ...], state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        features, _ = super().encode(observation, state)
        return features, features


class NotFinite(Shared):
    def value(self, features: Tensor) -> Tensor:
        return super().value(features) / 0.0


class Rounded(Kumaraswamy):
    def mode(self) -> Tensor:
        return Kumaraswamy.mode(self).long()


class IntegerActions(Bounded):
    def distribution(self, outputs: Tensor, legal: Tensor | None) -> Joint:
        return Joint((Rounded(*outputs.exp().chunk(2, -1)),))


class WithAuxiliaryLoss(Recurrent):
    def auxiliary_loss(self, steps: Transitions) -> Tensor:
        return steps.features.square().mean(1)


class Inverse(Shared):
    def __init__(self, spaces: PolicySpaces) -> None:
        super().__init__(spaces)
        self.action = nn.Linear(2 * WIDTH, spaces.outputs)

    def auxiliary_loss(self, steps: Transitions) -> Tensor:
        pairs = torch.cat([steps.features, steps.next_features], 1)
        assert isinstance(steps.action, Tensor)
        return nn.functional.mse_loss(self.action(pairs), steps.action, reduction="none").mean(1)


class WithoutJoint(Bounded):
    def distribution(self, outputs: Tensor, legal: Tensor | None) -> Joint:
        return super().distribution(outputs, legal).parts[0]  # type: ignore[return-value]


def own(name: str, **settings: object) -> Network:
    return dataclasses.replace(Network(module=f"{HERE}:{name}"), **settings)  # type: ignore[arg-type]


def assert_all_trained(before: dict[str, Tensor], learner: Learner) -> None:
    names = [name for name in before if name.startswith("module.")]
    after = parameters_of(learner)
    assert names and all(not torch.equal(before[name], after[name]) for name in names)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_policy_that_computes_what_the_networks_do_trains_the_same_parameters(env_id: str) -> None:
    theirs = Network(hidden_sizes=(WIDTH,), trunk="shared")
    batch = make_batch(env_id, fresh=4, network=theirs)
    learners = [make_learner(env_id, network=each, execution="eager") for each in (theirs, own("Shared"))]
    assert isinstance(learners[1].policy, OwnPolicy)
    before = parameters_of(learners[1])
    for learner in learners:
        learner.train(batch, 0.0)
    ours, other = (list(parameters_of(learner).values()) for learner in learners)
    assert len(ours) == len(other) and all(map(torch.equal, ours, other))
    assert_all_trained(before, learners[1])


@pytest.mark.parametrize("burn_in", [0, 5])
def test_a_policy_with_states_of_its_own_trains_as_one_with_memory(burn_in: int) -> None:
    theirs = Network(hidden_sizes=(), trunk="shared", memory="gru", memory_size=STATE)
    batch = make_batch("Pendulum-v1", network=theirs, burn_in=burn_in, windows=2)
    settings = {"execution": "eager", "burn_in_steps": burn_in, "minibatches": 1, "epochs": 1}
    learners = [
        make_learner("Pendulum-v1", network=each, **settings)  # type: ignore[arg-type]
        for each in (theirs, own("Recurrent", memory="module", memory_size=STATE))
    ]
    for learner in learners:
        learner.train(batch, 0.0)
    ours, other = (list(parameters_of(learner).values()) for learner in learners)
    for one, two in zip(ours, other, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-5)


def test_states_are_carried_and_begin_at_zero_in_acting_as_in_training() -> None:
    network = own("Recurrent", memory="module", memory_size=STATE)
    policy = fresh_policy(spec_of("Pendulum-v1"), network=network)
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(6, 2, 3)).astype(np.float32)
    begun = np.array([[True, True], [False, False], [False, True], [False, False], [True, False], [False, False]])
    runner, means = PolicyRunner(weights_of(policy, 0), module=network.module), []
    for row, first in zip(rows, begun, strict=True):
        means.append(runner.act_greedily((row,), begun=first)[0])
    segments = torch.from_numpy(rows).transpose(0, 1), torch.from_numpy(begun).transpose(0, 1)
    joint, value = policy.evaluate(Inputs((segments[0],), state=torch.zeros(2, 1, STATE), begun=segments[1]))
    torch.testing.assert_close(joint.mode()[0].transpose(0, 1), torch.from_numpy(np.stack(means)))
    assert value.shape == (2, 6) and runner.state is not None and runner.state.shape == (2, 1, STATE)


def test_a_distribution_of_ones_own_acts_trains_and_is_saved() -> None:
    learner = make_learner("Pendulum-v1", network=Network(module=BOUNDED), epochs=1, minibatches=1)
    before = parameters_of(learner)
    learner.train(make_batch("Pendulum-v1", learner=learner), 0.0)
    assert_all_trained(before, learner)
    trained = TrainedPolicy(weights_of(learner.policy, 1), seed=0, module=BOUNDED)
    sampled = np.stack([trained.act(np.zeros(3, np.float32), deterministic=False) for _ in range(100)])
    # Pendulum's range is [-2, 2]. A new policy is nearly uniform, and its mode is the median.
    assert sampled.min() < -1.0 and sampled.max() > 1.0 and np.abs(sampled).max() < 2.0
    assert abs(trained.act(np.zeros(3, np.float32))) < 0.5
    assert learner.policy.log_std is None and learner.policy.action_limits == (None,)


def test_the_examples_distribution_is_one() -> None:
    draw = torch.Generator().manual_seed(0)
    parameters = torch.tensor([[0.5, 0.5], [1.0, 1.0], [3.0, 0.7], [2.0, 20.0]])
    for a, b in parameters:
        distribution = Kumaraswamy(a.reshape(1, 1), b.reshape(1, 1))
        edges = torch.linspace(-1.0, 1.0, 200_001, dtype=torch.float64)
        middles = 0.5 * (edges[1:] + edges[:-1])
        density = distribution.log_prob(middles[:, None]).exp()
        assert float(density.mean() * 2.0) == pytest.approx(1.0, abs=3e-3)
        sampled = distribution.sample(torch.rand(100_000, 1, generator=draw))
        assert float(sampled.mean()) == pytest.approx(float((density * middles).mean() * 2.0), abs=0.01)
        assert float(-distribution.log_prob(sampled).mean()) == pytest.approx(float(distribution.entropy()), abs=0.02)


def test_probabilities_of_ones_own_distribution_are_refused_in_one_line() -> None:
    class Own(Shared):
        def distribution(self, outputs: Tensor, legal: Tensor | None) -> Joint:
            return Joint((Greedy(outputs),))

    globals()["Own"] = Own
    policy = fresh_policy(spec_of("CartPole-v1"), network=own("Own"))
    trained = TrainedPolicy(weights_of(policy, 1), seed=0, module=f"{HERE}:Own")
    assert trained.act(np.zeros(4, np.float32)) in (0, 1)
    with pytest.raises(ConfigurationError, match="has distributions of its own, whose probabilities are not known"):
        trained.probabilities(np.zeros(4, np.float32))


@dataclasses.dataclass(frozen=True, slots=True)
class Greedy:
    """A choice between two by a logistic function of the first logit."""

    logits: Tensor
    noise = Noise(NoiseKind.UNIFORM, 1)

    def log_prob(self, action: Tensor) -> Tensor:
        return nn.functional.logsigmoid(self.logits[..., 0] * (2 * action - 1))

    def entropy(self) -> Tensor:
        share = self.logits[..., 0].sigmoid()
        return -share * share.log() - (1.0 - share) * (-share).log1p()

    def mode(self) -> Tensor:
        return (self.logits[..., 0] > 0.0).long()

    def tempered(self, temperature: float) -> "Greedy":
        return Greedy(self.logits / temperature)

    def sample(self, noise: Tensor) -> Tensor:
        return (noise[..., 0] < self.logits[..., 0].sigmoid()).long()


def test_an_auxiliary_loss_trains_the_policy_of_which_it_is_a_method() -> None:
    learner = make_learner("Pendulum-v1", network=own("Inverse"), epochs=1, minibatches=1)
    before = parameters_of(learner)
    outcome = learner.train(make_batch("Pendulum-v1", learner=learner), 0.0)
    assert_all_trained(before, learner)
    found = outcome.statistics.own["auxiliary"]
    assert found is not None and found > 0.0


def test_weights_restore_the_policy_by_its_name() -> None:
    policy = fresh_policy(NESTED, network=own("Shared"))
    with pytest.raises(ForeignCode, match="Shared"):
        weights.load(weights_of(policy, 3))
    restored = weights.load(weights_of(policy, 3), f"{HERE}:Shared")
    ours, theirs = policy.state_dict(), restored.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_run_says_which_settings_have_no_effect() -> None:
    (line,) = make_learner("Pendulum-v1", network=own("Shared")).notices
    assert line.endswith("is the whole policy; policy.hidden_sizes, policy.trunk and policy.activation have no effect")


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (own("WithoutValue"), "Can't instantiate abstract class|abstract methods outputs"),
        (own("OnlyFeatures"), r"returned float32\[3, 16\] from encode; return a pair, the features and the state"),
        (own("Dropping"), "returns other numbers for the same row from call to call; leave out dropout"),
        (own("Mixing"), "returns other numbers for the same row with the other rows; leave out dropout"),
        (own("WideValue"), r"returned float32\[3, 1\] from value; return floats of shape \[3\]"),
        (own("TooFewOutputs"), r"returned float32\[3, 0\] from outputs; return floats of shape \[3, 1\]"),
        (own("StateOfItsOwn"), "returned a state from encode; set policy.memory to module, or return None"),
        (own("NotFinite"), "returned numbers that are not finite from value"),
        (own("IntegerActions"), r"returned int64\[3, 1\] from mode; return float32\[3, 1\]"),
        (own("WithoutJoint"), r"from distribution; return penstock.policies.Joint of a tuple with 1 parts"),
        (
            own("Shared", memory="gru"),
            "is a whole policy, and policy.memory is gru; remove it, or set it to module",
        ),
        (own("Shared", moves="observation"), "is a whole policy, and policy.moves is set; remove policy.moves"),
        (
            own("WithAuxiliaryLoss", memory="module", memory_size=STATE),
            "has states and an auxiliary loss; remove the method auxiliary_loss",
        ),
        (own("Recurrent"), "failed for .*AssertionError"),
        (Network(memory="module"), "policy.memory is module, and policy.module is not set"),
        (
            Network(memory="module", module="examples.residual_network:Residual"),
            "is not a whole policy; name a subclass of penstock.policies.PolicyModule, or set policy.memory to gru",
        ),
    ],
    ids=lambda value: value.module.rpartition(":")[2] if isinstance(value, Network) and value.module else None,
)
def test_what_cannot_be_trained_is_refused(network: Network, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_learner("Pendulum-v1", network=network)
