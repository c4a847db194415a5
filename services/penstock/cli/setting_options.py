"""The options for all settings: their names, the forms in which values may be written, and their help."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from pydantic.fields import FieldInfo

from penstock.cli.one_line_parser import OneLineParser, with_dashes
from penstock.config import Config
from penstock.config.answers import ANSWERS
from penstock.config.names import ALIASES, SHORT, short_names, spelled, suggestions
from penstock.config.removed import reason_of
from penstock.config.sections import described, fields
from penstock.config.setting_types import is_list, is_table, read_table
from penstock.config.wanted import is_flag, wanted
from penstock.errors import ConfigurationError
from penstock.machine.environment_arguments import NONE
from penstock.machine.spelling import question

VERBOSE = "--verbose"
"""Option of commands that train. Other libraries give it a number."""

_FALSE = ("false", "no", "off", "0")
_TRUTH = ("true", "yes", "on", "1", *_FALSE)


class SettingsParser(OneLineParser):
    """A parser of settings, which suggests settings for unknown options."""

    def suggestion(self, name: str) -> str:
        """Returns a sentence about a removed setting, or a question that suggests an option, or ""."""
        if reason := reason_of(spelled(name)):
            return reason
        if "." in name:
            return question(self.similar_option(name, ".")) or suggestions(name.lstrip("-"))
        close = self.similar_option(name)
        if answer := _answer(close):
            return answer
        return question(close) or suggestions(name.lstrip("-"))


def add_settings(parser: argparse.ArgumentParser, defaults: Config | None) -> None:
    """Adds an option for each setting, and for the names that other libraries use and the command itself does not.

    `defaults` are the values to show in the help of settings; None: the help shows no settings.
    """
    for section, field in Config.model_fields.items():
        group = parser.add_argument_group(f"[{section}]", _purpose(field))
        for name, each in fields().items():
            if name.startswith(f"{section}."):
                _add_setting(group, name, each, defaults)
    for name in (*ALIASES, *ANSWERS):
        if option(name) in parser._option_string_actions:
            continue
        # An answer needs no value.
        optional: dict[str, Any] = {"nargs": "?", "const": "true"} if name in ANSWERS else {}
        parser.add_argument(option(name), dest=option(name), metavar="VALUE", help=argparse.SUPPRESS, **optional)


def values_of(parsed: argparse.Namespace) -> dict[str, object]:
    """Returns the given values, nested by section, and other names with their values.

    Raises `ConfigurationError` if the text of a table can't be read.
    """
    values: dict[str, object] = {}
    for destination, given in vars(parsed).items():
        section, dot, key = destination.partition(".")
        if given is None:
            continue
        if dot:
            settings = values.setdefault(section, {})
            assert isinstance(settings, dict)
            settings[key] = _read(destination, given)
        elif destination.startswith("--"):
            values[destination] = given
    return values


def expanded(arguments: Sequence[str]) -> list[str]:
    """Returns arguments in which each option has one value, after an equals sign.

    `--flag` becomes `--flag=true`, `--no-flag` becomes `--flag=false`, and several values of a list or a table are
    joined by commas.
    """
    flags, follows, answers = _flags(), _several_values(), set(map(option, ANSWERS))
    result: list[str] = []
    waiting = [_without_section(with_dashes(each)) for each in arguments]
    while waiting:
        each = waiting.pop(0)
        if each.partition("=")[0] == VERBOSE:
            follows_it = bool(waiting) and (waiting[0].isdigit() or waiting[0].lower() in _TRUTH)
            value = each.partition("=")[2] or (waiting.pop(0) if follows_it else "")
            result += [] if value.lower() in _FALSE else [VERBOSE]
            continue
        positive = f"--{each.removeprefix('--no-')}" if each.startswith("--no-") else None
        if each in flags:
            value = waiting.pop(0) if waiting and waiting[0].lower() in _TRUTH else "true"
            result.append(f"{each}={value.lower()}")
        elif positive in flags or positive in answers:
            result.append(f"{positive}=false")
        elif each in follows:
            several: list[str] = []
            while waiting and not waiting[0].startswith("-") and (not several or follows[each](waiting[0])):
                several.append(waiting.pop(0))
            result.append(f"{each}={','.join(several)}" if several else each)
        else:
            result.append(each)
    return result


def option(name: str) -> str:
    """Returns the option for a name."""
    return f"--{name.replace('_', '-')}"


def _answer(name: str | None) -> str:
    """Returns the answer to an option that is never accepted, and is therefore not suggested; "" for others."""
    answer = ANSWERS.get(spelled(name or ""))
    if answer is None or isinstance(answer("2", Config()), dict):
        return ""
    text = answer("true", Config())
    return text if isinstance(text, str) else ""


def _without_section(argument: str) -> str:
    """Returns the option of another library, which has an answer, without a section that it does not have here."""
    name, equals, value = argument.partition("=")
    dotted, _, key = spelled(name).rpartition(".")
    foreign = name.startswith("--") and dotted and key in ANSWERS and f"{dotted}.{key}" not in fields()
    return option(key) + equals + value if foreign else argument


def _add_setting(group: argparse._ArgumentGroup, name: str, field: FieldInfo, defaults: Config | None) -> None:
    section, _, key = name.partition(".")
    text = argparse.SUPPRESS
    if defaults is not None:
        value = shown(getattr(getattr(defaults, section), key))
        text = f"{described(name)} ({wanted(field)}) [{value}]".replace("%", "%%")
    shown_names = [name, *(each for each, setting in SHORT.items() if setting == name)]
    hidden = [each for each in short_names(name) if each not in shown_names]
    accumulates = is_list(field.annotation) or is_table(field.annotation)
    for names, shown_text in ((shown_names, text), (hidden, argparse.SUPPRESS)):
        if names:
            group.add_argument(
                *map(option, names),
                dest=name,
                metavar=key.upper(),
                action="append" if accumulates else "store",
                help=shown_text,
            )


def _read(name: str, given: object) -> object:
    if not isinstance(given, list):
        return None if given == NONE else given
    if not is_table(fields()[name].annotation):
        return ",".join(given)
    table: dict[str, object] = {}
    for text in given:
        try:
            table |= read_table(text)
        except ValueError as error:
            raise ConfigurationError(f"{name} {error}") from None
    return table


def _flags() -> set[str]:
    """Returns the options that may be given without a value."""
    settings = [name for name, field in fields().items() if is_flag(field)]
    names = [name for setting in settings for name in (setting, *short_names(setting))]
    return {option(name) for name in (*names, *(name for name, alias in ALIASES.items() if alias.is_flag))}


def _several_values() -> dict[str, Callable[[str], bool]]:
    """Returns the options that may be followed by several values, with the test of each further one."""
    tables = [name for name, field in fields().items() if is_table(field.annotation)]
    tests = {name: lambda text: "=" in text for name in tables} | {"policy.hidden_sizes": str.isdigit}
    foreign = {name: tests[alias.setting] for name, alias in ALIASES.items() if alias.setting in tests}
    own = {name: test for setting, test in tests.items() for name in (setting, *short_names(setting))}
    return {option(name): test for name, test in (own | foreign).items()}


def _purpose(field: FieldInfo) -> str:
    return (getattr(field.annotation, "__doc__", None) or "").partition("] ")[2]


def shown(value: object) -> str:
    """Returns the value of a setting as it may be written in an option."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return ",".join(f"{name}={each}" for name, each in value.items()) or "empty"
    if isinstance(value, (tuple, list)):
        return ",".join(map(str, value)) or "empty"
    return f"{value:,}".replace(",", "_") if isinstance(value, int) and value >= 10_000 else str(value)
