"""Wrappers may be written as users of Gymnasium and of RL-Zoo know them, and all forms become one."""

from pathlib import Path

import gymnasium
import pytest

from penstock.config import Config, build, load_toml
from penstock.config.recorded import ENVIRONMENT, read_settings
from penstock.errors import ConfigurationError
from penstock.presets import configured

LIMIT = {"name": "TimeLimit", "max_episode_steps": 5}


class Outer:
    class Inner(gymnasium.Wrapper[object, object, object, object]):
        pass


@pytest.mark.parametrize(
    ("given", "tables"),
    [
        ("TimeLimit(max_episode_steps=5), ClipAction", [LIMIT, {"name": "ClipAction"}]),
        ('[{"name": "TimeLimit", "max_episode_steps": 5}, "ClipAction"]', [LIMIT, {"name": "ClipAction"}]),
        # As several options are joined.
        ('ClipAction,{"name": "TimeLimit", "max_episode_steps": 5}', [{"name": "ClipAction"}, LIMIT]),
        ("a.b:W(x=[1, None], y={'z': (1, 2)})", [{"name": "a.b:W", "x": [1, None], "y": {"z": (1, 2)}}]),
        ("", []),
        (["ClipAction", LIMIT], [{"name": "ClipAction"}, LIMIT]),
        (LIMIT, [LIMIT]),
        (gymnasium.wrappers.TimeLimit, [{"name": "TimeLimit"}]),
        ([{"name": gymnasium.wrappers.TimeLimit, "max_episode_steps": 5}], [LIMIT]),
        (Outer.Inner, [{"name": f"{__name__.rpartition('.')[2]}:Outer.Inner"}]),
        # RL-Zoo writes them so.
        ([{"gymnasium.wrappers.TimeLimit": {"max_episode_steps": 5}}, "gymnasium.wrappers.ClipAction"], None),
        ([{"sb3.atari.W": {"skip": 4}}], [{"name": "sb3.atari:W", "skip": 4}]),
    ],
)
def test_every_form_becomes_tables_with_a_name(given: object, tables: list[dict[str, object]] | None) -> None:
    expected = (LIMIT, {"name": "ClipAction"}) if tables is None else tuple(tables)
    found = Config(environment={"wrappers": given})
    if callable(given) and given is Outer.Inner:
        assert found.environment.wrappers[0]["name"].endswith(":Outer.Inner")
        return
    assert found.environment.wrappers == expected
    assert Config(env_wrapper=given).environment == found.environment
    assert build({"environment": {"wrappers": found.environment.wrappers}}) == found


def test_a_file_has_arrays_of_tables_and_a_run_records_them(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        """
        [[environment.wrappers]]
        name = "my.py:W"
        nothing = "None"
        pair = { python_literal = "(1, 2)" }
        [environment.wrappers.nested]
        list = [1, "None"]
        [[environment.wrappers]]
        name = "ClipAction"
        """
    )
    own = {"name": f"{Path.cwd()}/my.py:W", "nothing": None, "pair": (1, 2), "nested": {"list": [1, None]}}
    config = build(load_toml(file))
    assert config.environment.wrappers == (own, {"name": "ClipAction"})
    file.write_text(config.to_toml())
    assert read_settings(file, *ENVIRONMENT).environment == config.environment


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"wrappers": [{"max_episode_steps": 5}]}, r"must be a table with the name of a wrapper.*got \{'max_epi"),
        ({"wrappers": [{"a": 1, "b": 2}]}, r"must be a table with the name of a wrapper"),
        ({"wrappers": 3}, r"must be a table with the name of a wrapper, such as \{name = \"TimeLimit\"\}; got 3"),
        ({"wrappers": [{"name": ""}]}, r"must be a table with the name"),
        ({"wrappers": "TimeLimit(5)"}, r"environment\.wrappers must be name=value,name=value; got '5'"),
        ({"wrappers": [{"name": "W", "x": {1}}]}, r"environment\.wrappers.*must be a number, true"),
        ({"wrappers": [lambda env: env]}, r"define the class or function at the top level"),
        ({"wrappers": "W", "vectorization": "native"}, r"^environment\.wrappers needs single environments, and"),
        ({"python": "python3", "vectorization": "native"}, r"^environment\.python needs single environments, and"),
        ({"kwargs": {"render_mode": "human"}}, r"render_mode human would open a window.*evaluate RUN --human"),
        ({"training_kwargs": {"render_mode": "human"}}, r"render_mode human would open a window"),
        ({"variants": [{"render_mode": "human"}]}, r"render_mode human would open a window"),
    ],
)
def test_wrappers_and_renderings_that_can_not_be_used_are_refused(environment: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        Config(environment=environment)


def test_a_preset_with_a_vectorised_form_makes_way_for_wrappers() -> None:
    assert configured({"env_id": "CartPole-v1"}).config.environment.vectorization == "native"
    found = configured({"env_id": "CartPole-v1", "wrappers": "ClipReward"})
    assert found.config.environment.vectorization == "auto" and found.preset == "cartpole"
    assert found.notes == (
        "environment.wrappers needs single environments, so the vectorised form of the preset cartpole and its"
        " arguments are not used",
    )
    with pytest.raises(ConfigurationError, match=r"environment\.wrappers needs single environments"):
        configured({"env_id": "CartPole-v1", "wrappers": "ClipReward", "environment": {"vectorization": "native"}})
