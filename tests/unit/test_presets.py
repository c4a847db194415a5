import importlib
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import penstock
from penstock.acting.environments.packages import package_of
from penstock.config import Config, build, parse_toml
from penstock.errors import ConfigurationError
from penstock.presets import configure, configured, preset, preset_for, preset_names, preset_values

CHOSEN = {"cartpole_no_replay": "cartpole"}
"""Presets that must be named, and those which their environments have without a name."""

EXAMPLES = Path(__file__).parents[2] / "examples"


OF_AN_ENVIRONMENT = [name for name in preset_names() if "environment" in preset_values(name)]


@pytest.mark.parametrize("name", OF_AN_ENVIRONMENT)
def test_a_preset_loads_and_is_unchanged_by_toml(name: str) -> None:
    config = preset(name)
    assert build(parse_toml(config.to_toml())) == config
    assert preset_for(config.environment.id) == CHOSEN.get(name, name)
    chosen = configured({"environment": {"id": config.environment.id}}, preset=name)
    assert (chosen.config, chosen.preset) == (config, name)
    assert (config.evaluation.threshold is None) == (name == "atari")


@pytest.mark.parametrize(("environment_id", "name"), [("ALE/Assault-v5", "atari"), ("ALE/Breakout-v5", "breakout")])
def test_every_game_of_atari_has_the_preset_of_the_family_or_its_own(environment_id: str, name: str) -> None:
    found = configured({"environment": {"id": environment_id}})
    assert (found.preset, found.config.environment.id, found.notes) == (name, environment_id, ())
    assert configured({"environment": {"id": environment_id}}, preset="atari").preset == "atari"


@pytest.mark.parametrize(
    "own",
    [
        {"kwargs": {"obs_type": "ram"}},
        {"wrappers": ["FlattenObservation"]},
        {"vectorization": "sync"},
        {"variants": [{"mode": 1}]},
        {"python": "/usr/bin/python3"},
    ],
)
def test_a_game_with_settings_of_its_own_has_the_preset_of_the_family_only_by_name(own: dict[str, Any]) -> None:
    environment = {"id": "ALE/Assault-v5", **own}
    found = configured({"environment": environment})
    assert (found.preset, found.config) == (None, Config(environment=environment))
    (note,) = found.notes
    assert note.startswith(f"the preset atari is not used, because environment.{next(iter(own))} is given; ")
    assert configured({"environment": environment}, preset="atari").preset == "atari"


@pytest.mark.parametrize("own", [{"wrappers": ["FlattenObservation"]}, {"vectorization": "sync"}])
def test_single_environments_have_no_arguments_of_the_vectorised_form_of_a_preset(own: dict[str, Any]) -> None:
    found = configured({"environment": {"id": "ALE/Pong-v5", "kwargs": {"frameskip": 1}, **own}})
    environment = found.config.environment
    assert found.preset == "pong" and environment.frame_stack == 4
    assert (environment.kwargs, environment.training_kwargs) == ({"frameskip": 1}, {})
    assert environment.vectorization == own.get("vectorization", "auto")
    (note,) = found.notes
    assert f"environment.{next(iter(own))} needs single environments" in note


@pytest.mark.parametrize(("discount", "fits"), [(0.99, False), (0.0, False), (-0.9, True)])
def test_a_policy_against_itself_needs_a_negative_discount(discount: float, fits: bool) -> None:
    if fits:
        assert preset("connect_four", ppo={"discount": discount}).ppo.discount == discount
        return
    with pytest.raises(
        ConfigurationError, match=r"needs a negative ppo\.discount, because the value after a move is the"
    ):
        preset("connect_four", ppo={"discount": discount})


def test_the_presets_cover_the_tasks_with_their_thresholds() -> None:
    thresholds = {"cartpole": 475.0, "pendulum": -200.0, "acrobot": -100.0}
    assert thresholds.items() <= {name: preset(name).evaluation.threshold for name in preset_names()}.items()


def skip_if_newer(environment_id: str) -> None:
    """Skips a test if the installed Gymnasium lacks this version of one of its own environments."""
    if environment_id.startswith("Taxi-") and environment_id not in gymnasium.registry:
        pytest.skip(f"{environment_id} needs a newer Gymnasium")


@pytest.mark.parametrize(("name", "best", "share"), [("taxi", 7.93, 0.9), ("frozen_lake", 0.74, 0.9)])
def test_thresholds_of_toy_text_are_near_the_best_possible_return(name: str, best: float, share: float) -> None:
    config = preset(name)
    skip_if_newer(config.environment.id)
    env = gymnasium.make(config.environment.id)
    assert env.spec is not None and env.spec.max_episode_steps is not None
    task: Any = env.unwrapped
    states, actions = task.observation_space.n, task.action_space.n
    reward, follow = np.zeros((states, actions)), np.zeros((states, actions, states))
    for state, action in np.ndindex(states, actions):
        for probability, following, gain, terminated in task.P[state][action]:
            reward[state, action] += probability * gain
            follow[state, action, following] += probability * (not terminated)
    value = np.zeros(states)
    for _ in range(env.spec.max_episode_steps):
        value = (reward + follow @ value).max(1)
    assert task.initial_state_distrib @ value == pytest.approx(best, abs=0.005)
    assert config.evaluation.threshold is not None
    assert share * best < config.evaluation.threshold < best


def test_the_textbook_is_a_preset_for_every_environment_and_chosen_by_name_alone() -> None:
    assert set(preset_names()) - set(OF_AN_ENVIRONMENT) == {"textbook"}
    for environment_id in ("Pendulum-v1", "my_package:MyEnv-v0"):
        found = configured({"environment": {"id": environment_id}}, preset="textbook")
        assert (found.preset, found.config.environment.id) == ("textbook", environment_id)
        assert preset_for(environment_id) != "textbook"
    config = preset("textbook", train={"actors": 4}, actor={"environments": 4}, ppo={"epochs": 4})
    assert (config.awaited_actors, config.sampling.batch_segments, config.ppo.epochs) == (4, 16, 4)
    # All that an engine was asked for, of which there may be fewer or more than planned.
    for expected in (1, 7):
        started = preset("textbook", train={"actors": 4}, learner={"expected_actors": expected})
        assert started.awaited_actors == expected
    assert preset("textbook", learner={"expected_actors": "wanted"}).awaited_actors == 2
    assert config.sampling.fresh_segments == 16 and config.ppo.target_kl is None


def test_values_override_a_preset() -> None:
    config = preset("cartpole", run={"seed": 5}, ppo={"epochs": 3})
    assert (config.run.seed, config.ppo.epochs) == (5, 3)
    assert config.ppo.trace_decay == preset("cartpole").ppo.trace_decay != Config().ppo.trace_decay


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown preset 'nope'.*cartpole"):
        preset_values("nope")


def test_no_preset_belongs_to_an_unknown_environment() -> None:
    assert preset_for("Unknown-v0") is None


@pytest.mark.parametrize(
    ("environment_id", "name"),
    [
        ("Pendulum-v1", "pendulum"),
        ("gymnasium:Pendulum-v1", "pendulum"),
        ("Pendulum", "pendulum"),
        ("gymnasium:Pendulum", "pendulum"),
        ("ALE/Pong-v5", "pong"),
        ("ALE/Pong", "pong"),
        ("ALE/Assault", "atari"),
        ("ale_py:ALE/Assault-v5", "atari"),
        ("my_package:ALE/Assault-v5", None),
        ("ALE/Assault-ram-v5", None),
        ("AssaultNoFrameskip-v4", "atari"),
        ("assaultnoframeskip-v4", "atari"),
        ("ale_py:AssaultNoFrameskip-v0", "atari"),
        ("Assault-v4", "atari"),
        ("PongNoFrameskip-v4", "pong"),
        ("Pong", "pong"),
        ("my_package:PongNoFrameskip-v4", None),
        ("MyGameNoFrameskip-v4", None),
        ("Pong-ram-v4", None),
        ("Pendulum-v0", None),
        ("CartPol", None),
        ("my_package:MyEnv-v0", None),
    ],
)
def test_every_spelling_of_an_id_finds_the_preset(environment_id: str, name: str | None) -> None:
    assert preset_for(environment_id) == name
    chosen = configured({"environment": {"id": environment_id}})
    assert (chosen.preset, chosen.config.environment.id) == (name, environment_id)
    below = preset_values(name) if name else {}
    assert chosen.config == build({**below, "environment": {**below.get("environment", {}), "id": environment_id}})  # type: ignore[dict-item]


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_for_the_newest_version_of_their_environment(name: str) -> None:
    settings = preset(name).environment
    if (package := package_of(settings.id)) is not None:
        pytest.importorskip(package.module)
    for module in settings.imports:
        if (EXAMPLES / f"{module.replace('.', '/')}.py").exists():
            importlib.import_module(f"{EXAMPLES.name}.{module}")
        else:
            pytest.importorskip(module)
    skip_if_newer(settings.id)
    namespace, environment, version = gymnasium.envs.registration.parse_env_id(settings.id)
    assert gymnasium.envs.registration.find_highest_version(namespace, environment) == version


def test_python_and_the_command_line_choose_the_same_preset() -> None:
    config = penstock.configure(environment={"id": "Pendulum-v1"}, run={"seed": 3})
    assert config == preset("pendulum", run={"seed": 3})
    assert configure(environment={"id": "Pendulum-v1"}, ppo={"epochs": 77}).ppo.epochs == 77
    assert configure() == preset("cartpole")
    assert configure(environment={"id": "MyEnv-v0"}) == Config(environment={"id": "MyEnv-v0"})


def test_a_preset_for_another_environment_is_refused_with_a_remedy() -> None:
    with pytest.raises(ConfigurationError) as caught:
        preset("acrobot", environment={"id": "Pendulum-v1"})
    message = str(caught.value)
    assert message.startswith("the preset acrobot is for Acrobot-v1, and environment.id is Pendulum-v1; use the preset")
    assert "pendulum" in message and "`penstock presets acrobot > my.toml`" in message and "--config" in message
    with pytest.raises(ConfigurationError, match="use the preset atari, or edit"):
        preset("pong", environment={"id": "ALE/Assault-v5"})
    with pytest.raises(ConfigurationError, match=r"the preset atari is for ALE/\*-v5, .* use the preset none for the"):
        preset("atari", environment={"id": "MyEnv-v0"})
    assert preset("acrobot", environment={"id": "gymnasium:Acrobot-v1"}).evaluation.threshold == -100.0


@pytest.mark.parametrize("name", ["", "none"])
def test_the_defaults_can_be_requested_instead_of_a_preset(name: str) -> None:
    assert configured({"environment": {"id": "Pendulum-v1"}}, preset=name).config.ppo == Config().ppo


def test_the_preset_of_colour_lines_trains_on_shaped_rewards_and_is_judged_by_the_score() -> None:
    environment = preset("colour_lines").environment
    assert environment.training_variants == ({"shaping": 0.2},)
    assert environment.variant_kwargs == ({},)
