"""The Python API: its names, the values that it accepts in place of options, and its single kind of error."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import StickyAction, TimeLimit, TransformReward

import penstock
from penstock.api.training import is_shown
from penstock.cli.options import parse
from penstock.errors import ConfigurationError
from tests.support.environments.made import make_environments
from tests.support.training.policies import fresh_weights

VALUES: dict[str, Any] = {"seed": 3, "lr": 3e-4, "total_steps": "250k", "n_envs": 12, "anneal_lr": False, "n_epochs": 5}
NAMED = {"cartpole": "CartPole-v1", "none": "Pendulum-v1"}


def test_the_public_names_are_listed_and_exist() -> None:
    assert dir(penstock) == sorted([*penstock.__all__, "__version__"])
    assert all(getattr(penstock, name) is not None for name in penstock.__all__)


def test_windows_is_refused_in_one_line_before_anything_else_is_imported() -> None:
    program = "import sys; sys.platform = 'win32'; import penstock"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 1 and "on Windows, use WSL 2 or Docker" in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize("preset", [None, *NAMED])
def test_options_a_file_and_python_give_the_same_configuration(tmp_path: Path, preset: str | None) -> None:
    environment = NAMED.get(preset or "", "CartPole-v1")
    options = [f"--{name.replace('_', '-')}={value}" for name, value in VALUES.items()]
    chosen = [] if preset is None else [f"--preset={preset}"]
    (tmp_path / "run.toml").write_text("".join(f"{name} = {toml(value)}\n" for name, value in VALUES.items()))
    commanded = parse("penstock train", "", [environment, *chosen, *options], trains=True).config
    file = [environment, *chosen, f"--config={tmp_path / 'run.toml'}"]
    assert commanded == parse("penstock train", "", file, trains=True).config
    assert commanded == penstock.configure(environment, preset=preset, **VALUES)
    assert commanded == penstock.configure(preset=preset, env_id=environment, **VALUES)
    if preset is not None:
        assert commanded == penstock.preset(preset, env=environment, **VALUES)
    others = {name: value for name, value in VALUES.items() if name != "n_envs"}
    assert commanded == penstock.configure(environment, preset=preset, n_envs=12).changed(others)
    assert (commanded.ppo.learning_rate, commanded.ppo.learning_rate_schedule) == (3e-4, "constant")


def toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


def test_a_configuration_takes_names_without_sections() -> None:
    config = penstock.Config(seed=5, lr=1e-3, ppo={"epochs": 4}, num_envs=12)
    assert config == penstock.Config(
        run={"seed": 5}, ppo={"learning_rate": 1e-3, "epochs": 4}, actor={"environments": 6}
    )


def test_a_configuration_is_read_from_a_file_or_a_run_folder(tmp_path: Path) -> None:
    config = penstock.preset("pendulum", seed=4)
    (tmp_path / "config.toml").write_text(config.to_toml())
    assert penstock.Config.load(tmp_path) == config == penstock.Config.load(str(tmp_path / "config.toml"))
    with pytest.raises(ConfigurationError, match=r"can't read the configuration .*nothing"):
        penstock.Config.load(tmp_path / "nothing")


class Placed(CartPoleEnv):
    """An environment that takes an array."""

    def __init__(self, start: object = None) -> None:
        super().__init__()
        self.start = start


gymnasium.register("Placed-v0", f"{__name__}:Placed", kwargs={"start": np.zeros(2)})


@pytest.mark.filterwarnings("ignore:the environment receives the list")
@pytest.mark.parametrize("start", [[0.0, 0.0], [0.0, 1.0], [1.0]])
def test_a_made_environment_may_have_arrays_as_arguments(start: list[float]) -> None:
    kwargs = penstock.configure(gymnasium.make("Placed-v0", start=np.array(start))).environment.kwargs
    assert kwargs == ({} if start == [0.0, 0.0] else {"start": start})


def wrapped() -> Any:
    return gymnasium.wrappers.FlattenObservation(gymnasium.make("CartPole-v1"))


class Own(gymnasium.Wrapper[Any, Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    def __init__(self, env: gymnasium.Env[Any, Any], *, size: int) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self, size=size)
        super().__init__(env)


@pytest.mark.parametrize(
    ("make", "environment_id", "kwargs"),
    [
        (lambda: gymnasium.make("CartPole-v1"), "CartPole-v1", {}),
        (lambda: gymnasium.make("CartPole-v1", render_mode="rgb_array").spec, "CartPole-v1", {}),
        (lambda: gymnasium.make("CartPole-v1", max_episode_steps=77), "CartPole-v1", {"max_episode_steps": 77}),
        (lambda: gymnasium.make("FrozenLake-v1", is_slippery=False), "FrozenLake-v1", {"is_slippery": False}),
        (lambda: CartPoleEnv, "gymnasium.envs.classic_control.cartpole:CartPoleEnv", {}),
        (lambda: wrapped, "test_api:wrapped", {}),
    ],
)
def test_an_environment_may_be_given_as_users_have_it(
    make: Callable[[], Any], environment_id: str, kwargs: dict[str, object]
) -> None:
    environment = penstock.configure(make()).environment
    assert (environment.id, environment.kwargs) == (environment_id, kwargs)
    assert penstock.configure(environment={"id": make()}).environment == environment


def test_wrappers_of_an_environment_with_plain_arguments_are_repeated() -> None:
    given = Own(StickyAction(wrapped(), 0.25), size=3)
    environment = penstock.configure(given).environment
    flat, sticky, own = environment.wrappers
    assert (flat, own) == ({"name": "FlattenObservation"}, {"name": "test_api:Own", "size": 3})
    # Earlier releases of Gymnasium do not record the duration.
    assert {"repeat_action_duration": 1, **sticky} == {
        "name": "StickyAction",
        "repeat_action_probability": 0.25,
        "repeat_action_duration": 1,
    }
    assert environment.kwargs == {}


class OfOthers:
    """A vector environment without a specification, as those of Stable-Baselines3."""

    num_envs = 8


def untrained() -> penstock.TrainedPolicy:
    return penstock.TrainedPolicy(fresh_weights(make_environments("CartPole-v1", 1, kwargs={}).spec))


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "training without an environment": (lambda: penstock.train(), "needs an environment or a preset, such as"),
    "a preset on a configuration": (lambda: penstock.train(penstock.Config(), preset="cartpole"), "preset='cartpole'"),
    "an environment that is not registered": (lambda: penstock.configure(CartPoleEnv()), "an object of CartPoleEnv"),
    "a wrapper without plain arguments": (
        lambda: penstock.configure(TransformReward(wrapped(), lambda reward: reward)),
        "the wrapper TransformReward of CartPole-v1, .*; name it in environment.wrappers, or give a function",
    ),
    "a limit outside of wrappers": (
        lambda: penstock.configure(TimeLimit(wrapped(), 9)),
        "the wrapper FlattenObservation of CartPole-v1",
    ),
    "a vector environment": (
        lambda: penstock.train(gymnasium.make_vec("CartPole-v1", 2)),
        "'CartPole-v1', and the .*n_envs=2",
    ),
    "a vector environment of others": (
        lambda: penstock.train(cast("Any", OfOthers())),
        "of its single environment, and .*n_envs=8",
    ),
    "two environments": (lambda: penstock.configure("A-v0", env="B-v0"), "as 'A-v0' and as 'B-v0'; give it once"),
    "an unknown name": (lambda: penstock.configure("A-v0", learnin_rate=1), r"did you mean ppo\.learning_rate\?"),
    "an unknown key": (lambda: penstock.Config(ppo={"lr": 1}), r"did you mean ppo\.learning_rate\?"),
    "an unknown key of a preset": (lambda: penstock.preset("cartpole", ppo={"lr": 1}), r"did you mean ppo\.learning"),
    "a wrong value": (lambda: penstock.Config(lr="fast"), "ppo.learning_rate must be a number"),
    "settings that conflict": (lambda: penstock.Config(total_steps=None), "run.total_steps is none"),
    "a name with an answer": (lambda: penstock.train("CartPole-v1", log_interval=10), "metrics.jsonl has a record"),
    "a policy as another setting": (
        lambda: penstock.train("CartPole-v1", seed=untrained()),
        "seed can't be a policy; a new run starts from it with start_from=policy",
    ),
    "a policy in a configuration": (
        lambda: penstock.configure("CartPole-v1", start_from=untrained()),
        r"run\.start_from must be the folder of a run or a \.safetensors file, or none; got TrainedPolicy",
    ),
    "a change in place": (lambda: setattr(penstock.Config(), "seed", 1), r"config\.changed\(seed=\.\.\.\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_mistake_is_one_kind_of_error_in_one_line(case: str) -> None:
    act, message = REFUSED[case]
    with pytest.raises(penstock.ConfigurationError, match=f"^[^\n]*{message}[^\n]*$") as caught:
        act()
    assert isinstance(caught.value, penstock.PenstockError) and "pydantic" not in str(caught.value)


class EvalCallback:
    """Has the name of a callback of Stable-Baselines3, and like it is no function."""


@pytest.mark.parametrize("callback", [EvalCallback(), [EvalCallback(), object()]])
def test_a_callback_that_is_no_function_is_answered_with_the_settings_that_replace_it(callback: Any) -> None:
    with pytest.raises(penstock.ConfigurationError, match=r"returns False to end the run; got EvalCallback.*set eval"):
        penstock.train("CartPole-v1", callback=callback)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({}, None),
        ({"verbose": 0}, False),
        ({"verbose": 1}, True),
        ({"verbose": 2, "progress_bar": False}, True),
        ({"progress_bar": True}, True),
        ({"progress": False, "verbose": 1}, False),
    ],
)
def test_the_display_is_that_of_progress_or_of_the_words_of_other_libraries(
    given: dict[str, Any], shown: bool | None
) -> None:
    assert is_shown(given.pop("progress", None), given.pop("verbose", None), given) is shown
