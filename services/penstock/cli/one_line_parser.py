"""How all commands read their options."""

import argparse
from typing import NoReturn

from penstock.errors import ConfigurationError


class OneLineParser(argparse.ArgumentParser):
    """A parser whose complaints are errors of ours, on one line."""

    def error(self, message: str) -> NoReturn:
        """Raises `ConfigurationError`."""
        raise ConfigurationError(f"{message}; `{self.prog} --help` lists all options")
