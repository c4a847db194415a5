"""Settings given as options and as environment variables."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.commands import train
from penstock.cli.options import Options, parse
from penstock.config import Config
from penstock.errors import ConfigurationError
from penstock.local.variables import without_settings
from penstock.presets import preset


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PENSTOCK")]:
        monkeypatch.delenv(name)


def options_of(*arguments: str) -> Options:
    return parse("penstock train", "", arguments, trains=True)


def config_of(monkeypatch: pytest.MonkeyPatch, **variables: str) -> Config:
    for name, value in variables.items():
        monkeypatch.setenv(f"PENSTOCK__{name}", value)
    return parse("penstock actor", "", [], trains=False).config


@pytest.mark.parametrize("text", ["reach,more", "reach, more", '["reach", "more"]'])
def test_lists_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    assert config_of(monkeypatch, ENVIRONMENT__IMPORTS=text).environment.imports == ("reach", "more")


@pytest.mark.parametrize(("text", "sizes"), [("32", (32,)), ("32,16", (32, 16)), ("[32, 16]", (32, 16)), ("", ())])
def test_lists_of_numbers_are_separated_by_commas(
    monkeypatch: pytest.MonkeyPatch, text: str, sizes: tuple[int, ...]
) -> None:
    assert config_of(monkeypatch, POLICY__HIDDEN_SIZES=text).policy.hidden_sizes == sizes


@pytest.mark.parametrize(
    ("text", "addresses"),
    [("[::1]:7431", ("[::1]:7431",)), ("[::1]:7431,b:2", ("[::1]:7431", "b:2")), ('["a:1"]', ("a:1",))],
)
def test_brackets_around_an_ipv6_address_are_kept(
    monkeypatch: pytest.MonkeyPatch, text: str, addresses: tuple[str, ...]
) -> None:
    assert config_of(monkeypatch, LEARNER__REPLAY_ADDRESSES=text).learner.replay_addresses == addresses


def test_a_variable_for_one_value_overrides_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    assert config_of(monkeypatch, PPO__EPOCHS="7", PPO='{"epochs": 3}').ppo.epochs == 7
    assert config_of(monkeypatch, PPO='{"epochs": 3}', PPO__EPOCHS="7").ppo.epochs == 7


def test_tables_are_given_as_json_or_as_one_variable_per_value(monkeypatch: pytest.MonkeyPatch) -> None:
    given = config_of(monkeypatch, ENVIRONMENT__KWARGS='{"g": 9.5}', ENVIRONMENT__TRAINING_KWARGS__G="8")
    assert (given.environment.kwargs, given.environment.training_kwargs) == ({"g": 9.5}, {"g": 8})


def test_variables_of_one_section_do_not_replace_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    given = config_of(monkeypatch, PPO__EPOCHS="3", PPO__MINIBATCHES="2")
    assert (given.ppo.epochs, given.ppo.minibatches) == (3, 2)


def test_a_setting_of_the_preset_may_be_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    assert preset("cartpole").evaluation.threshold is not None
    assert options_of("--evaluation.threshold", "None").config.evaluation.threshold is None
    monkeypatch.setenv("PENSTOCK__EVALUATION__THRESHOLD", "None")
    assert options_of().config.evaluation.threshold is None


def test_a_variable_that_holds_an_invalid_table_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigurationError, match="the variable PENSTOCK__ENVIRONMENT__KWARGS must be name=value,name=value; got 'g'"
    ):
        config_of(monkeypatch, ENVIRONMENT__KWARGS="g", PPO__EPOCHS="3")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("False", False),
        ("True", True),
        ("false", False),
        ("None", None),
        ("null", None),
        ("-1.5e3", -1500.0),
        ("4", 4),
        ("4x4", "4x4"),
        ("no", "no"),
    ],
)
def test_the_arguments_of_an_environment_may_be_written_as_in_python(
    monkeypatch: pytest.MonkeyPatch, text: str, value: object
) -> None:
    by_option = options_of("--environment.kwargs", f"a={text}", "--environment.training-kwargs", f"a={text},b=x")
    by_variable = config_of(monkeypatch, ENVIRONMENT__KWARGS__A=text)
    found = (
        by_option.config.environment.kwargs["a"],
        by_option.config.environment.training_kwargs["a"],
        by_variable.environment.kwargs["a"],
    )
    assert [(each, type(each)) for each in found] == [(value, type(value))] * 3


def test_text_in_a_file_remains_text(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[environment.kwargs]\nmode = "5"\ndesc = "None"\nslippery = false\n')
    kwargs = options_of("--config", str(file)).config.environment.kwargs
    assert kwargs == {"mode": "5", "desc": None, "slippery": False}
    assert isinstance(kwargs["mode"], str)


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        (("--train.actors", "4", "--actors", "3"), "train.actors is given as '4' and as '3'; give it once"),
        (("--seed", "1", "--seed=2"), "run.seed is given as '1' and as '2'; give it once"),
        (("--preset=pong", "--preset", "cartpole"), "preset is given as 'pong' and as 'cartpole'; give it once"),
    ],
)
def test_contradictory_options_are_refused(arguments: tuple[str, ...], refusal: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        options_of(*arguments)
    assert str(caught.value).startswith(refusal)


def test_options_may_be_repeated_if_they_agree_or_extend_lists_and_tables() -> None:
    config = options_of(
        *("--actors", "3", "--train.actors", "3"),
        *("--environment.kwargs", "a=1", "--environment.kwargs", "b=2", "--env-import", "one", "--env-import", "two"),
    ).config
    assert (config.train.actors, config.environment.imports) == (3, ("one", "two"))
    assert config.environment.kwargs == {"a": 1, "b": 2}


def test_options_may_be_written_with_underscores_like_settings() -> None:
    config = options_of("--ppo.learning_rate", "1e-4", "--total_steps=7_000", "--env_id", "my_env:My_Env-v0").config
    assert (config.ppo.learning_rate, config.run.total_steps) == (1e-4, 7000)
    assert config.environment.id == "my_env:My_Env-v0"


@pytest.mark.parametrize("option", ["--environment.kwargs=gravity", "--policy=memory"])
def test_an_invalid_table_is_refused_in_one_line(option: str) -> None:
    with pytest.raises(ConfigurationError, match=option.partition("=")[0].lstrip("-")):
        options_of(option)


@pytest.mark.parametrize(
    ("variable", "suggestion"),
    [
        ("PENSTOCK_PPO_EPOCHS", "PENSTOCK__PPO__EPOCHS"),
        ("PENSTOCK_PPO__EPOCHS", "PENSTOCK__PPO__EPOCHS"),
        ("penstock_ppo_learning_rate", "PENSTOCK__PPO__LEARNING_RATE"),
        ("PENSTOCK_SEED", "PENSTOCK__RUN__SEED"),
        ("PENSTOCK_PRESETS", "PENSTOCK_PRESET"),
        ("PENSTOCK__PPO_EPOCHS", "PENSTOCK__PPO__EPOCHS"),
        ("PENSTOCK__SEED", "PENSTOCK__RUN__SEED"),
        ("penstock__popp__epochs", "PENSTOCK__PPO__EPOCHS"),
    ],
)
@pytest.mark.parametrize("trains", [True, False])
def test_an_unknown_variable_is_refused_with_a_suggestion(
    monkeypatch: pytest.MonkeyPatch, variable: str, suggestion: str, trains: bool
) -> None:
    monkeypatch.setenv(variable, "4")
    with pytest.raises(
        ConfigurationError, match=rf"the variable {variable} (is not a setting|has an unknown section).*{suggestion}\b"
    ):
        parse("penstock", "", [], trains=trains)


def test_variables_with_other_purposes_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PENSTOCK_ACTORS": "3",
        "PENSTOCK_SUPERVISED": "1",
        # Variables that Kubernetes sets in every pod beside a service called penstock-learner.
        "PENSTOCK_LEARNER_SERVICE_HOST": "10.0.0.1",
        "PENSTOCK_LEARNER_SERVICE_PORT_GRPC": "7432",
        "PENSTOCK_LEARNER_PORT": "tcp://10.0.0.1:7432",
        "PENSTOCK_LEARNER_PORT_7432_TCP_ADDR": "10.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    assert options_of().config == preset("cartpole")


def test_the_preset_may_be_given_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_PRESET", "pong")
    assert (options_of().preset, options_of().config) == ("pong", preset("pong"))
    assert parse("penstock actor", "", [], trains=False).config == preset("pong")
    assert options_of("--preset", "acrobot").preset == "acrobot"
    assert parse("penstock actor", "", ["--preset="], trains=False).config == Config()
    monkeypatch.setenv("PENSTOCK_PRESET", "none")
    assert options_of("--env-id", "Pendulum-v1").preset is None


def test_a_preset_given_by_a_variable_is_refused_when_a_run_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_PRESET", "pong")
    with pytest.raises(ConfigurationError, match=r"uses the settings of the run.*PENSTOCK_PRESET"):
        options_of("--resume", "anywhere")


def test_a_capitalised_section_is_refused_even_with_a_preset(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[Run]\ntotal_steps = 77\n")
    with pytest.raises(ConfigurationError, match=r"unknown setting Run; did you mean run\?"):
        options_of("--config", str(file), "--preset", "cartpole")


@pytest.mark.parametrize("variable", [False, True])
def test_a_preset_for_another_environment_is_refused(monkeypatch: pytest.MonkeyPatch, variable: bool) -> None:
    if variable:
        monkeypatch.setenv("PENSTOCK_PRESET", "acrobot")
    arguments = ["--env-id", "Pendulum-v1", *([] if variable else ["--preset", "acrobot"])]
    for trains in (True, False):
        with pytest.raises(ConfigurationError, match="the preset acrobot is for Acrobot-v1"):
            parse("penstock", "", arguments, trains=trains)


def test_children_receive_no_settings_in_variables() -> None:
    kept = {"PATH": "/bin", "PENSTOCK_TAG": "new"}
    settings = {"PENSTOCK__RUN__SEED": "1", "penstock__run__seed": "1", "PENSTOCK_PRESET": "pong"}
    assert without_settings(kept | settings) == kept


@pytest.fixture
def handlers() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("handlers")
def test_training_prints_the_chosen_preset_and_the_sizes_of_batches_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, printed in (
        (
            ["--env-id=Blackjack-v1", "--environment.kwargs=nothing=1"],
            "no preset for Blackjack-v1; using the defaults, for 1,000,000 steps (--total-steps)\n"
            "batch of 64 segments (16 fresh), 8 minibatches; derived from 2 actors x 8 environments\n",
        ),
        (
            ["--environment.kwargs=nothing=1"],
            "preset cartpole for CartPole-v1\n"
            "batch of 64 segments (16 fresh), 8 minibatches; derived from 2 actors x 8 environments\n",
        ),
        (
            ["--environment.kwargs=nothing=1", "--preset=cartpole_no_replay"],
            "preset cartpole_no_replay for CartPole-v1\nbatch of 128 segments (128 fresh), 12 minibatches, as set\n",
        ),
    ):
        with pytest.raises(ConfigurationError, match="can't make the environment"):
            train.command(arguments)
        # On a slow machine, further lines say how long the check takes.
        assert capsys.readouterr().out.startswith(printed)
