"""Nested values of several sources: files, and the precedence of one source over another."""

import tomllib
from pathlib import Path

from penstock.config import alternatives
from penstock.config.names import spelled
from penstock.errors import ConfigurationError
from penstock.machine.environment_arguments import read_tables
from penstock.machine.system_errors import in_words

_ARGUMENTS = ("kwargs", "training_kwargs", "variants", "wrappers")
"""Keys of the settings that hold arguments of environments and of their wrappers."""


def load_toml(path: Path) -> dict[str, object]:
    """Returns the nested values of a TOML file. Raises `ConfigurationError` if it can't be read or parsed."""
    try:
        return parse_toml(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"can't read the configuration {path}: {in_words(error, path)}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not valid TOML: {error}") from None
    except ValueError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def parse_toml(text: str) -> dict[str, object]:
    """Returns the nested values of TOML. Raises `ValueError` if it can't be parsed."""
    return {name: _with_arguments(name, value) for name, value in tomllib.loads(text).items()}


def _with_arguments(name: str, value: object) -> object:
    """Returns a section or a setting, with the arguments of environments in place of their form in a file."""
    if spelled(name) in _ARGUMENTS:
        return read_tables(value)
    return {key: _with_arguments(key, each) for key, each in value.items()} if isinstance(value, dict) else value


def merge(*layers: dict[str, object]) -> dict[str, object]:
    """Merges nested values, later layers over earlier ones. Tables are merged, other values are replaced.

    A layer that gives a quantity in one unit also replaces it in others (`alternatives`).
    """
    merged: dict[str, object] = {}
    for layer in layers:
        for section, settings in layer.items():
            below = merged.get(section)
            if isinstance(below, dict) and isinstance(settings, dict):
                merged[section] = _merged_tables(alternatives.kept(section, below, settings), settings)
            else:
                merged[section] = settings
    return merged


def _merged_tables(below: dict[str, object], above: dict[str, object]) -> dict[str, object]:
    merged = dict(below)
    for key, value in above.items():
        under = below.get(key)
        merged[key] = _merged_tables(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged
