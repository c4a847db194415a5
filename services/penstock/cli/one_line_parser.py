"""The option parser of all commands."""

import argparse
from typing import Any, NoReturn

from penstock.errors import ConfigurationError


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
        return super().parse_known_args(None if args is None else [_with_dashes(each) for each in args], namespace)

    def error(self, message: str) -> NoReturn:
        """Raises `ConfigurationError`."""
        raise ConfigurationError(f"{message}; `{self.prog} --help` lists all options")


class _StoreOnce(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None) -> None:
        earlier = getattr(namespace, self.dest, self.default)
        if earlier not in (self.default, values):
            parser.error(f"{'/'.join(self.option_strings)} is given as {earlier!r} and as {values!r}; give it once")
        setattr(namespace, self.dest, values)


def _with_dashes(argument: str) -> str:
    name, equals, value = argument.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if name.startswith("--") else argument
