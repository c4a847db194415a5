"""The registered ids that users' ids mean, and what is known about others without an import."""

import importlib.util
import sys

import gymnasium
import pytest

from penstock.acting.environments.ids import checked_id, meant_id
from penstock.acting.environments.registry import find
from penstock.cli.named import with_known_environment
from penstock.config import Config
from penstock.errors import ConfigurationError
from penstock.presets import configure, preset_environments

PRESETS = preset_environments()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("CartPole-v1", "CartPole-v1"),
        ("CartPole", "CartPole"),
        ("Cartpole-v1", "CartPole-v1"),
        ("CARTPOLE-V1", "CartPole-v1"),
        ("cartpole-v0", "CartPole-v0"),
        ("cartpole", "CartPole-v1"),
        ("mountaincarcontinuous-v0", "MountainCarContinuous-v0"),
        ("gymnasium:pendulum-v1", "gymnasium:Pendulum-v1"),
        ("phys2d/cartpole-v1", "phys2d/CartPole-v1"),
        ("my_module:cartpole-v1", "my_module:cartpole-v1"),
    ],
)
def test_a_registered_id_is_accepted_in_any_case(given: str, meant: str) -> None:
    assert checked_id(given, PRESETS) == meant


@pytest.mark.skipif(importlib.util.find_spec("ale_py") is None, reason="ale_py is not installed")
def test_an_id_of_another_package_is_accepted_in_any_case_once_it_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A test before this one may have imported the package.
    for spec in [each for each in gymnasium.registry.values() if str(each.entry_point).startswith("ale_py")]:
        monkeypatch.delitem(gymnasium.registry, spec.id)
    assert checked_id("ale/pong-v5", PRESETS) == "ALE/Pong-v5"
    # Penstock has no preset for it, so only the package knows its name.
    assert checked_id("ale/freeway-v5", PRESETS) == "ale/freeway-v5"
    monkeypatch.undo()
    assert find("ale/freeway-v5") == "ALE/Freeway-v5"


def test_an_id_that_differs_by_case_from_two_is_no_id() -> None:
    ids = ["Maze-v0", "maze-v0", "Maze-v1"]
    assert meant_id("MAZE-v0", ids) is None and meant_id("maze-v0", ids) == "maze-v0"
    assert meant_id("MAZE", ids) is None and meant_id("MAZE-v1", ids) == "Maze-v1"


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("LunarLander-v2", "'LunarLander-v2': it is not registered; did you mean LunarLander-v3?"),
        ("lunarlander-v2", "did you mean LunarLander-v3?"),
        ("cartpole-v9", "did you mean CartPole-v1?"),
        ("Carpole-v1", "did you mean CartPole-v1? Otherwise, your own environment needs --env-id package:Name-v0"),
        ("frozen_lake", "did you mean FrozenLake-v1?"),
        ("pong", "did you mean ALE/Pong-v5?"),
        ("Breakout-v5x", "--env-id file.py:Name"),
        ("3", "'3': it is not registered; your own environment needs"),
    ],
)
def test_another_id_is_refused_with_the_one_that_is_probably_meant(given: str, line: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        checked_id(given, PRESETS)
    assert line in str(caught.value)


@pytest.mark.parametrize(
    ("given", "module", "extra"),
    [
        ("LunarLander-v3", "Box2D", "box2d"),
        ("humanoid-v5", "mujoco", "mujoco"),
        ("minigrid-empty-5x5-v0", "minigrid", "minigrid"),
    ],
)
def test_a_package_that_the_environment_needs_is_named_before_it_is_imported(
    given: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigurationError, match=rf"needs {module}; install it with: pip install 'penstock\[{extra}\]'"
    ):
        checked_id(given, PRESETS)
    assert module not in sys.modules


def test_the_configuration_has_the_registered_id_and_the_preset_of_its_environment() -> None:
    config, note = with_known_environment(configure("cartpole", seed=3))
    assert config == configure("CartPole-v1", seed=3)
    assert note == "cartpole is registered as CartPole-v1, which is used"
    assert with_known_environment(config) == (config, "")


def test_modules_to_import_may_register_any_id() -> None:
    config = Config(environment={"id": "cartpole-v7", "imports": "my_module"})
    assert with_known_environment(config) == (config, "")


def test_an_id_of_this_process_is_not_replaced_by_one_in_another_case() -> None:
    gymnasium.register("cartpole-v1", "gymnasium.envs.classic_control:CartPoleEnv")
    try:
        assert checked_id("cartpole-v1", PRESETS) == "cartpole-v1"
    finally:
        del gymnasium.registry["cartpole-v1"]
