"""Imports of modules of Penstock by commands, with an error in one line if a package or a variable is in the way."""

import contextlib
import os
from collections.abc import Iterator

from penstock.errors import ConfigurationError
from penstock.machine import extras, library_variables
from penstock.machine.foreign_errors import describe
from penstock.machine.module_imports import uncollected


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Imports modules of Penstock in the block.

    Raises `ConfigurationError` if that fails because torch is missing or inherited variables may be why.
    """
    try:
        with uncollected():
            yield
    except (ImportError, SyntaxError, AttributeError, TypeError, ValueError) as error:
        if extras.missing_module(error) == "torch" and extras.missing("torch"):
            raise extras.lacking("this command", "torch") from error
        suspects = library_variables.suspects(os.environ)
        if not suspects:
            raise
        raise ConfigurationError(
            f"can't import the libraries of Penstock: {describe(error)}; they work without variables that concern other"
            f" programs, so unset {' or '.join(suspects)}"
        ) from error
