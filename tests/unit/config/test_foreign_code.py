"""Which settings of a file name code, and which own settings name it too."""

from pathlib import Path
from typing import Any

import pytest

from penstock.config import Config
from penstock.errors import ConfigurationError, ForeignCode

FILE = "config.toml"


def data(tmp_path: Path, **sections: dict[str, Any]) -> Config:
    """Returns a configuration as a file gives it."""
    path = tmp_path / FILE
    path.write_text(Config(**sections).to_toml())
    return Config.load(path)


def refusal(config: Config) -> str:
    try:
        config.refuse_foreign_code()
    except ForeignCode as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"environment": {"id": "/there/my.py:Env"}}, "environment.id '/there/my.py:Env'"),
        ({"environment": {"id": "package.module:Env"}}, "environment.id 'package.module:Env'"),
        ({"environment": {"id": "package:Env-v0"}}, "environment.id 'package:Env-v0'"),
        ({"environment": {"imports": ["a", "/b.py"]}}, "environment.imports 'a,/b.py'"),
        ({"policy": {"module": "nets:Net"}}, "policy.module 'nets:Net'"),
        ({"learner": {"loss": "/there/my.py:Loss"}}, "learner.loss '/there/my.py:Loss'"),
        ({"learner": {"optimizer": "/there/my.py:make"}}, "learner.optimizer '/there/my.py:make'"),
        ({"ppo": {"advantage": "my:advantage"}}, "ppo.advantage 'my:advantage'"),
        ({"ppo": {"intrinsic_reward": "my:Reward"}}, "ppo.intrinsic_reward 'my:Reward'"),
        ({"sampling": {"priority": "my:priority"}}, "sampling.priority 'my:priority'"),
        ({"environment": {"kwargs": {"deep": [{"kind": "module.Class"}]}}}, "environment.kwargs.deep 'module.Class'"),
        ({"environment": {"kwargs": {"deep": {"a/b": 1}}}}, "environment.kwargs.deep 'a/b'"),
        ({"environment": {"training_kwargs": {"file": "/some.xml"}}}, "environment.training_kwargs.file '/some.xml'"),
        ({"environment": {"variants": [{}, {"env_id": "evil:X"}]}}, "environment.variants 'evil:X'"),
        ({"environment": {"wrappers": ["ClipAction", "evil:X"]}}, "environment.wrappers 'evil:X'"),
        ({"environment": {"wrappers": [{"name": "W", "kind": "a.B"}]}}, "environment.wrappers 'a.B'"),
    ],
)
def test_a_file_that_names_code_is_refused_until_it_is_trusted(
    sections: dict[str, Any], named: str, tmp_path: Path
) -> None:
    config = data(tmp_path, **sections)
    assert refusal(config).startswith(f"{tmp_path / FILE} names code that would run: {named}; if you trust")
    assert "\n" not in refusal(config)
    assert not refusal(config.trusted()) and not refusal(Config.load(tmp_path / FILE, trust_code=True))
    # The process's own settings are never refused.
    assert not refusal(Config(**sections)) and Config(**sections).names_code
    # Other changes and copies are still those of the file.
    assert refusal(config.changed(seed=4)) == refusal(config) == refusal(config.repeatable())
    assert config == Config(**sections)


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"environment": {"id": "ALE/Pong-v5", "kwargs": {"obs_type": "rgb", "levels": [1, 2.5, None, True]}}},
        {"environment": {"id": "FrozenLake-v1", "kwargs": {"map_name": "8x8"}, "variants": [{"g": 1.5}, {}]}},
        {"environment": {"wrappers": ["FlattenObservation", {"name": "TimeLimit", "max_episode_steps": 5}]}},
        {"run": {"start_from": "/some/run"}, "replay": {"folder": "/a/b"}},
    ],
)
def test_a_run_of_a_registered_environment_needs_no_permission(sections: dict[str, Any], tmp_path: Path) -> None:
    assert not refusal(data(tmp_path, **sections)) and not Config(**sections).names_code


def test_what_own_settings_name_is_not_foreign_and_the_rest_is(tmp_path: Path) -> None:
    environment = {"id": "a:Env", "imports": ["b"], "kwargs": {"x": "c.d", "y": "e.f"}}
    config = data(tmp_path, environment=environment, policy={"module": "nets:Net"}, learner={"loss": "losses:loss"})
    config = config.changed(env_id="a:Env", environment={"kwargs": {"x": "c.d"}})
    assert "environment.id" not in refusal(config) and "kwargs.x" not in refusal(config)
    for name in ("environment.imports 'b'", "environment.kwargs.y 'e.f'", "policy.module 'nets:Net'", "learner.loss '"):
        assert name in refusal(config)
    config = config.changed(env_import="other", environment={"kwargs": {"y": 1}})
    assert "policy.module" in refusal(config) and "environment" not in refusal(config).partition(";")[0]
    config = config.changed(policy={"module": None})
    assert "learner.loss" in refusal(config) and "policy" not in refusal(config).partition(";")[0]
    assert not refusal(config.changed(loss="losses:other"))


def test_a_refusal_is_an_error_of_the_configuration() -> None:
    # Commands and services exit with its code, which is not restarted.
    assert issubclass(ForeignCode, ConfigurationError)
