"""Settings of earlier releases: the list is right, and each answer to a user says what became of the setting."""

import re

import pytest

from penstock.cli.options import parse
from penstock.config import Config
from penstock.config.names import setting_of
from penstock.config.removed import BEFORE, REFUSED_VALUES, REMOVED, reason_of
from penstock.config.sections import setting_names
from penstock.errors import ConfigurationError
from penstock.presets import configured


def nested(name: str, value: object) -> dict[str, object]:
    section, _, key = name.partition(".")
    return {section: {key: value}}


def test_no_removed_setting_exists_and_what_replaces_one_does() -> None:
    names = setting_names()
    assert not set(REMOVED) & set(names)
    assert {removed.renamed for removed in REMOVED.values() if removed.renamed} <= set(names)
    assert all(removed.renamed in removed.since for removed in REMOVED.values())


@pytest.mark.parametrize("name", REMOVED)
def test_a_users_removed_setting_is_an_error_that_says_what_replaces_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = reason_of(name)
    assert REMOVED[name].release in reason and REMOVED[name].since in reason
    option = f"--{name.replace('_', '-')}"
    with pytest.raises(ConfigurationError) as of_python:
        Config(**nested(name, "1"))
    with pytest.raises(ConfigurationError) as of_option:
        parse("penstock train", "", [option, "1"], trains=True)
    key = name.partition(".")[2]
    if setting_of(key) is None:
        with pytest.raises(ConfigurationError, match=re.escape(reason)):
            configured({key: "1"})
    monkeypatch.setenv(f"PENSTOCK__{name.replace('.', '__').upper()}", "1")
    with pytest.raises(ConfigurationError) as of_variable:
        parse("penstock train", "", [], trains=True)
    assert str(of_python.value) == str(of_variable.value) == f"unknown setting {name}; {reason}"
    assert str(of_option.value) == f"unknown option {option}; {reason}"


@pytest.mark.parametrize(("name", "text"), REFUSED_VALUES)
def test_a_value_that_an_earlier_release_accepted_is_refused_with_what_to_do(name: str, text: str) -> None:
    for value in (text, int(text)) if text.lstrip("-").isdigit() else (text,):
        with pytest.raises(ConfigurationError) as refused:
            Config(**nested(name, value))
        assert name in str(refused.value)
        assert REFUSED_VALUES[name, text] in str(refused.value)
    Config(**nested(name, 0))


@pytest.mark.parametrize("name", BEFORE)
def test_a_former_behaviour_is_a_value_that_differs_from_the_default(name: str) -> None:
    section, _, key = name.partition(".")
    former = Config(**nested(name, BEFORE[name]))
    assert getattr(getattr(former, section), key) != getattr(getattr(Config(), section), key)


def test_a_mistyped_setting_of_a_user_is_answered_with_the_one_that_was_meant() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown setting sampling\.betta; did you mean sampling\.beta\?"):
        Config(sampling={"betta": 0.5})
