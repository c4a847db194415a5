"""Policies in NumPy act as the learner's torch policies: the same actions, and the same log probabilities to 1e-6."""

import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.acting.policies.inference import PolicyRunner
from penstock.acting.policies.runners import runner_of
from penstock.acting.protocols import Runner
from penstock.algo import published
from penstock.algo.distributions import Categorical, DiagonalGaussian, Joint, MultiCategorical
from penstock.algo.network import Network
from penstock.algo.policies import Policy
from penstock.algo.spaces import alternatives
from penstock.errors import ConfigurationError
from penstock.small import actions
from penstock.small.policy import NumpyRunner, obstacle
from penstock.types.run import Weights
from penstock.types.spaces import ActivationName, BoxSpace, DiscreteSpace, Encoder, EnvironmentSpec, Space, Tree
from tests.support.environments.tiny import TAXI, spec_of
from tests.support.machine.timing import PATIENCE_S
from tests.support.segments.spaces import LEAVES, OBSERVED_LEAVES, nested
from tests.support.services.processes import WITH_HELPERS
from tests.support.training.policies import decided_weights, fresh_policy, weights_of

TOLERANCE = 1e-6
"""Largest difference of a log probability, for each unit by which `condition` multiplies a rounding error of the
network's outputs. A policy with one choice among logits below 1 has a condition of 2."""

MOST_CODES = 400
ACTED: list[Space] = [*(leaf for _, leaf in LEAVES), DiscreteSpace(1), DiscreteSpace(2)]
WIDE, ACTIONS = gymnasium.spaces.Box(0.0, 1.0, (10_000,), np.float32), gymnasium.spaces.Discrete(2)


@dataclass(frozen=True)
class Case:
    """A policy, with the observations, masks and noise of some rows."""

    policy: Policy
    temperature: float
    observation: tuple[NDArray[Any], ...]
    mask: NDArray[np.bool_] | None
    noise: NDArray[np.float32]

    @property
    def weights(self) -> Weights:
        return weights_of(self.policy, 3)

    @property
    def rows(self) -> int:
        return len(self.noise)

    def distribution(self) -> Joint:
        """Returns torch's distribution of the rows."""
        leaves = tuple(torch.from_numpy(leaf) for leaf in self.observation)
        legal = None if self.mask is None else torch.from_numpy(self.mask)
        with torch.inference_mode():
            return self.policy.act(leaves, legal, None, None)[0].tempered(self.temperature)


def tree_of(leaves: list[Space], *, is_nested: bool) -> Tree:
    if not is_nested:
        return Tree.of(leaves[0])
    return nested(*(((f"part{index}",), leaf) for index, leaf in enumerate(leaves)))


def encoder_of(space: Space, *, codes: bool) -> Encoder:
    integers = alternatives(space)
    return "one_hot" if codes and integers is not None and integers[1].sum() < MOST_CODES else "flat"


def observed(space: Space, rows: int, generator: np.random.Generator) -> NDArray[Any]:
    dtype, shape = space.observation_array
    integers = alternatives(space)
    if integers is not None:
        low, counts = integers
        return generator.integers(low, low + counts, (rows, low.size)).reshape(rows, *shape).astype(dtype)
    values: NDArray[Any] = generator.normal(size=(rows, *shape)) * generator.choice([1.0, 50.0])
    return values.astype(dtype)


def masked(tree: Tree, rows: int, generator: np.random.Generator) -> NDArray[np.bool_]:
    """Returns masks with at least one legal alternative of each choice."""
    parts = []
    for n in tree.choices:
        part = generator.random((rows, n)) < 0.5
        part[np.arange(rows), generator.integers(0, n, rows)] = True
        parts.append(part)
    return np.concatenate(parts, axis=1)


@torch.no_grad()
def disturb(policy: Policy, generator: np.random.Generator) -> None:
    """Makes the actions depend on the observations, and the moments of these not those of a new policy."""
    outputs = [*policy.actor.parameters()][-2:]
    outputs[0].mul_(float(generator.choice([1.0, 30.0])))
    for name, parameter in policy.named_parameters():
        if name.endswith("bias"):
            parameter.add_(torch.from_numpy(generator.normal(size=parameter.shape).astype(np.float32)))
    moments = policy.observation_moments
    moments.mean.copy_(torch.from_numpy(np.asarray(generator.normal(size=moments.mean.shape))))
    # Some elements hardly varied, or never.
    units = generator.choice([1.0, 1.0, 1e-18, 0.0], moments.variance.shape)
    moments.variance.copy_(torch.from_numpy(np.asarray(units * generator.gamma(2.0, size=moments.variance.shape))))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    is_nested, codes = draw(st.booleans()), draw(st.booleans())
    observed_leaves = draw(st.lists(st.sampled_from([leaf for _, leaf in OBSERVED_LEAVES]), min_size=1, max_size=3))
    acted_leaves = draw(st.lists(st.sampled_from(ACTED), min_size=1, max_size=3))
    observation, action = tree_of(observed_leaves, is_nested=is_nested), tree_of(acted_leaves, is_nested=is_nested)
    network = Network(
        hidden_sizes=tuple(draw(st.lists(st.integers(1, 70), max_size=3))),
        trunk=draw(st.sampled_from(["separate", "shared"])),
        activation=draw(st.sampled_from(get_args(ActivationName))),
        initial_log_std=draw(st.sampled_from([-9.0, -0.5, 0.0, 3.0])),
        state_dependent_std=draw(st.booleans()),
        squash_actions=draw(st.booleans()),
        normalise_observations=draw(st.booleans()),
        variance_epsilon=draw(st.sampled_from([0.0, 1e-8])),
        encoders={leaf.name or "observation": encoder_of(leaf.space, codes=codes) for leaf in observation.leaves},
    )
    generator, rows = np.random.default_rng(draw(st.integers(0, 2**32 - 1))), draw(st.integers(1, 40))
    has_mask = draw(st.booleans()) and bool(action.choices)
    spec = EnvironmentSpec("Any-v0", observation, action, mask_bits=sum(action.choices) if has_mask else 0)
    policy = fresh_policy(spec, int(generator.integers(1000)), network)
    disturb(policy, generator)
    return Case(
        policy,
        draw(st.sampled_from([1.0, 0.3, 4.0])),
        tuple(observed(leaf.space, rows, generator) for leaf in observation.leaves),
        masked(action, rows, generator) if has_mask else None,
        generator.random((rows, sum(part.size for part in policy.noise)), np.float32),
    )


def condition(joint: Joint, action: tuple[torch.Tensor, ...]) -> NDArray[np.float64]:
    """Returns, <float64>[N], the factor by which a relative error of the outputs may change the log probabilities."""
    total = np.ones(len(action[0]))
    for part, taken in zip(joint.parts, action, strict=True):
        if isinstance(part, DiagonalGaussian):
            precision = torch.exp(-part.log_std)
            scaled = ((taken - part.mean) * precision).abs()
            # An error of the mean, and one of the deviation.
            error = scaled * (part.mean.abs() + taken.abs() + 1.0) * precision + scaled.square() + part.log_std.abs()
            total += error.sum(-1).double().numpy()
            continue
        categorical = part.choices if isinstance(part, MultiCategorical) else part
        assert isinstance(categorical, Categorical)
        choices = categorical.log_probs
        # Logits as large as the least probability, which is -inf for illegal actions.
        spread = torch.where(choices.isfinite(), choices, 0.0).abs().amax(-1)
        total += (spread.sum(-1) if spread.ndim > 1 else spread).double().numpy()
    return total


def assert_same_choices(part: Categorical, found: torch.Tensor, noise: torch.Tensor) -> None:
    """Asserts that the actions are torch's, unless the noise is within rounding of the border between both."""
    expected = part.sample(noise.unsqueeze(-1))
    cumulative = part.log_probs.exp().double().cumsum(-1)
    for row in (found != expected).nonzero():
        index = tuple(row.tolist())
        lower, upper = sorted((int(found[index]), int(expected[index])))
        borders = cumulative[index][lower:upper]
        assert (borders - noise[index]).abs().max() < 1e-5, index


@given(cases())
def test_actions_and_log_probabilities_are_those_of_torch(case: Case) -> None:
    runner = NumpyRunner(case.weights, published.of_metadata(published.read_metadata(case.weights.data)),
                         temperature=case.temperature)  # fmt: skip
    assert runner.noise == case.policy.noise
    action, log_prob = runner.act(case.observation, case.noise, mask=case.mask)
    joint = case.distribution()
    taken = tuple(torch.from_numpy(np.ascontiguousarray(leaf)) for leaf in action)
    expected = joint.log_prob(taken).numpy()
    assert log_prob.dtype == np.float32 and log_prob.shape == (case.rows,)
    assert np.isfinite(expected).all()
    np.testing.assert_array_less(np.abs(log_prob - expected), TOLERANCE * condition(joint, taken))
    first = 0
    for part, leaf, space in zip(joint.parts, taken, case.policy.spec.action.spaces, strict=True):
        noise = torch.from_numpy(case.noise[:, first : first + part.noise.size])
        first += part.noise.size
        assert str(leaf.dtype) == f"torch.{space.action_array[0]}" and tuple(leaf.shape[1:]) == space.action_array[1]
        if isinstance(part, DiagonalGaussian):
            torch.testing.assert_close(leaf, part.sample(noise), rtol=1e-5, atol=1e-5)
        else:
            choices = part.choices if isinstance(part, MultiCategorical) else part
            assert isinstance(choices, Categorical)
            assert_same_choices(choices, leaf, noise if isinstance(part, MultiCategorical) else noise[:, 0])


@given(cases())
def test_greedy_actions_are_those_of_torch(case: Case) -> None:
    runner = runner_of(case.weights)
    greedy = runner.act_greedily(case.observation, mask=case.mask)
    joint = case.distribution()
    for part, leaf in zip(joint.parts, greedy, strict=True):
        found = torch.from_numpy(np.ascontiguousarray(leaf))
        if isinstance(part, DiagonalGaussian):
            torch.testing.assert_close(found, part.mode(), rtol=1e-5, atol=1e-5)
            continue
        choices = part.choices if isinstance(part, MultiCategorical) else part
        # Ties are broken by rounding.
        assert (choices.log_prob(choices.mode()) - choices.log_prob(found)).abs().max() < 1e-4


@given(cases(), st.randoms(use_true_random=False))
def test_a_row_depends_neither_on_the_number_of_rows_nor_on_its_place(case: Case, random: Any) -> None:
    runner = runner_of(case.weights, temperature=case.temperature)
    action, log_prob = runner.act(case.observation, case.noise, mask=case.mask)
    chosen = np.array(random.choices(range(case.rows), k=random.randint(1, 70)))
    some, some_log_probs = runner.act(
        tuple(leaf[chosen] for leaf in case.observation),
        case.noise[chosen],
        mask=None if case.mask is None else case.mask[chosen],
    )
    assert all(np.array_equal(few, leaf[chosen]) for few, leaf in zip(some, action, strict=True))
    assert np.array_equal(some_log_probs, log_prob[chosen])


def runners(weights: Weights) -> tuple[Runner, Runner]:
    return runner_of(weights), runner_of(weights, inference="torch")


def test_results_stay_valid_after_the_next_call() -> None:
    runner, generator = runner_of(decided_weights(spec_of("CartPole-v1"))), np.random.default_rng(0)
    rows = [(generator.normal(size=(16, 4)).astype(np.float32), generator.random((16, 1), np.float32)) for _ in "ab"]
    (action,), log_prob = runner.act((rows[0][0],), rows[0][1])
    kept = action.copy(), log_prob.copy()
    runner.act((rows[1][0],), rows[1][1])
    assert np.array_equal(action, kept[0]) and np.array_equal(log_prob, kept[1])
    spec = spec_of("Pendulum-v1")
    runner = runner_of(decided_weights(spec))
    (greedy,) = runner.act_greedily((np.ones((2, 3), np.float32),))
    before = greedy.copy()
    runner.act_greedily((np.zeros((2, 3), np.float32),))
    assert np.array_equal(greedy, before)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_absurd_observations_are_treated_as_in_torch(env_id: str, value: float) -> None:
    spec = spec_of(env_id)
    observation = np.zeros((3, *spec.observation.spaces[0].observation_array[1]), np.float32)
    observation[1, 0] = value
    noise = np.full((3, 1), 0.5, np.float32)
    for runner in runners(decided_weights(spec)):
        (action,), log_prob = runner.act((observation,), noise)
        assert np.isnan(log_prob).tolist() == [False, math.isnan(value), False]
        assert action.dtype.kind == "i" or np.isnan(action[:, 0]).tolist() == [False, math.isnan(value), False]


def test_a_masked_choice_is_never_illegal_for_any_noise() -> None:
    spec = EnvironmentSpec("Any-v0", Tree.of(BoxSpace("float32", (1,), (0.0,), (1.0,))), spec_of("CartPole-v1").action)
    runner = runner_of(decided_weights(spec))
    edges = np.array([[0.0], [np.nextafter(np.float32(1.0), np.float32(0.0))]], np.float32)
    for legal in ([True, False], [False, True]):
        (action,), log_prob = runner.act((np.ones((2, 1), np.float32),), edges, mask=np.array([legal, legal]))
        assert action.tolist() == [legal.index(True)] * 2
        assert log_prob.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "network",
    [Network(memory="gru"), Network(memory="lstm"), Network(encoders={"observation": "embedding"})],
    ids=["gru", "lstm", "embedding"],
)
def test_torch_acts_with_policies_that_numpy_can_not_compute(network: Network) -> None:
    spec = spec_of(TAXI)
    weights = weights_of(fresh_policy(spec, network=network), 0)
    assert isinstance(runner_of(weights), PolicyRunner)


def test_torch_acts_on_images_and_boards() -> None:
    images = BoxSpace("uint8", (64, 64, 3), (0.0,), (255.0,))
    boards = BoxSpace("int8", (9, 9), (-1.0,), (1.0,))
    for space in (images, boards):
        spec = EnvironmentSpec("Any-v0", Tree.of(space), spec_of("CartPole-v1").action)
        assert obstacle(published.Description(spec, Network()))


def test_torch_acts_with_large_networks() -> None:
    spec = spec_of("CartPole-v1")
    assert not obstacle(published.Description(spec, Network(hidden_sizes=(512, 512))))
    assert obstacle(published.Description(spec, Network(hidden_sizes=(1024, 1024))))
    assert obstacle(published.Description(spec_of("Still-v0", observation_space=WIDE, action_space=ACTIONS), Network()))


def test_torch_acts_if_it_is_asked_for() -> None:
    weights = decided_weights(spec_of("CartPole-v1"))
    assert isinstance(runner_of(weights), NumpyRunner)
    assert isinstance(runner_of(weights, inference="torch"), PolicyRunner)


def test_a_runner_acts_with_refreshed_weights() -> None:
    spec, observation = spec_of("Pendulum-v1"), (np.ones((1, 3), np.float32),)
    runner, newer = runner_of(decided_weights(spec, seed=0)), decided_weights(spec, seed=1, version=5)
    (before,) = runner.act_greedily(observation)
    runner.refresh(newer)
    assert runner.version == 5
    (refreshed,), (loaded,) = runner.act_greedily(observation), runner_of(newer).act_greedily(observation)
    assert np.array_equal(refreshed, loaded) and not np.array_equal(refreshed, before)


@pytest.mark.parametrize("length", [8, 200, 2_000])
def test_damaged_weights_are_refused_in_one_line(length: int) -> None:
    data = decided_weights(spec_of("CartPole-v1"), version=1).data
    runner = runner_of(decided_weights(spec_of("CartPole-v1")))
    with pytest.raises(ConfigurationError, match="damaged or cut short"):
        runner.refresh(Weights.of(1, data[: len(data) - length]))


def test_weights_of_another_architecture_are_refused() -> None:
    runner = runner_of(decided_weights(spec_of("CartPole-v1")))
    other = weights_of(fresh_policy(spec_of("CartPole-v1"), network=Network(hidden_sizes=(8,))), 1)
    with pytest.raises(ConfigurationError, match=r"actor\.0\.weight has the shape \(8, 4\), where \(16, 4\)"):
        runner.refresh(other)


COLLECTS_A_WINDOW = """
import sys
from pathlib import Path
import penstock.apps.actor, penstock.apps.evaluator, penstock.cli.options
from penstock.acting.collector import Collector
from penstock.acting.environments.making import Making
from penstock.acting.environments.vectors import make_environments
from penstock.acting.evaluation import evaluate
from penstock.acting.policies.runners import runner_of
from penstock.acting.values.spaces import segment_schema
from penstock.types.evaluation import EvaluationTask
from penstock.types.run import Assignment, Weights
weights = Weights.of(2, Path(sys.argv[1]).read_bytes())
environments = make_environments(Making("CartPole-v1", vectorization="native"), 3)
assignment = Assignment(0, 1, (0, 1, 2), b"token", seed=7)
collector = Collector(environments, assignment, schema=segment_schema(environments.spec, 8), discount=0.9)
window = collector.collect(runner_of(weights))
result = evaluate(EvaluationTask(1, weights, 3, False, 5), environments, lambda: False)
assert window.head.version == 2 and len(result.returns) == 3
print([name for name in ("torch", "numba") if name in sys.modules])
"""


def test_an_actor_and_an_evaluator_of_a_small_policy_load_neither_torch_nor_numba(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(decided_weights(spec_of("CartPole-v1"), version=2).data)
    ended = subprocess.run(
        [sys.executable, "-c", COLLECTS_A_WINDOW, str(path)],
        env=os.environ | WITH_HELPERS,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert ended.stdout.strip() == "[]"


@given(cases(), st.integers(1, 5), st.sampled_from([1, 2**16]))
def test_a_window_has_the_actions_of_its_steps_one_by_one(case: Case, steps: int, kept: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # With one number, the outputs of each step are freed before the next.
        patch.setattr(actions, "_KEPT", kept)
        generator = np.random.default_rng(steps)
        noise = generator.random((case.rows, steps, case.noise.shape[1]), np.float32)
        window = runner_of(case.weights, temperature=case.temperature).begin(noise)
        alone = runner_of(case.weights, temperature=case.temperature)
        log_probs = np.zeros((case.rows, steps), np.float32)
        for step in range(steps):
            order = generator.permutation(case.rows)
            observation = tuple(leaf[order] for leaf in case.observation)
            mask = None if case.mask is None else case.mask[order]
            expected, log_probs[:, step] = alone.act(observation, noise[:, step], mask=mask)
            for found, leaf in zip(window.act(observation, mask=mask), expected, strict=True):
                assert np.array_equal(found, leaf) and found.dtype == leaf.dtype
        assert np.array_equal(window.log_probs(), log_probs)


@pytest.mark.parametrize("later", ["begin", "act", "act greedily", "act greedily on fewer rows", "refresh"])
def test_a_window_is_refused_after_a_later_call_of_its_runner(later: str) -> None:
    spec = spec_of("CartPole-v1")
    runner = runner_of(decided_weights(spec))
    observation, noise = (np.zeros((2, 4), np.float32),), np.full((2, 3, runner.noise[0].size), 0.5, np.float32)
    window = runner.begin(noise)
    window.act(observation)
    match later:
        case "begin":
            runner.begin(noise)
        case "act":
            runner.act(observation, noise[:, 0])
        case "act greedily":
            runner.act_greedily(observation)
        case "act greedily on fewer rows":
            runner.act_greedily((observation[0][:1],))
        case "refresh":
            runner.refresh(decided_weights(spec, version=runner.version + 1))
    for use in (window.log_probs, lambda: window.act(observation)):
        with pytest.raises(AssertionError, match="the window has ended with a later call of its runner"):
            use()


@pytest.mark.parametrize("env_id", ["CartPole-v1", TAXI, "Pendulum-v1"])
def test_a_policy_neither_warns_nor_changes_how_numpy_warns(env_id: str) -> None:
    spec = spec_of(env_id)
    with np.errstate(all="raise"):
        before = np.geterr()
        runner = runner_of(decided_weights(spec))
        # Noise of 0 has no logarithm.
        window = runner.begin(np.zeros((2, 1, sum(part.size for part in runner.noise)), np.float32))
        dtype, shape = spec.observation.spaces[0].observation_array
        (action,) = window.act((np.ones((2, *shape), dtype),))
        assert np.isfinite(action).all() and np.isfinite(window.log_probs()).all()
        assert np.geterr() == before
