"""What settings come to that are given as variables, as containers get them."""

import os

import pytest

from penstock.cli.options import parse
from penstock.config import Config
from penstock.errors import ConfigurationError


def config_of(monkeypatch: pytest.MonkeyPatch, **variables: str) -> Config:
    for name in [name for name in os.environ if name.startswith("PENSTOCK")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(f"PENSTOCK__{name}", value)
    return parse("penstock actor", "", [], trains=False).config


@pytest.mark.parametrize("text", ["reach,more", "reach, more", '["reach", "more"]'])
def test_lists_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    assert config_of(monkeypatch, ENVIRONMENT__IMPORTS=text).environment.imports == ("reach", "more")


@pytest.mark.parametrize(("text", "sizes"), [("32", (32,)), ("32,16", (32, 16)), ("[32, 16]", (32, 16)), ("", ())])
def test_so_are_lists_of_numbers(monkeypatch: pytest.MonkeyPatch, text: str, sizes: tuple[int, ...]) -> None:
    assert config_of(monkeypatch, POLICY__HIDDEN_SIZES=text).policy.hidden_sizes == sizes


@pytest.mark.parametrize(
    ("text", "addresses"),
    [("[::1]:7431", ("[::1]:7431",)), ("[::1]:7431,b:2", ("[::1]:7431", "b:2")), ('["a:1"]', ("a:1",))],
)
def test_brackets_of_an_address_are_its_own(
    monkeypatch: pytest.MonkeyPatch, text: str, addresses: tuple[str, ...]
) -> None:
    assert config_of(monkeypatch, LEARNER__REPLAY_ADDRESSES=text).learner.replay_addresses == addresses


def test_a_variable_for_one_value_is_stronger_than_the_table_s(monkeypatch: pytest.MonkeyPatch) -> None:
    assert config_of(monkeypatch, PPO__EPOCHS="7", PPO='{"epochs": 3}').ppo.epochs == 7
    assert config_of(monkeypatch, PPO='{"epochs": 3}', PPO__EPOCHS="7").ppo.epochs == 7


def test_tables_are_json_or_a_variable_for_each_value(monkeypatch: pytest.MonkeyPatch) -> None:
    given = config_of(monkeypatch, ENVIRONMENT__KWARGS='{"g": 9.5}', ENVIRONMENT__TRAINING_KWARGS__G="8")
    assert (given.environment.kwargs, given.environment.training_kwargs) == ({"g": 9.5}, {"g": 8})


def test_variables_of_one_section_do_not_replace_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    given = config_of(monkeypatch, PPO__EPOCHS="3", PPO__MINIBATCHES="2")
    assert (given.ppo.epochs, given.ppo.minibatches) == (3, 2)


def test_a_table_that_can_t_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"variable PENSTOCK__ENVIRONMENT__KWARGS holds a table.*not 'g=9'"):
        config_of(monkeypatch, ENVIRONMENT__KWARGS="g=9", PPO__EPOCHS="3")
