import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.algo.action_heads import ActionHead, bound
from penstock.algo.distributions import Categorical, DiagonalGaussian, Joint, MultiCategorical, SquashedGaussian
from penstock.algo.network import Network, Noise, NoiseKind
from penstock.types.spaces import BoxSpace, DiscreteSpace, Leaf, MultiBinarySpace, MultiDiscreteSpace, Space, Tree

DISCRETE = DiscreteSpace(5, start=2)
UNEQUAL = MultiDiscreteSpace((3,), (2, 4, 1), (0, 0, 7))
EQUAL = MultiDiscreteSpace((2, 2), (3, 3, 3, 3), (0,) * 4)
BINARY = MultiBinarySpace((4,))
BOX = BoxSpace("float32", (3,), (-1.0,) * 3, (1.0, 1.0, math.inf))
SPACES: list[Space] = [DISCRETE, BOX, UNEQUAL, EQUAL, BINARY]
HYBRID = Tree(tuple(Leaf((i,), space) for i, space in enumerate(SPACES)))
BITS = sum(HYBRID.choices)


def head_of(space: Space | Tree, *, state_dependent_std: bool = False, squash_actions: bool = False) -> ActionHead:
    tree = space if isinstance(space, Tree) else Tree.of(space)
    network = Network(
        initial_log_std=-0.5, state_dependent_std=state_dependent_std, squash_actions=squash_actions, widest_range=1e4
    )
    return ActionHead(tree, network)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def masks(seed: int, rows: int, choices: tuple[int, ...] = HYBRID.choices) -> Tensor:
    """Returns random masks, <bool>[rows, bits], whose every choice has a legal alternative."""
    random = np.random.default_rng(seed)
    parts = [random.random((rows, n)) < 0.5 for n in choices]
    for part in parts:
        part[np.arange(rows), random.integers(part.shape[1], size=rows)] = True
    return torch.from_numpy(np.concatenate(parts, axis=-1))


def uniform_noise(seed: int, rows: int, head: ActionHead) -> Tensor:
    return torch.from_numpy(
        np.random.default_rng(seed).random((rows, sum(part.size for part in head.noise)), np.float32)
    )


@pytest.mark.parametrize(
    ("space", "outputs", "noise"),
    [
        (DISCRETE, 5, Noise(NoiseKind.UNIFORM, 1)),
        (UNEQUAL, 7, Noise(NoiseKind.UNIFORM, 3)),
        (EQUAL, 12, Noise(NoiseKind.UNIFORM, 4)),
        (BINARY, 8, Noise(NoiseKind.UNIFORM, 4)),
        (BOX, 3, Noise(NoiseKind.NORMAL, 3)),
    ],
    ids=lambda value: value.shown() if hasattr(value, "shown") else None,
)
def test_each_kind_of_leaf_has_its_outputs_and_noise(space: Space, outputs: int, noise: Noise) -> None:
    assert head_of(space).outputs == outputs
    assert head_of(space).noise == (noise,)


def test_outputs_and_noise_of_several_leaves_are_side_by_side() -> None:
    parts = [head_of(space) for space in HYBRID.spaces]
    assert head_of(HYBRID).outputs == sum(part.outputs for part in parts)
    assert head_of(HYBRID).noise == tuple(noise for part in parts for noise in part.noise)


def test_a_head_adds_nothing_to_checkpoints() -> None:
    for space in (*HYBRID.spaces, HYBRID):
        head = head_of(space)
        assert head.state_dict() == {}
        assert list(head.parameters()) == []


def test_all_boxes_share_one_parameter_of_log_deviations() -> None:
    log_std = head_of(Tree((Leaf((0,), BOX), Leaf((1,), DISCRETE), Leaf((2,), BOX)))).log_std()
    assert log_std is not None
    assert log_std.tolist() == [-0.5] * 6
    assert head_of(EQUAL).log_std() is None
    assert head_of(HYBRID, state_dependent_std=True).log_std() is None


def test_only_the_biases_of_state_dependent_deviations_are_initialised() -> None:
    head = head_of(Tree((Leaf((0,), DISCRETE), Leaf((1,), BOX), Leaf((2,), BINARY))), state_dependent_std=True)
    bias = torch.nn.Parameter(torch.zeros(head.outputs))
    head.initialise(bias)
    assert bias.tolist() == [0.0] * (5 + 3) + [-0.5] * 3 + [0.0] * 8
    for space in (DISCRETE, BOX, BINARY):
        unchanged = torch.zeros(head_of(space).outputs)
        head_of(space).initialise(unchanged)
        assert not unchanged.any()


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("state_dependent", [False, True])
def test_a_joint_distribution_is_the_product_of_those_of_its_leaves(squash: bool, state_dependent: bool) -> None:
    head = head_of(HYBRID, state_dependent_std=state_dependent, squash_actions=squash)
    outputs, legal = normal(0, 6, head.outputs), masks(1, 6)
    noise = uniform_noise(2, 6, head)
    joint = head.distribution(outputs, head.log_std(), legal)
    actions = joint.sample(noise)
    log_prob, entropy = torch.zeros(6), torch.zeros(6)
    output = bit = number = 0
    for space, action, mode in zip(HYBRID.spaces, actions, joint.mode(), strict=True):
        own = head_of(space, state_dependent_std=state_dependent, squash_actions=squash)
        bits, numbers = sum(space.choices), own.noise[0].size
        part = own.distribution(
            outputs[:, output : output + own.outputs], own.log_std(), legal[:, bit : bit + bits] if bits else None
        )
        assert torch.equal(part.sample(noise[:, number : number + numbers])[0], action)
        assert torch.equal(part.mode()[0], mode)
        log_prob, entropy = log_prob + part.log_prob((action,)), entropy + part.entropy()
        output, bit, number = output + own.outputs, bit + bits, number + numbers
    assert (output, bit, number) == (head.outputs, BITS, noise.shape[-1])
    torch.testing.assert_close(joint.log_prob(actions), log_prob)
    torch.testing.assert_close(joint.entropy(), entropy)


def test_the_bits_of_a_mask_are_those_of_the_logits() -> None:
    head = head_of(UNEQUAL)
    legal = torch.tensor([False, True, True, False, True, False, True])
    joint = head.distribution(normal(0, 7), None, legal)
    assert [joint.log_prob((torch.tensor(action),)).isfinite().item() for action in ([1, 0, 0], [1, 2, 0])] == [
        True
    ] * 2
    assert [joint.log_prob((torch.tensor(action),)).item() for action in ([0, 0, 0], [1, 1, 0], [1, 3, 0])] == [
        -math.inf
    ] * 3


@pytest.mark.parametrize("space", [UNEQUAL, EQUAL, BINARY], ids=lambda space: space.shown())
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.3, 4.0])
def test_several_choices_have_the_results_of_one_categorical_each(
    space: MultiDiscreteSpace, masked: bool, temperature: float
) -> None:
    head = head_of(space)
    legal = masks(1, 30, space.choices) if masked else None
    logits = normal(0, 30, head.outputs).requires_grad_()
    noise = uniform_noise(2, 30, head)
    joint = head.distribution(logits, None, legal).tempered(temperature)
    ends = np.cumsum(space.choices)
    slices = [slice(int(end - n), int(end)) for end, n in zip(ends, space.choices, strict=True)]
    parts = [
        Categorical.of_logits(logits[:, own], None if legal is None else legal[:, own]).tempered(temperature)
        for own in slices
    ]
    sampled = torch.stack([part.sample(noise[:, i : i + 1]) for i, part in enumerate(parts)], -1)
    assert torch.equal(joint.sample(noise)[0], sampled)
    assert torch.equal(joint.mode()[0], torch.stack([part.mode() for part in parts], -1))
    found = joint.log_prob((sampled,)), joint.entropy()
    expected = (
        torch.stack([part.log_prob(sampled[:, i]) for i, part in enumerate(parts)]).sum(0),
        torch.stack([part.entropy() for part in parts]).sum(0),
    )
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
        gradients = [torch.autograd.grad(value.sum(), logits, retain_graph=True)[0] for value in (ours, theirs)]
        torch.testing.assert_close(*gradients)
        if legal is not None:
            assert (gradients[0][~legal] == 0.0).all()


def test_choices_of_bits_are_bernoulli_distributed() -> None:
    outputs, bits = normal(0, 9, 8).double(), torch.from_numpy(np.random.default_rng(1).integers(0, 2, (9, 4)))
    pairs = outputs.reshape(9, 4, 2)
    bernoulli: Any = torch.distributions.Independent(
        torch.distributions.Bernoulli(logits=pairs[..., 1] - pairs[..., 0]),
        1,
    )
    joint = head_of(BINARY).distribution(outputs, None, None)
    torch.testing.assert_close(joint.log_prob((bits,)), bernoulli.log_prob(bits.double()))
    torch.testing.assert_close(joint.entropy(), bernoulli.entropy())


def test_no_illegal_alternative_of_several_choices_is_drawn() -> None:
    head, rows = head_of(HYBRID), 20_000
    noise = uniform_noise(0, rows, head)
    noise[:4] = torch.tensor([0.0, 2.0**-24, 1.0 - 2.0**-23, 1.0 - 2.0**-24])[:, None]
    for temperature in (0.1, 1.0, 10.0):
        legal = masks(1, rows)
        actions = head.distribution(normal(2, rows, head.outputs) * 5.0, head.log_std(), legal).tempered(temperature)
        drawn = [action.reshape(rows, -1) for action in actions.sample(noise)]
        chosen = torch.cat([action for action, space in zip(drawn, HYBRID.spaces, strict=True) if space.choices], -1)
        first = torch.from_numpy(np.cumsum(HYBRID.choices) - HYBRID.choices)
        assert (chosen >= 0).all()
        assert (chosen < torch.tensor(HYBRID.choices)).all()
        assert legal.gather(-1, first + chosen).all()


def test_a_single_choice_has_the_results_of_the_plain_formulas_bit_for_bit() -> None:
    head = head_of(DISCRETE)
    logits = normal(0, 64, 5).requires_grad_()
    noise, weights = uniform_noise(1, 64, head), normal(2, 2, 64)
    joint = head.distribution(logits, None, None)
    (action,) = joint.sample(noise)
    log_probs = torch.log_softmax(logits, -1)
    assert torch.equal(action, (log_probs.exp().cumsum(-1)[..., :-1] <= noise).sum(-1))
    assert torch.equal(joint.mode()[0], log_probs.argmax(-1))
    expected = log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1), -(log_probs.exp() * log_probs).sum(-1)
    assert_same((joint.log_prob((action,)), joint.entropy()), expected, weights, [logits])


def test_a_single_box_has_the_results_of_the_plain_formulas_bit_for_bit() -> None:
    head = head_of(BOX)
    mean, log_std = normal(0, 64, 3).requires_grad_(), normal(1, 3).requires_grad_()
    noise, weights = normal(2, 64, 3), normal(3, 2, 64)
    joint = head.distribution(mean, log_std, None)
    bounded = log_std.clamp(-5.0, 2.0)
    (action,) = (sample.detach() for sample in joint.sample(noise))
    assert torch.equal(action, mean + torch.exp(bounded) * noise)
    assert torch.equal(joint.mode()[0], mean)
    scaled = (action - mean) * torch.exp(-bounded)
    log_two_pi = math.log(2.0 * math.pi)
    expected = (
        (-0.5 * (scaled * scaled + log_two_pi) - bounded).sum(-1),
        (bounded + 0.5 * (1.0 + log_two_pi)).expand_as(mean).sum(-1),
    )
    assert_same((joint.log_prob((action,)), joint.entropy()), expected, weights, [mean, log_std])


def assert_same(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], weights: Tensor, leaves: list[Tensor]) -> None:
    """Asserts that the values, and the gradients of their weighted sum, have the same bits."""
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)
    gradients = [torch.autograd.grad((torch.stack(values) * weights).sum(), leaves) for values in (found, expected)]
    for ours, theirs in zip(*gradients, strict=True):
        assert torch.equal(ours, theirs)


def test_the_part_of_a_single_leaf_is_that_of_its_kind() -> None:
    kinds: dict[Space, type] = {
        DISCRETE: Categorical,
        UNEQUAL: MultiCategorical,
        BINARY: MultiCategorical,
        BOX: DiagonalGaussian,
    }
    for space, kind in kinds.items():
        head = head_of(space)
        (part,) = head.distribution(torch.zeros(2, head.outputs), head.log_std(), None).parts
        assert type(part) is kind
    (squashed,) = head_of(BOX, squash_actions=True).distribution(torch.zeros(2, 3), torch.zeros(3), None).parts
    assert isinstance(squashed, SquashedGaussian)
    assert squashed.squashed.tolist() == [True, True, False]


def test_temperature_1_returns_the_same_joint_distribution() -> None:
    head = head_of(HYBRID)
    joint = head.distribution(normal(0, 2, head.outputs), head.log_std(), masks(0, 2))
    assert joint.tempered(1.0) is joint


@pytest.mark.nightly
@pytest.mark.parametrize("masked", [False, True])
def test_a_head_is_traced_as_one_graph(masked: bool) -> None:
    head = head_of(HYBRID, squash_actions=True)
    log_std, legal = head.log_std(), masks(0, 7) if masked else None
    noise = uniform_noise(1, 7, head)

    def results(outputs: Tensor, actions: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        joint: Joint = head.distribution(outputs, log_std, legal)
        return joint.log_prob(actions), joint.entropy(), *joint.tempered(0.5).sample(noise), *joint.mode()

    outputs = normal(2, 7, head.outputs).requires_grad_()
    with torch.no_grad():
        actions = head.distribution(outputs, log_std, legal).sample(noise)
    # This backend needs no compiler, and `fullgraph` refuses every break of the graph.
    traced = torch.compile(results, backend="aot_eager", fullgraph=True)
    expected, found = results(outputs, actions), traced(outputs, actions)
    gradients = [torch.autograd.grad(values[0].sum() + values[1].sum(), outputs)[0] for values in (expected, found)]
    for ours, theirs in zip([*found, gradients[1]], [*expected, gradients[0]], strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("start", "action"), [(2.5, 0.0), (-5.5, 1.0)])
def test_the_gradient_returns_a_deviation_from_beyond_its_bounds(start: float, action: float) -> None:
    log_std = torch.tensor([start], requires_grad=True)
    distribution = DiagonalGaussian(torch.zeros(1), bound(log_std, -5.0, 2.0))
    torch.autograd.backward(-distribution.log_prob(torch.tensor([action])))
    assert log_std.grad is not None
    # Descent moves against the gradient: down from 2.5 if the action is at the mean, up from -5.5 if it is far away.
    assert (log_std.grad.item() > 0.0) == (start > 0.0)


@pytest.mark.parametrize(("start", "action"), [(2.5, 100.0), (-5.5, 0.0)])
def test_no_gradient_moves_a_deviation_further_beyond_its_bounds(start: float, action: float) -> None:
    log_std = torch.tensor([start], requires_grad=True)
    distribution = DiagonalGaussian(torch.zeros(1), bound(log_std, -5.0, 2.0))
    torch.autograd.backward(-distribution.log_prob(torch.tensor([action])))
    assert log_std.grad is not None and log_std.grad.item() == 0.0


def test_a_value_within_its_bounds_and_its_gradient_are_unchanged() -> None:
    values = torch.tensor([-4.9, 0.0, 1.9], requires_grad=True)
    assert torch.equal(bound(values, -5.0, 2.0), values)
    torch.autograd.backward((bound(values, -5.0, 2.0) * torch.tensor([1.0, -2.0, 3.0])).sum())
    assert values.grad is not None and values.grad.tolist() == [1.0, -2.0, 3.0]
