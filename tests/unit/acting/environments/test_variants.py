from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from penstock.acting.evaluation import evaluate
from penstock.errors import ConfigurationError
from penstock.types.evaluation import EvaluationTask
from tests.support.environments.made import make_environments, variants_of
from tests.support.environments.tiny import spec_of
from tests.support.training.policies import fresh_weights

LENGTHS = [{"length": 2}, {"length": 3}, {"length": 5}]


def space(**spaces: Any) -> dict[str, Any]:
    return {"observation_space": Box(-1.0, 1.0, (2,)), "action_space": Discrete(2), **spaces}


@pytest.mark.parametrize("count", [3, 7, 9])
def test_rows_alternate_between_the_variants(count: int) -> None:
    environments = variants_of("Counting-v0", LENGTHS).make_mixed(count)
    assert environments.count == count
    environments.reset(list(range(count)))
    ended_at = np.zeros(count, np.int64)
    for step in range(1, 6):
        outcome = environments.step((np.zeros(count, np.int64),))
        ended = outcome.terminated | outcome.truncated
        ended_at[ended & (ended_at == 0)] = step
    assert ended_at.tolist() == [(2, 3, 5)[row % 3] for row in range(count)]


def test_mixed_rows_equal_those_of_each_variant_stepped_separately() -> None:
    gravities = [{"g": 2.0}, {"g": 15.0}]
    mixed = variants_of("Pendulum-v1", gravities).make_mixed(5)
    alone = [
        make_environments("Pendulum-v1", count, kwargs=kwargs) for count, kwargs in zip((3, 2), gravities, strict=True)
    ]
    mixed.reset([10, 11, 12, 13, 14])
    alone[0].reset([10, 12, 14])
    alone[1].reset([11, 13])
    actions = np.random.default_rng(0).uniform(-2.0, 2.0, (205, 5, 1)).astype(np.float32)
    for action in actions:
        outcome, parts = mixed.step((action,)), [alone[0].step((action[::2],)), alone[1].step((action[1::2],))]
        for name in ("reward", "terminated", "truncated", "valid"):
            for variant, part in enumerate(parts):
                assert np.array_equal(getattr(outcome, name)[variant::2], getattr(part, name)), name
        for name in ("observation", "acting_observation"):
            for variant, environments in enumerate(alone):
                (rows,), (expected,) = getattr(mixed, name), getattr(environments, name)
                assert np.array_equal(rows[variant::2], expected), name
    mixed.close()


def test_native_vectors_under_same_step_autoreset_are_mixed() -> None:
    variants = variants_of("ResetsAtOnce-v0", [{"length": 2}, {"length": 3}], vectorization="native")
    environments = variants.make_mixed(4)
    environments.reset([0] * 4)
    for _ in range(4):
        environments.step((np.zeros(4, np.int64),))
    assert environments.observation[0].tolist() == [[1, 2], [1, 1]] * 2
    # The shorter episodes were truncated, and the policy acts on the first observation of the next ones.
    assert environments.acting_observation[0].tolist() == [[2, 0], [1, 1]] * 2


def test_a_single_variant_is_not_wrapped() -> None:
    mixed = variants_of("Counting-v0", [{}]).make_mixed(2)
    assert type(mixed) is type(make_environments("Counting-v0", 2, kwargs={}))


def test_the_episodes_of_an_evaluation_alternate_between_the_variants() -> None:
    task = EvaluationTask(1, fresh_weights(spec_of("Counting-v0")), episodes=7, deterministic=True, seed=3, variants=3)
    result = evaluate(task, variants_of("Counting-v0", LENGTHS).make_mixed(7), lambda: False)
    assert result is not None
    assert list(result.returns) == [3.0, 6.0, 15.0, 3.0, 6.0, 15.0, 3.0]
    parts = [(part.episodes, part.return_mean, part.return_std) for part in result.by_variant(range(3))]
    assert parts == [(3, 3.0, 0.0), (2, 6.0, 0.0), (2, 15.0, 0.0)]
    assert result.return_mean == pytest.approx(51 / 7)
    assert result.by_variant(()) == ()


def test_the_only_variant_has_the_spec_of_the_environment() -> None:
    made = variants_of("Counting-v0", [{"length": 4}]).make(0, 3)
    assert (made.count, made.spec) == (3, spec_of("Counting-v0"))


@pytest.mark.parametrize(
    ("other", "shown"),
    [
        (
            {"observation_space": Box(-1.0, 1.0, (3,))},
            r"the observations Box\(-1, 1, \(3,\), float32\) and Box\(-1, 1, \(",
        ),
        ({"observation_space": Box(-2.0, 1.0, (2,))}, r"the observations Box\(-2, 1, "),
        ({"action_space": Discrete(4)}, r"the actions Discrete\(4, start=0\) and Discrete\(2, start=0\)"),
    ],
)
def test_variants_with_different_spaces_are_refused_with_both_spaces_and_variants(
    other: dict[str, Any], shown: str
) -> None:
    variants = variants_of("Still-v0", [space(), space(**other)])
    names = r"as variant 1 \(.*\) and as variant 0 \("
    with pytest.raises(ConfigurationError, match=f"{shown}.*{names}"):
        variants.make_mixed(4)
    first = variants.make(0, 1)
    with pytest.raises(ConfigurationError, match=f"{shown}.*{names}"):
        variants.make(1, 1, spec=first.spec)


def test_a_failure_to_make_a_variant_is_reported_with_its_number_and_arguments() -> None:
    with pytest.raises(ConfigurationError, match=r"^environment variant 1 \(weight=3\): can't make .*weight"):
        variants_of("Counting-v0", [{}, {"weight": 3}]).make_mixed(4)


def test_a_variant_that_the_configuration_lacks_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"assigns environment variant 2, .*this service has 2;.*the run's"):
        variants_of("Counting-v0", [{}, {}]).make(2, 4)
