"""`environment.vectorization auto` chooses the form of an environment."""

from collections.abc import Iterator
from typing import Any

import gymnasium
import pytest

from penstock.acting.environments.registry import has_native_form
from penstock.acting.environments.single_environments import SingleEnvironments
from penstock.acting.environments.vectors import NextStepEnvironments
from penstock.config import EnvironmentConfig
from penstock.presets import preset
from tests.support.environments import tiny
from tests.support.environments.made import make_environments


@pytest.fixture
def replaced() -> Iterator[None]:
    """Registers another environment under the id of Gymnasium's."""
    own = gymnasium.registry["Pendulum-v1"]
    gymnasium.register("Pendulum-v1", f"{tiny.__name__}:Counting")
    yield
    gymnasium.registry["Pendulum-v1"] = own


def form_of(env_id: str, count: int = 8, **kwargs: Any) -> type:
    made = make_environments(env_id, count, kwargs=kwargs, vectorization="auto")
    made.close()
    return type(made)


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        ("CartPole-v1", {}),
        ("CartPole-v1", {"sutton_barto_reward": True}),
        ("pendulum-v1", {"g": 9.81}),
        ("Acrobot-v1", {"max_episode_steps": 100}),
    ],
)
def test_forms_that_take_the_same_steps_are_chosen(env_id: str, kwargs: dict[str, Any]) -> None:
    assert form_of(env_id, **kwargs) is NextStepEnvironments


@pytest.mark.parametrize(
    ("env_id", "count", "kwargs"),
    [
        ("MountainCar-v0", 8, {}),
        ("Pendulum-v1", 7, {}),
        ("Pendulum-v1", 8, {"max_episode_steps": -1}),
        ("Acrobot-v1", 8, {"disable_env_checker": True}),
        ("ResetsAtOnce-v0", 8, {"length": 2}),
    ],
)
def test_all_others_are_single(env_id: str, count: int, kwargs: dict[str, Any]) -> None:
    assert form_of(env_id, count, **kwargs) is SingleEnvironments


@pytest.mark.usefixtures("replaced")
def test_an_environment_that_replaces_gymnasiums_keeps_its_own_form() -> None:
    assert form_of("Pendulum-v1") is SingleEnvironments
    assert not has_native_form("Pendulum-v1")


def test_the_presets_use_the_forms() -> None:
    assert EnvironmentConfig().vectorization == "auto"
    for name in ("pendulum", "acrobot"):
        environment = preset(name).environment
        assert environment.vectorization == "auto"
        assert form_of(environment.id, **environment.kwargs) is NextStepEnvironments
        assert has_native_form(environment.id)
