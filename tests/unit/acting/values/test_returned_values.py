"""Rewards, ends of episodes and observations in the forms that environments return are read, or refused."""

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv

from penstock.acting.environments.environment_check import Checked
from penstock.acting.evaluation import evaluate
from penstock.acting.values.returned_values import UNREADABLE, array_of, column_of, number_of, truth_of
from penstock.errors import ConfigurationError, EnvironmentFailed
from penstock.types.evaluation import EvaluationTask
from tests.support.environments.made import checked, make_environments
from tests.support.environments.tiny import spec_of
from tests.support.training.policies import fresh_weights

LENGTH = 4
"""Steps of an episode of Returning-v0."""


def with_gradient(value: float, *shape: int) -> torch.Tensor:
    return torch.full(shape, value, requires_grad=True) * 1.0


FORMS: dict[str, Callable[[float], Any]] = {
    "float": float,
    "int": int,
    "bool": bool,
    "float16": np.float16,
    "array of ()": np.array,
    "array of (1,)": lambda value: np.array([value], np.float32),
    "array of (1, 1)": lambda value: np.array([[value]]),
    "array of objects": lambda value: np.array([Decimal(value)], object),
    "array of integers": lambda value: np.array([int(value)]),
    "masked array": lambda value: np.ma.masked_array([value], mask=[False]),
    "list": lambda value: [value],
    "nested list": lambda value: [(value,)],
    "list of a tensor": lambda value: [torch.tensor(value)],
    "Decimal": Decimal,
    "Fraction": lambda value: Fraction(int(value)),
    "tensor": torch.tensor,
    "tensor of (1,)": lambda value: torch.tensor([value]),
    "tensor of bfloat16": lambda value: torch.tensor([value], dtype=torch.bfloat16),
    "tensor of integers": lambda value: torch.tensor(int(value)),
    "tensor with gradient": with_gradient,
    "tensor of (1, 1) with gradient": lambda value: with_gradient(value, 1, 1),
}
"""Forms of one number."""

REFUSED: dict[str, Callable[[float], Any]] = {
    "None": lambda value: None,
    "text": str,
    "array of text": lambda value: np.array([str(value)]),
    "complex": complex,
    "array of complex": lambda value: np.array([value + 0j]),
    "array of (2,)": lambda value: np.array([value, value]),
    "NaN of (2,)": lambda value: np.full(2, np.nan),
    "tensor of (2,)": lambda value: torch.tensor([value, value]),
    "list of 2": lambda value: [value, value],
    "empty list": lambda value: [],
    "empty array": lambda value: np.zeros(0),
    "duration": lambda value: np.timedelta64(1, "s"),
    "dict": lambda value: {"reward": value},
}
"""Values that are not one number."""


class Returning(gymnasium.Env[Any, Any]):
    """Returns rewards, ends and observations in one form. The reward is 1, and an episode has `LENGTH` steps."""

    observation_space = gymnasium.spaces.Box(-1.0, 9.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, reward: str = "float", end: str = "bool", observation: str = "array") -> None:
        forms = FORMS | REFUSED
        self._reward, self._end, self._observation, self._steps = forms[reward], forms[end], observation, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self._observed(), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        ended = float(self._steps >= LENGTH)
        return self._observed(), self._reward(1.0), self._end(ended), self._end(0.0), {}

    def _observed(self) -> Any:
        values = np.full(2, self._steps, np.float32)
        match self._observation:
            case "list":
                return values.tolist()
            case "tensor":
                return torch.from_numpy(values)
            case "tensor with gradient":
                return torch.from_numpy(values).requires_grad_()
            case "masked":
                return np.ma.masked_array(values, mask=[False, True])
        return values


class ReturningVector(SyncVectorEnv):
    """Vector environment that returns its rewards and ends in one form."""

    def __init__(self, num_envs: int, form: str) -> None:
        super().__init__([Returning] * num_envs)
        self._form = form

    def step(self, actions: Any) -> Any:
        observation, *returned, infos = super().step(actions)
        return observation, *(self._formed(each) for each in returned), infos

    def _formed(self, values: Any) -> Any:
        match self._form:
            case "(N, 1)":
                return values[:, None]
            case "(1, N)":
                return values[None]
            case "tensor":
                return torch.from_numpy(values.copy())
            case "tensor of (N, 1) with gradient":
                return torch.from_numpy(values.astype(np.float32))[:, None].requires_grad_()
            case "list":
                return values.tolist()
            case "complex":
                return values + 0j
        return values


gymnasium.register(
    "Returning-v0",
    f"{__name__}:Returning",
    vector_entry_point=f"{__name__}:ReturningVector",
    disable_env_checker=True,
)


def checked_of(vectorization: str = "sync", **kwargs: str) -> Checked:
    """Returns the result of the check before a run."""
    return checked("Returning-v0", [kwargs], vectorization=vectorization)


def rewards_of(count: int, vectorization: str = "sync", **kwargs: str) -> list[list[float]]:
    """Returns the rewards and the ends of each row in two episodes."""
    environments = make_environments("Returning-v0", count, kwargs=kwargs, vectorization=vectorization)
    environments.reset(range(count))
    rows = []
    for _ in range(2 * LENGTH + 1):
        outcome = environments.step((np.zeros(count, np.int64),))
        assert (outcome.reward.dtype.name, outcome.reward.shape) == ("float32", (count,))
        assert (outcome.terminated.dtype.name, outcome.terminated.shape) == ("bool", (count,))
        rows.append([*outcome.reward.tolist(), *outcome.terminated.tolist(), *outcome.truncated.tolist()])
    environments.close()
    return rows


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_one_number_is_that_number(form: str) -> None:
    for value in (0.0, 1.0):
        assert number_of(FORMS[form](value)) == value
        assert truth_of(FORMS[form](value)) is bool(value)


@pytest.mark.parametrize("form", REFUSED)
def test_a_value_that_is_not_one_number_is_refused(form: str) -> None:
    for read in (number_of, truth_of):
        with pytest.raises(UNREADABLE):
            read(REFUSED[form](1.0))


@pytest.mark.parametrize("value", [0.5, 2, -1, np.nan, np.array([3])])
def test_a_number_other_than_0_and_1_is_not_a_truth_value(value: Any) -> None:
    with pytest.raises(ValueError, match="True or False was expected"):
        truth_of(value)


def test_a_masked_number_is_missing() -> None:
    assert np.isnan(number_of(np.ma.masked)) and np.isnan(number_of(np.ma.masked_array([1.0], mask=[True])))
    with pytest.raises(ValueError, match="masked"):
        array_of(np.ma.masked_array([1.0, 2.0], mask=[True, False]))


@pytest.mark.parametrize(
    "values", [np.zeros((1, 2)), np.zeros(3), [[1.0], [1.0, 2.0]], np.array(["a", "b"]), None, 1.0]
)
def test_a_column_has_one_number_for_each_environment(values: Any) -> None:
    with pytest.raises(UNREADABLE):
        column_of(values, 2)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_environments_may_return_any_form_of_rewards_and_ends(form: str, count: int) -> None:
    assert rewards_of(count, reward=form, end=form) == rewards_of(count)


@pytest.mark.parametrize("form", ["(N, 1)", "tensor", "tensor of (N, 1) with gradient", "list"])
@pytest.mark.parametrize("count", [1, 3])
def test_vector_environments_may_return_any_form_of_rewards_and_ends(form: str, count: int) -> None:
    assert rewards_of(count, "native", form=form) == rewards_of(count)


@pytest.mark.parametrize(("form", "fault"), [("(1, N)", r"shape \(1, 2\), not \(2,\)"), ("complex", "type complex128")])
def test_a_vector_environment_without_one_number_for_each_environment_is_refused(form: str, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^[^\n]*rewards as [^\n]*{fault}[^\n]*$"):
        checked_of("native", form=form)
    with pytest.raises(EnvironmentFailed, match=rf"^[^\n]*rewards as [^\n]*{fault}[^\n]*$"):
        rewards_of(2, "native", form=form)


@pytest.mark.parametrize("form", ["array of (1,)", "tensor of (1, 1) with gradient", "list"])
def test_an_evaluation_sums_rewards_of_any_form(form: str) -> None:
    task = EvaluationTask(id=1, weights=fresh_weights(spec_of("Returning-v0")), episodes=2, deterministic=True, seed=1)
    environments = make_environments("Returning-v0", 2, kwargs={"reward": form, "end": form})
    result = evaluate(task, environments, lambda: False)
    assert result is not None and result.returns == (LENGTH, LENGTH)


@pytest.mark.parametrize("form", FORMS)
def test_the_check_warns_once_about_a_reward_with_a_shape(form: str) -> None:
    warnings = checked_of(reward=form, end=form if form == "array of (1,)" else "bool").warnings
    if not any(word in form for word in ("(1", "list", "masked", "objects", "array of integers", "bfloat16")):
        assert warnings == []
        return
    shape = "(1, 1)" if "(1, 1)" in form or form == "nested list" else "(1,)"
    ending = "was expected; its one element is used"
    expected = [f"Returning-v0: step returned a reward of shape {shape}, where a number {ending}"]
    if form == "array of (1,)":
        expected += [
            f"Returning-v0: step returned {end} of shape {shape}, where True or False {ending}"
            for end in ("terminated", "truncated")
        ]
    assert warnings == expected


@pytest.mark.parametrize("form", REFUSED)
def test_the_check_refuses_what_no_actor_can_use(form: str) -> None:
    for kwargs, fault in (
        ({"reward": form}, r"(a|the|no) reward [^\n]* in step 1 [^\n]*; a reward must be one finite number[^\n]*"),
        ({"end": form}, r"terminated as [^\n]* in step 1 [^\n]*; it must be True or False"),
    ):
        with pytest.raises(ConfigurationError, match=f"^{fault}$") as refused:
            checked_of(**kwargs)
        with pytest.raises(EnvironmentFailed, match=f"^environment 0: {fault}$") as failed:
            rewards_of(2, **kwargs)
        assert failed.value.what == str(refused.value)


def test_the_check_warns_about_a_vector_environment_whose_rewards_have_another_shape() -> None:
    assert checked_of("native", form="(N, 1)").warnings == [
        f"Returning-v0: step returned {what} of shape (2, 1), where (2,) was expected"
        for what in ("rewards", "terminated", "truncated")
    ]
    assert checked_of("native", form="tensor").warnings == []


@pytest.mark.parametrize("form", ["list", "tensor", "tensor with gradient"])
def test_observations_may_be_lists_and_tensors(form: str) -> None:
    environments = make_environments("Returning-v0", 2, kwargs={"observation": form})
    environments.reset([0, 1])
    environments.step((np.zeros(2, np.int64),))
    assert environments.observation[0].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert checked_of(observation=form).warnings == []


def test_an_observation_with_masked_elements_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^an observation that is not an array \(it has masked element"):
        checked_of(observation="masked")
    with pytest.raises(EnvironmentFailed, match=r"^environment 0: an observation that is not an array \(it has masked"):
        make_environments("Returning-v0", 2, kwargs={"observation": "masked"}, use_masks=False).reset([0, 1])
