"""Variants with spaces of different sizes share a policy: padding, masks, and numbers of the variant."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from penstock.acting.environments.making import Making
from penstock.acting.environments.variants import EnvironmentVariants
from penstock.acting.environments.wrappers.bodies import Sizes, common_sizes, wrapping
from penstock.errors import ConfigurationError, EnvironmentFailed
from penstock.types.spaces import BoxSpace, DiscreteSpace
from tests.support.environments.made import make_environments

HERE = "tests.unit.acting.environments.wrappers.test_bodies:Body"


class Body(gymnasium.Env[Any, Any]):
    """Observations are 1, ..., `size`, scaled by the sum of the last action. It accepts actions of its own space only.

    `masks` is the place of a mask in which the last of its own alternatives is illegal, if actions are `discrete`.
    """

    def __init__(self, size: int = 2, discrete: int = 0, masks: str = "", kind: str = "float32") -> None:
        self._discrete, self._masks = discrete, masks
        self._numbers = np.arange(1, size + 1).astype(kind)
        self.observation_space = spaces.Box(0, 100, (size,), np.dtype(kind).type)
        self.action_space = spaces.Discrete(discrete, start=3) if discrete else spaces.Box(-2.0, 2.0, (size,))
        if masks == "observation":
            mask = spaces.MultiBinary(discrete)
            self.observation_space = spaces.Dict({"numbers": self.observation_space, "action_mask": mask})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._shown(1.0)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action} is not in {self.action_space}"
        observation, info = self._shown(float(np.sum(action)))
        return observation, float(np.sum(action)), False, False, info

    def _shown(self, factor: float) -> tuple[Any, dict[str, Any]]:
        numbers = (self._numbers * factor).astype(self._numbers.dtype)
        legal = np.arange(self._discrete) < self._discrete - 1
        if self._masks == "observation":
            return {"numbers": numbers, "action_mask": legal.astype(np.int8)}, {}
        return numbers, {"action_mask": legal} if self._masks == "info" else {}


class WithMethod(Body):
    def action_masks(self) -> Any:
        return [1] * (self._discrete - 1) + [0]


def bodies(*variants: dict[str, Any], sizes: Sizes | None, shown: Any = ()) -> EnvironmentVariants:
    wrappers = [wrapping(sizes, shown[number] if shown else ()) for number in range(len(variants))]
    makings = [Making(HERE, each, wrappers=own) for each, own in zip(variants, wrappers, strict=True)]
    return EnvironmentVariants(makings)


@pytest.mark.parametrize("vectorization", ["sync", "process"])
def test_rows_of_all_bodies_have_the_size_of_the_largest(vectorization: str) -> None:
    made = [
        make_environments(
            HERE, 2, kwargs={"size": size}, wrappers=wrapping(Sizes(4, 4), ()), vectorization=vectorization
        )
        for size in (2, 4)
    ]
    assert made[0].spec == made[1].spec
    assert made[0].spec.observation.spaces == (BoxSpace("float32", (4,), (-np.inf,) * 4, (np.inf,) * 4),)
    assert made[0].spec.action.spaces == (BoxSpace("float32", (4,), (-2.0,) * 4, (2.0,) * 4),)
    action = np.array([[1.0, 0.5, 2.0, -2.0], [0.0, 1.0, 1.0, 1.0]], np.float32)
    for each, rewards, last in zip(made, ([1.5, 1.0], [1.5, 3.0]), ([0.0, 0.0], [6.0, 12.0]), strict=True):
        each.reset([0, 1])
        assert each.observation[0][:, :2].tolist() == [[1.0, 2.0]] * 2
        assert each.step((action,)).reward.tolist() == rewards
        assert each.observation[0][:, 3].tolist() == last
        each.close()


@pytest.mark.parametrize("masks", ["", "info", "observation"])
def test_further_alternatives_of_a_discrete_action_are_illegal(masks: str) -> None:
    arguments = [{"discrete": count, "masks": masks} for count in (2, 5)]
    mixed = bodies(*arguments, sizes=Sizes(0, 5)).make_mixed(4)
    assert mixed.spec.action.spaces == (DiscreteSpace(5, 3),) and mixed.spec.mask_bits == 5
    assert [leaf.name for leaf in mixed.spec.observation.leaves] == ["numbers" if masks == "observation" else ""]
    mixed.reset([0, 1, 2, 3])
    legal = [[True, not masks, False, False, False], [True] * 4 + [not masks]]
    for _ in range(2):
        assert mixed.action_mask is not None and mixed.action_mask.tolist() == legal * 2
        assert mixed.step((np.array([3, 6, 3, 6]),)).reward.tolist() == [3.0, 6.0] * 2
    with pytest.raises(
        EnvironmentFailed, match=r"it has 2 actions, and 5 is none; set environment\.action_masks to true"
    ):
        mixed.step((np.array([5, 3, 3, 3]),))
    mixed.close()


def test_masks_by_a_method_are_padded() -> None:
    name = HERE.replace("Body", "WithMethod")
    made = make_environments(name, 1, kwargs={"discrete": 3}, wrappers=wrapping(Sizes(0, 4), ()))
    made.reset([0])
    assert made.action_mask is not None and made.action_mask.tolist() == [[True, True, False, False]]
    made.close()


def test_the_numbers_of_a_variant_follow_those_of_a_row() -> None:
    mixed = bodies({"size": 2}, {"size": 3}, sizes=Sizes(3, 3), shown=[(2.0, -1.0), (3.0, 1.0)]).make_mixed(2)
    mixed.reset([0, 1])
    assert mixed.observation[0].tolist() == [[1.0, 2.0, 0.0, 2.0, -1.0], [1.0, 2.0, 3.0, 3.0, 1.0]]
    mixed.close()


def test_the_numbers_of_a_variant_are_a_part_of_other_observations() -> None:
    for arguments, part in (({"kind": "int32"}, "observation"), ({"discrete": 2, "masks": "observation"}, "numbers")):
        made = make_environments(HERE, 1, kwargs=arguments, wrappers=wrapping(None, (0.5,)))
        made.reset([0])
        assert [leaf.name for leaf in made.spec.observation.leaves] == [part, "variant"]
        assert made.observation[1].tolist() == [[0.5]] and made.observation[1].dtype == np.float32
        made.close()
    twice = [*wrapping(None, (0.5,)), {"name": "ShowNumbers", "numbers": [1.0]}]
    with pytest.raises(ConfigurationError, match=r"already; set environment\.show_variant to false"):
        make_environments(HERE, 1, kwargs={"kind": "int32"}, wrappers=twice)


def specs(*variants: dict[str, Any]) -> list[tuple[str, Any]]:
    made = [make_environments(HERE, 1, kwargs=variant) for variant in variants]
    for each in made:
        each.close()
    return [(f"variant {number}", each.spec) for number, each in enumerate(made)]


def test_the_sizes_are_those_of_the_largest_variants() -> None:
    assert common_sizes(specs({"size": 2}, {"size": 7}, {"size": 5})) == Sizes(7, 7)
    assert common_sizes(specs({"size": 3, "discrete": 4}, {"size": 3, "discrete": 2})) == Sizes(0, 4)
    assert common_sizes(specs({"size": 3}, {"size": 3})) == Sizes(0, 0)
    assert wrapping(Sizes(0, 0), ()) == wrapping(None, ()) == []


@pytest.mark.parametrize(
    "variants",
    [
        [{"size": 2}, {"size": 2, "discrete": 2}],
        [{"size": 2, "discrete": 2, "masks": "observation"}, {"size": 3, "discrete": 2}],
    ],
)
def test_spaces_of_other_kinds_are_not_padded(variants: list[dict[str, Any]]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        common_sizes(specs(*variants))
    message = str(caught.value)
    assert "pads rows of numbers and Discrete actions" in message and "variant 0" in message and "variant 1" in message


@pytest.mark.parametrize(
    ("kwargs", "sizes", "message"),
    [
        ({"size": 5}, Sizes(4, 0), "it has 5 numbers of an observation, and environment.pad_spaces has room for 4"),
        ({"size": 5}, Sizes(0, 4), "it has 5 numbers of an action, and environment.pad_spaces has room for 4"),
        ({"discrete": 5}, Sizes(0, 4), "it has 5 alternatives of an action"),
        ({"discrete": 2, "masks": "observation"}, Sizes(9, 0), "can only be padded if they are rows of numbers"),
    ],
)
def test_what_can_not_be_padded_is_refused_in_one_line(kwargs: dict[str, Any], sizes: Sizes, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        make_environments(HERE, 1, kwargs=kwargs, wrappers=wrapping(sizes, ()))
    assert "\n" not in str(caught.value)
