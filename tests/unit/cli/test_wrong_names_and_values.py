"""Mistakes of the first hour: what the program prints for a wrong name or value, and what it accepts nevertheless."""

from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.cli import main
from penstock.cli.options import parse
from penstock.config import Config


class Refused(NamedTuple):
    """A command line without `penstock`, the file and variable that it reads, and the line that it prints."""

    arguments: str
    line: str
    file: str = ""
    variable: str = ""


REFUSED = {
    "a_section_in_capitals": Refused("train --preset cartpole", "unknown setting PPO; did you mean ppo?", "[PPO]\n"),
    "a_capitalised_section": Refused("train", "unknown setting Run; did you mean run?", "[Run]\ntotal_steps = 77\n"),
    "a_key_in_capitals": Refused(
        "train", "unknown setting ppo.EPOCHS; did you mean ppo.epochs?", "[ppo]\nEPOCHS = 4\n"
    ),
    "another_librarys_key_in_a_section": Refused(
        "train", "unknown setting ppo.lr; did you mean ppo.learning_rate?", "[ppo]\nlr = 3e-4\n"
    ),
    "a_bool_for_a_number": Refused(
        "train", "ppo.epochs must be a number, not true or false; got True", "[ppo]\nepochs = true\n"
    ),
    "broken_toml": Refused("train", "settings.toml is not valid TOML: Expected ']'", "[ppo\n"),
    "one_underscore": Refused("train", "write PENSTOCK__PPO__EPOCHS, or unset it", variable="PENSTOCK_PPO_EPOCHS"),
    "one_underscore_before_the_section": Refused(
        "train", "write PENSTOCK__PPO__EPOCHS, or unset it", variable="PENSTOCK_PPO__EPOCHS"
    ),
    "a_variable_without_a_section": Refused(
        "train", "write PENSTOCK__RUN__SEED, or unset it", variable="PENSTOCK_SEED"
    ),
    "a_variable_with_an_unknown_section": Refused("train", "write PENSTOCK__RUN__SEED", variable="PENSTOCK__SEED"),
    "a_variable_with_an_unknown_key": Refused(
        "train", "unknown setting ppo.epochz; did you mean ppo.epochs?", variable="PENSTOCK__PPO__EPOCHZ"
    ),
    "a_preset_variable_that_names_none": Refused(
        "train", "unknown preset '4'; choose from: ", variable="PENSTOCK_PRESET"
    ),
    "a_preset_for_another_environment": Refused(
        "train --preset cartpole --env-id Pendulum-v1",
        "the preset cartpole is for CartPole-v1, and environment.id is Pendulum-v1; use the preset pendulum",
    ),
    "a_preset_for_another_kind_of_environment": Refused(
        "train --preset pong CartPole-v1", "the preset pong is for ALE/Pong-v5, and environment.id is CartPole-v1"
    ),
    "an_unknown_preset": Refused("train --preset Pongg", "unknown preset 'Pongg'; did you mean pong?"),
    "more_actors_awaited_than_started": Refused(
        "train --actors 2 --train.await-actors 4",
        "exceeds the 2 actors of train.actors 2, so the run would wait for ever",
    ),
    "a_setting_under_two_names": Refused(
        "train --train.actors 4 --actors 3", "train.actors is given as '4' and as '3'; give it once"
    ),
    "a_setting_given_twice": Refused("train --seed 1 --seed 2", "run.seed is given as '1' and as '2'; give it once"),
    "infinity": Refused("train --ppo.learning-rate inf", "must be a number above 0 and at most 1; got 'inf'"),
    "nan": Refused("train --stop-at-return nan", "run.stop_at_return must be a number, or none; got 'nan'"),
    "nan_for_a_share": Refused(
        "train --ppo.trace-decay nan", "ppo.trace_decay must be a number from 0 to 1; got 'nan'"
    ),
    "a_device_of_another_library": Refused("train --learner.device gpu", "must be auto, cpu, cuda, or cuda:N"),
    "a_device_that_does_not_exist": Refused("train --device tpu", "must be auto, cpu, cuda, or cuda:N"),
    "no_number_of_steps": Refused(
        "train --total-steps 1x6", "run.total_steps must be a whole number above 0, such as 1000 or 1e6"
    ),
    "no_actors": Refused("train --actors 0", "train.actors must be a whole number from 1, or auto; got '0'"),
    "a_section_for_a_setting": Refused("train --actor 4", "unknown option --actor; did you mean --actors?"),
    "no_sizes": Refused("train --policy.hidden-sizes abc", "separated by commas, such as 256,256; got 'abc'"),
    "no_table": Refused(
        "train --environment.kwargs gravity", "environment.kwargs must be name=value,name=value; got 'gravity'"
    ),
    "an_unknown_option": Refused("train --xyzzy", "`penstock train --help` lists all options"),
    "a_mistyped_option": Refused("train --learnin-rate 1e-3", "did you mean --learning-rate?"),
    "an_unknown_command": Refused("trian", "unknown command 'trian'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_mistake_is_answered_in_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = REFUSED[name]
    arguments = refused.arguments.split()
    monkeypatch.chdir(tmp_path)
    if refused.file:
        Path("settings.toml").write_text(refused.file)
        arguments += ["--config", "settings.toml"]
    if refused.variable:
        monkeypatch.setenv(refused.variable, "4")
    assert main._run(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("penstock: ") and refused.line in line
    assert not any(word in line for word in ("Traceback", "pydantic", "Input should", " at 0x"))
    assert list(tmp_path.iterdir()) == ([tmp_path / "settings.toml"] if refused.file else [])


def config_of(arguments: str) -> Config:
    return parse("penstock train", "", arguments.split(), trains=True).config


@pytest.mark.parametrize("name", ["Pong", "PONG", "ALE/Pong-v5"])
def test_a_preset_has_its_name_in_any_case_and_that_of_its_environment(name: str) -> None:
    assert config_of(f"--preset {name}") == config_of("--preset pong")


@pytest.mark.parametrize("environment", ["gymnasium:CartPole-v1", "CartPole", "CartPole-v1"])
def test_an_environment_has_its_preset_under_each_of_its_ids(environment: str) -> None:
    assert config_of(environment).ppo == config_of("--preset cartpole").ppo


def test_the_preset_may_be_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_PRESET", "pendulum")
    assert config_of("") == config_of("--preset pendulum")
    monkeypatch.setenv("PENSTOCK_PRESET", "none")
    assert config_of("") == config_of("--preset none")


@pytest.mark.parametrize(
    ("text", "value"),
    [("False", False), ("false", False), ("True", True), ("None", None), ("null", None), ("1.5", 1.5), ("hot", "hot")],
)
def test_arguments_of_environments_have_pythons_and_jsons_spellings(text: str, value: object) -> None:
    assert config_of(f"--environment.kwargs given={text}").environment.kwargs == {"given": value}


def test_arguments_of_environments_may_be_lists_and_tables_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('[environment.kwargs]\ndesc = ["SF", "FG"]\nsize = {width = 2}\n')
    assert config_of(f"--config {file}").environment.kwargs == {"desc": ["SF", "FG"], "size": {"width": 2}}


def test_a_file_may_have_dashes_and_names_without_a_section(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("total_steps = 5_000\n[ppo]\nlearning-rate = 3e-4\n")
    config = config_of(f"--config {file}")
    assert (config.run.total_steps, config.ppo.learning_rate) == (5_000, 3e-4)
