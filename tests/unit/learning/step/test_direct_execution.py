"""Execution without autograd computes what autograd does, for every network to which it applies."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from penstock.algo import losses
from penstock.algo.distributions import DiagonalGaussian
from penstock.algo.losses import LossSettings
from penstock.algo.network import Network
from penstock.algo.parameters import beginning_of, flatten
from penstock.algo.policies import Inputs, Policy
from penstock.algo.priorities import importance_weights, preferences, segment_priorities
from penstock.config import PPOConfig, SamplingConfig
from penstock.learning.ranks.ranks import ALONE
from penstock.learning.step.adam import Adam
from penstock.learning.step.chosen_execution import shown_execution
from penstock.learning.step.direct_execution import DirectExecution
from penstock.learning.step.execution import Descent, Eager
from penstock.learning.step.gradient_steps import GradientStep, Steps, objective_of
from penstock.learning.step.learner import Learner
from penstock.small.compiled.losses import Coefficients
from penstock.small.compiled.minibatch import MinibatchGradient, _parts_of
from penstock.small.compiled.passes import BLOCKS
from penstock.types.spaces import (
    ActivationName,
    BoxSpace,
    DiscreteSpace,
    EnvironmentSpec,
    Leaf,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Space,
    Tree,
)
from tests.support.environments.tiny import spec_of
from tests.support.tiers import gate_of
from tests.support.training.policies import fresh_policy
from tests.support.training.training import CPU, make_batch, make_learner

SETTINGS = LossSettings(
    clip_range=0.2,
    value_clip_range=0.3,
    value_coefficient=0.5,
    entropy_coefficient=0.01,
    normalise_advantages=True,
    clip_anchor=0.5,
    behaviour_weight_clip=5.0,
)
OPTIONS: dict[str, list[Any]] = {
    "clip_range": [0.05, 0.2, 1.5],
    "value_clip_range": [None, 0.3],
    "value_coefficient": [0.5, 1.5],
    "entropy_coefficient": [0.0, 0.01, 0.5],
    "normalise_advantages": [False, True],
    "clip_anchor": [0.5],
    "behaviour_weight_clip": [5.0],
}
"""Values of the settings of the loss. The last two decide its inputs and not the loss itself."""
OPTION_VALUES = {name: st.sampled_from(values) for name, values in OPTIONS.items()}


INF = (math.inf,)
PLANE = BoxSpace("float32", (3,), 3 * (-math.inf,), 3 * INF)
PAIR = MultiDiscreteSpace((2,), (2, 4), (0, 0))
OBSERVATIONS = {
    "one box": Tree.of(PLANE),
    "integers": Tree.of(DiscreteSpace(5)),
    "box and integers": Tree((Leaf(("a",), PLANE), Leaf(("b",), DiscreteSpace(4)))),
}
ACTIONS = {
    "choice": Tree.of(DiscreteSpace(3)),
    "several choices": Tree.of(PAIR),
    "bits": Tree.of(MultiBinarySpace((3,))),
    "tuple of choices": Tree((Leaf((0,), DiscreteSpace(3)), Leaf((1,), PAIR))),
    "numbers": Tree.of(BoxSpace("float32", (2,), (-1.0, -1.0), (1.0, 1.0))),
    "unbounded numbers": Tree.of(PLANE),
}
"""Kinds of actions: all of `Space`, alone, and choices together."""
MASKABLE = ("choice", "several choices", "tuple of choices")


def make_step(policy: Policy, learning_rate: float = 1e-2) -> GradientStep:
    parameters = flatten(policy)
    own = policy.own_value_network
    border = None if own is None else beginning_of(own)
    objective = objective_of(policy, "float32", CPU)
    return GradientStep(objective, parameters, Adam(parameters, learning_rate), 0.5, border)


def direct(step: GradientStep, policy: Policy, threads: int = 1) -> DirectExecution:
    gradient = MinibatchGradient.of(policy, step.parameters, threads)
    assert gradient is not None
    return DirectExecution(step, gradient, PPOConfig(), ALONE)


def test_every_kind_of_action_and_every_setting_of_the_loss_is_compared() -> None:
    assert {type(space) for tree in ACTIONS.values() for space in tree.spaces} == {*get_args(Space)}
    assert OPTIONS.keys() == {each.name for each in dataclasses.fields(LossSettings)}


def random_steps(policy: Policy, count: int, seed: int) -> Steps:
    """Returns random steps, whose ratios are on both sides of the clip range, with random masks if there are masks."""
    spec, generator = policy.spec, torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(count, *shape, generator=generator)

    def choice(n: int) -> Tensor:
        return torch.randint(n, (count,), generator=generator)

    observation = tuple(
        normal(*space.shape) if isinstance(space, BoxSpace) else choice(space.n)  # type: ignore[union-attr, arg-type]
        for space in spec.observation.spaces
    )
    actions, legal = [], torch.rand(count, spec.mask_bits, generator=generator) < 0.5
    first = 0
    for space in spec.action.spaces:
        if isinstance(space, BoxSpace):
            actions.append(normal(*space.shape))
            continue
        chosen = torch.stack([choice(n) for n in space.choices], 1)
        for column, n in enumerate(space.choices):
            if spec.mask_bits:
                legal[torch.arange(count), first + chosen[:, column]] = True
            first += n
        actions.append(chosen[:, 0] if isinstance(space, DiscreteSpace) else chosen)
    mask = torch.from_numpy(np.packbits(legal.numpy(), axis=-1, bitorder="little")) if spec.mask_bits else None
    inputs = Inputs(observation, mask)
    with torch.no_grad():
        distribution = policy.evaluate(inputs)[0]
        if isinstance(distribution.parts[0], DiagonalGaussian):
            # Actions that the policy takes: the rounding of a log probability grows with the action's distance.
            actions = list(distribution.sample(actions[0]))
        log_prob = distribution.log_prob(tuple(actions))
    numbers = (normal(), log_prob + 0.3 * normal(), normal(), normal(), normal().exp(), normal().exp())
    rest: tuple[Any, ...] = (log_prob, *numbers, None)
    return Steps(inputs, tuple(actions), *rest)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    action = draw(st.sampled_from(sorted(ACTIONS)))
    tree = ACTIONS[action]
    bits = sum(tree.choices) if action in MASKABLE and draw(st.booleans()) else 0
    network = Network(
        hidden_sizes=draw(st.sampled_from([(16, 16), (8,), (), (8, 16, 4), (40, 24), (264, 256)])),
        trunk=draw(st.sampled_from(["separate", "shared"])),
        activation=draw(st.sampled_from(get_args(ActivationName))),
        state_dependent_std=draw(st.booleans()),
        normalise_observations=draw(st.booleans()),
        initial_log_std=draw(st.sampled_from([0.0, -6.0, 3.0])),
    )
    observation = OBSERVATIONS[draw(st.sampled_from(sorted(OBSERVATIONS)))]
    policy = fresh_policy(EnvironmentSpec("Any-v0", observation, tree, mask_bits=bits), network=network)
    with torch.no_grad():
        for parameter in policy.actor.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))
    return policy


@given(policies(), st.one_of(st.integers(1, 70), st.just(300)), st.fixed_dictionaries(OPTION_VALUES), st.integers(0, 9))
def test_the_gradient_is_that_of_autograd(policy: Policy, count: int, options: dict[str, Any], seed: int) -> None:
    settings = LossSettings(**options)
    if count == 1:
        settings = dataclasses.replace(settings, normalise_advantages=False)
    step, steps = make_step(policy), random_steps(policy, count, seed)
    gradient = step.parameters.grad
    assert gradient is not None
    step.gradients(steps, settings)(slice(0, count))
    expected = gradient.clone()
    gradient.fill_(7.0)
    direct(step, policy).gradients(steps, settings)(slice(0, count))
    # A log probability magnifies the rounding of a mean by the inverse of the deviation, which is at least e^-5.
    of_numbers = isinstance(policy.spec.action.spaces[0], BoxSpace)
    rounding = math.exp(min(max(-policy.network.initial_log_std, 0.0), 5.0)) if of_numbers else 1.0
    for parameter, (name, _) in zip(policy.parameters(), policy.named_parameters(), strict=True):
        assert parameter.grad is not None
        begin = parameter.storage_offset()
        found = expected[begin : begin + parameter.numel()].view_as(parameter)
        scale = rounding * (float(found.abs().max()) + 1e-3)
        torch.testing.assert_close(parameter.grad, found, rtol=1e-4, atol=3e-6 * scale, msg=name)


@pytest.mark.parametrize("execution", [make_step, lambda policy: direct(make_step(policy), policy)])
@pytest.mark.parametrize("env_id", gate_of(1, ["CartPole-v1", "Pendulum-v1"]))
def test_draws_by_priority_estimate_the_gradient_of_uniform_draws(
    env_id: str, execution: Callable[[Policy], GradientStep | DirectExecution]
) -> None:
    """For fixed parameters and a pool of segments with unequal advantages, over many draws."""
    settings = dataclasses.replace(SETTINGS, value_coefficient=0.0, entropy_coefficient=0.0, clip_anchor=0.0)
    policy, pool, rows, drawn, draws = fresh_policy(spec_of(env_id)), 64, 4, 1024, 100
    steps, generator = random_steps(policy, pool * rows, 0), torch.Generator().manual_seed(1)
    # Sizes whose weights stay below the bound of `importance_weights`.
    size = (0.7 * torch.randn(pool, generator=generator)).exp().repeat_interleave(rows)
    advantage = size * (torch.randn(pool * rows, generator=generator) + 0.5)
    steps = dataclasses.replace(steps, advantage=advantage, anchor_log_prob=steps.proximal_log_prob)
    priority = segment_priorities(advantage.view(pool, rows), torch.ones(pool, rows, dtype=torch.bool)).double()
    write = execution(policy)
    gradient = next(policy.actor.parameters()).grad
    assert gradient is not None
    found = []
    for alpha in (0.0, 0.6, 1.0):
        share = priority**alpha / (priority**alpha).sum()
        gradients = []
        for _ in range(draws):
            segments = torch.multinomial(share, drawn, replacement=True, generator=generator)
            weights = importance_weights(preferences(share[segments], torch.zeros(drawn), 1.0), 0, 1.0)
            importance = weights.repeat_interleave(rows)
            taken = steps.take((segments[:, None] * rows + torch.arange(rows)).flatten())
            taken = dataclasses.replace(taken, importance=importance, policy_weight=importance)
            write.gradients(taken, settings)(slice(0, drawn * rows))
            gradients.append(gradient.flatten().double().clone())
        found.append(torch.stack(gradients))
    uniform, *prioritized = [each.mean(0) for each in found]
    errors = [float(each.std(0).norm()) / math.sqrt(draws) for each in found]
    for mean, error in zip(prioritized, errors[1:], strict=True):
        assert (mean - uniform).norm() < 3.0 * math.hypot(error, errors[0])


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("count", [127, 128, 129, 256, 257, 700, 5000])
def test_blocks_and_parts_add_up_to_the_gradient_of_autograd_in_any_number_of_threads(env_id: str, count: int) -> None:
    policy = fresh_policy(spec_of(env_id))
    step, steps = make_step(policy), random_steps(policy, count, 0)
    gradient = step.parameters.grad
    assert gradient is not None
    step.gradients(steps, SETTINGS)(slice(0, count))
    expected, found = gradient.clone(), []
    for threads in (1, 2, 5):
        gradient.fill_(7.0)
        direct(step, policy, threads).gradients(steps, SETTINGS)(slice(0, count))
        found.append(gradient.clone())
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-6)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@given(policies(), st.integers(0, 9))
def test_epochs_end_at_the_parameters_and_results_of_autograd(policy: Policy, seed: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        other = fresh_policy(policy.spec, network=policy.network)
        other.load_state_dict(policy.state_dict())
    batches = [random_steps(policy, count, epoch) for epoch, count in enumerate((50, 37))]
    found = []
    descents: list[tuple[Policy, Callable[[GradientStep, Policy], Descent]]]
    descents = [(policy, direct), (other, lambda step, _: Eager(step))]
    for each, make in descents:
        # Adam divides by the size of a gradient, so that rounding moves a parameter with a gradient near 0.
        step = make_step(each, learning_rate=1e-4)
        descent = make(step, each)
        for epoch, steps in enumerate(batches):
            descent.begin(steps, SETTINGS, most_steps=50)
            order = torch.randperm(len(steps.target), generator=torch.Generator().manual_seed(epoch))
            done = descent.descend(order, 4)
        found.append((step.parameters.detach(), done))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=0, atol=2e-4)
    for name in ("log_prob", "policy_loss", "value_loss", "entropy", "gradient_norm", "refused"):
        ours, theirs = (getattr(done, name) for _, done in found)
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-3, msg=name)


@given(st.integers(1, 40), st.sampled_from([0.2, 1.0, 3.0]), st.sampled_from([0.1, 5.0, 50.0]), st.integers(0, 9))
def test_the_movement_of_an_epoch_is_that_of_torch(count: int, clip_range: float, spread: float, seed: int) -> None:
    policy, settings = fresh_policy(spec_of("CartPole-v1")), dataclasses.replace(SETTINGS, clip_range=clip_range)
    descent, steps = direct(make_step(policy), policy), random_steps(policy, count, seed)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(count, generator=generator)
    log_prob = steps.proximal_log_prob[order] + spread * torch.randn(count, generator=generator)
    descent.begin(steps, settings, most_steps=count)
    expected = losses.movement(
        settings,
        log_prob=log_prob,
        anchor_log_prob=steps.anchor_log_prob[order],
        proximal_log_prob=steps.proximal_log_prob[order],
    )
    found = descent.movement(order, log_prob)
    torch.testing.assert_close(found.approximate_kl, expected.approximate_kl, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.clipped_share, expected.clipped_share)


@pytest.mark.parametrize("target", [math.nan, math.inf, 1e30])
def test_a_step_without_a_finite_norm_changes_nothing(target: float) -> None:
    policy = fresh_policy(spec_of("Pendulum-v1"))
    step = make_step(policy)
    descent, steps = direct(step, policy), random_steps(policy, 16, 0)
    for refused, each in ((0.0, steps), (1.0, dataclasses.replace(steps, target=torch.full((16,), target)))):
        before = [step.parameters.detach().clone(), *(value.clone() for value in step.optimizer.state.values())]
        descent.begin(each, SETTINGS, most_steps=16)
        assert descent.descend(torch.arange(16), 1).refused.tolist() == [refused]
        after = [step.parameters.detach(), *step.optimizer.state.values()]
        changed = [not torch.equal(one, other) for one, other in zip(before, after, strict=True)]
        assert changed == 4 * [not refused]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_learner_that_takes_direct_steps_learns_what_an_eager_one_learns(env_id: str) -> None:
    batch, found = make_batch(env_id, fresh=3), []
    for execution, reported in (("auto", "direct"), ("eager", "eager")):
        learner = make_learner(env_id, execution=execution)  # type: ignore[arg-type]
        assert learner.execution == reported
        outcome = learner.train(batch, 0.0)
        found.append((outcome, learner.parameters.detach(), learner.squared_gradients(batch, 0.0)))
    (ours, parameters, squared), (theirs, expected, expected_squared) = found
    np.testing.assert_allclose(ours.priorities, theirs.priorities, rtol=1e-4)
    torch.testing.assert_close(parameters, expected, rtol=0, atol=1e-4)
    np.testing.assert_allclose(squared, expected_squared, rtol=1e-2)
    assert ours.statistics.learning.priority_gain is None
    for name, value in dataclasses.asdict(theirs.statistics.learning).items():
        if name != "priority_gain":
            expected_value = None if value is None else pytest.approx(value, rel=1e-2, abs=1e-4)
            assert getattr(ours.statistics.learning, name) == expected_value, name


@pytest.mark.parametrize(
    "network, actions, cause",
    [
        (Network(memory="gru"), "numbers", "policy.memory is 'gru'"),
        (Network(encoders={"unit": "embedding"}), "numbers", "an observation has the encoder embedding"),
        (Network(squash_actions=True), "numbers", "policy.squash_actions is true"),
        (Network(), "choice and numbers", "the action has a vector of numbers beside other parts"),
    ],
)
def test_other_policies_are_left_to_autograd_for_a_reason_that_is_shown(
    network: Network, actions: str, cause: str
) -> None:
    parts = Tree((*ACTIONS["choice"].leaves, Leaf(("x",), PLANE))) if actions not in ACTIONS else ACTIONS[actions]
    observation = Tree((Leaf(("a",), PLANE), Leaf(("unit",), DiscreteSpace(4))))
    learner = Learner(
        EnvironmentSpec("Any-v0", observation, parts),
        network,
        ppo=PPOConfig(minibatches=1),
        sampling=SamplingConfig(),
        device=CPU,
        seed=0,
    )
    assert MinibatchGradient.of(learner.policy, learner.parameters, threads=1) is None
    line = shown_execution(learner.execution, learner.policy, "auto")
    assert line == f"gradient steps: eager, because {cause} (learner.execution)"


@pytest.mark.parametrize("count", [0, 1, 256, 257, 4096, 4097, 100_000])
def test_parts_of_a_minibatch_have_whole_blocks_of_any_size(count: int) -> None:
    parts = _parts_of(count)
    assert len(parts) <= 16 and [row for part in parts for row in range(part.start, part.stop)] == list(range(count))
    assert all((part.stop - part.start) % max(BLOCKS) == 0 for part in parts[:-1])


def test_direct_steps_are_shown_without_a_reason() -> None:
    learner = make_learner()
    line = shown_execution(learner.execution, learner.policy, "auto")
    assert line == "gradient steps: direct (learner.execution)"


@dataclasses.dataclass(frozen=True, slots=True)
class _FurtherSettings(LossSettings):
    dual_clip: float


def test_a_setting_of_the_loss_that_compiled_code_lacks_is_refused() -> None:
    settings = _FurtherSettings(**dataclasses.asdict(SETTINGS), dual_clip=3.0)
    with pytest.raises(NotImplementedError, match="lacks settings of the loss: dual_clip"):
        Coefficients.of(settings)
