"""The option parser of all commands."""

import argparse
from typing import Any, NoReturn

from penstock.errors import ConfigurationError
from penstock.machine.spelling import question, similar


class OneLineParser(argparse.ArgumentParser):
    """A parser that raises errors as one-line `ConfigurationError`s.

    Option names may contain underscores, as settings do in files and messages. An option with a single value may not
    be given twice with different values.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for action in (None, "store"):
            self.register("action", action, _StoreOnce)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parses arguments as argparse does, after replacing underscores in option names by dashes."""
        return super().parse_known_args(None if args is None else [with_dashes(each) for each in args], namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses arguments, all of which must be known."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self._refuse(unknown[0])
        return parsed

    def suggestion(self, name: str) -> str:
        """Returns a question that suggests an option for an unknown one, or ""."""
        return question(self.similar_option(name))

    def similar_option(self, name: str, marks: str = "--") -> str | None:
        """Returns the option that is closest to a name, of those that contain all `marks`; None if none is close."""
        return similar(name, [each for each in self._option_string_actions if each.startswith("--") and marks in each])

    def _refuse(self, argument: str) -> NoReturn:
        name = argument.partition("=")[0]
        if not argument.startswith("-"):
            self.error(f"unexpected argument {argument!r}")
        meant = self.suggestion(name)
        if not meant:
            self.error(f"unknown option {name}")
        raise ConfigurationError(f"unknown option {name}; {meant}")

    def error(self, message: str) -> NoReturn:
        """Raises `ConfigurationError`."""
        raise ConfigurationError(f"{message}; `{self.prog} --help` lists all options")


class _StoreOnce(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None) -> None:
        earlier = getattr(namespace, self.dest, self.default)
        if earlier not in (self.default, values):
            raise ConfigurationError(f"{self.dest} is given as {earlier!r} and as {values!r}; give it once")
        setattr(namespace, self.dest, values)


def with_dashes(argument: str) -> str:
    """Returns an argument with dashes in place of underscores if it is the name of an option."""
    name, equals, value = argument.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if name.startswith("--") else argument
