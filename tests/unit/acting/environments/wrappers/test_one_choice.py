"""An action of several choices becomes one choice if its mask has an element for each combination."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from penstock.acting.environments.single_environments import SingleEnvironments
from penstock.acting.environments.vectors import Environments
from penstock.acting.environments.wrappers.one_choice import OneChoice, OneChoiceVector, masked_as_one
from penstock.errors import ConfigurationError, PenstockError
from penstock.types.spaces import DiscreteSpace
from tests.support.environments.made import make_environments

COUNTS = [3, 4]


class Pairs(gymnasium.Env[Any, Any]):
    """Each step, one pair of choices is legal, and only with the other choice's value; its reward is 1.

    The choices begin at 1 and 5. The mask is in `place`: the observation, infos, or a method.
    """

    action_space = spaces.MultiDiscrete(COUNTS, start=[1, 5])

    def __init__(self, place: str = "observation") -> None:
        self._place, self._steps = place, 0
        parts: dict[str, spaces.Space[Any]] = {"number": spaces.Box(0.0, 1.0, (1,), np.float32)}
        if place == "observation":
            parts["action_mask"] = spaces.MultiBinary(COUNTS)
        self.observation_space = spaces.Dict(parts)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._shown()

    def step(self, action: NDArray[np.int64]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        assert self._mask[tuple(action - self.action_space.start)], f"the action {action} is illegal"
        self._steps += 1
        observation, info = self._shown()
        return observation, 1.0, False, self._steps == 5, info

    def action_masks(self) -> Any:
        return self._mask if self._place == "method" else None

    def _shown(self) -> tuple[Any, dict[str, Any]]:
        self._mask = np.zeros(COUNTS, np.int8)
        self._mask[self.np_random.integers(3), self.np_random.integers(4)] = 1
        observation: dict[str, Any] = {"number": np.zeros(1, np.float32)}
        if self._place == "observation":
            observation["action_mask"] = self._mask
        return observation, {"action_mask": self._mask} if self._place == "info" else {}


class Alone(Pairs):
    """`Pairs` without the method, which would be asked for masks."""

    action_masks = None  # type: ignore[assignment]


HERE = f"{__file__}:Alone"


def legal_steps(environments: Environments, steps: int) -> None:
    """Takes the legal actions, of which each environment refuses others."""
    environments.reset([1, 2])
    for _ in range(steps):
        assert environments.action_mask is not None
        environments.step((environments.action_mask.argmax(1),))


def test_a_combination_has_the_choices_of_its_number_and_their_starts() -> None:
    env = OneChoice(Pairs())
    assert env.action_space == spaces.Discrete(12)
    assert [env.action(number).tolist() for number in (0, 1, 4, 11)] == [[1, 5], [1, 6], [2, 5], [3, 8]]


def test_an_environment_whose_mask_is_of_combinations_has_one_choice() -> None:
    environments = make_environments(HERE, 2, kwargs={})
    assert isinstance(environments, SingleEnvironments)
    assert environments.spec.action.spaces == (DiscreteSpace(12),) and environments.spec.mask_bits == 12
    assert any("one choice among 12 combinations" in line for line in environments.notices)
    legal_steps(environments, 12)
    environments.close()


@pytest.mark.parametrize("place", ["info", "method"])
def test_masks_in_other_places_need_the_wrapper_and_the_refusal_names_it(place: str) -> None:
    file = f"{__file__}:{'Pairs' if place == 'method' else 'Alone'}"
    with pytest.raises(PenstockError, match=r"of 12 elements, .* has 7 alternatives .* add the wrapper OneChoice"):
        make_environments(file, 1, kwargs={"place": place}).reset([1])
    environments = make_environments(file, 2, kwargs={"place": place}, wrappers=[{"name": "OneChoice"}])
    assert environments.spec.mask_bits == 12
    legal_steps(environments, 12)
    environments.close()


def test_a_vectorised_form_has_one_choice_for_all_its_environments() -> None:
    envs = SyncVectorEnv([Alone, Alone], autoreset_mode=AutoresetMode.NEXT_STEP)
    one = OneChoiceVector(envs)
    assert one.single_action_space == spaces.Discrete(12) and one.action_space.shape == (2,)
    observation, _ = one.reset(seed=1)
    for _ in range(4):
        observation, reward, *_ = one.step(observation["action_mask"].reshape(2, -1).argmax(1))
        assert reward.tolist() == [1.0, 1.0]
    one.close()


@pytest.mark.parametrize(
    ("mask", "action", "found"),
    [
        (spaces.MultiBinary(12), spaces.MultiDiscrete(COUNTS), True),
        (spaces.Box(0, 1, COUNTS, np.int8), spaces.MultiDiscrete(COUNTS), True),
        (spaces.MultiBinary(7), spaces.MultiDiscrete(COUNTS), False),
        (spaces.MultiBinary(4), spaces.MultiDiscrete([2, 2]), False),
        (spaces.MultiBinary(12), spaces.Discrete(12), False),
    ],
)
def test_a_mask_of_combinations_is_told_by_its_size(mask: Any, action: Any, found: bool) -> None:
    observation = spaces.Dict({"action_mask": mask, "number": spaces.Discrete(2)})
    assert masked_as_one(observation, action) is found


def test_another_action_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs actions of the space MultiDiscrete, not Discrete"):
        OneChoice(gymnasium.make("CartPole-v1"))
