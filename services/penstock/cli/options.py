"""From the command line, the environment, files and presets to one `Config`.

Strongest first: options, `PENSTOCK__SECTION__KEY` variables, the file of --config, the preset, the defaults.
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic_settings import CliSettingsSource, EnvSettingsSource, SettingsError

from penstock.cli.one_line_parser import OneLineParser
from penstock.config import Config, build, load_toml, merge, preset_for, preset_names, preset_values
from penstock.errors import ConfigurationError
from penstock.run_folder import RunFolder

ENVIRONMENT_PREFIX = "PENSTOCK__"

_SHORTCUTS = {
    "environment.id": "env-id",
    "environment.imports": "env-import",
    "run.seed": "seed",
    "run.total-steps": "total-steps",
    "run.stop-at-return": "stop-at-return",
    "run.dir": "run-dir",
    "train.actors": "actors",
    "actor.environments": "envs-per-actor",
}


@dataclass(frozen=True, slots=True)
class Options:
    """What a command line came to.

    Attributes:
        config: All settings.
        preset: The preset that is underneath, if one is.
        resume: The run's folder to go on with, if one was named.
        operand: The one word that is no option; empty: none.
    """

    config: Config
    preset: str | None
    resume: Path | None
    operand: str = ""


def parse(prog: str, description: str, arguments: Sequence[str], *, trains: bool, operand: str = "") -> Options:
    """Reads a command line.

    Args:
        prog: The command, for messages.
        description: For --help.
        arguments: After the command's name.
        trains: Whether this is `penstock train`, which picks presets and resumes runs.
        operand: What the one word is called that may be given without being an option; empty: none may.

    Raises:
        ConfigurationError: Something is unknown or wrong, in one line.
    """
    parser = OneLineParser(prog=prog, description=description, allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE", type=Path, help="a TOML file with settings")
    parser.add_argument("--preset", help=f"settings to start from: {', '.join(preset_names())}")
    if operand:
        parser.add_argument("operand", metavar=operand, nargs="?", default="")
    if trains:
        parser.add_argument("--resume", metavar="RUN", type=Path, help="go on with the run in this folder")
    source: CliSettingsSource[argparse.ArgumentParser] = CliSettingsSource(
        Config,
        cli_parse_args=list(arguments),
        root_parser=parser,
        cli_kebab_case=True,
        cli_avoid_json=True,
        cli_hide_none_type=True,
        cli_shortcuts=_SHORTCUTS,
    )
    named = parser.parse_args(list(arguments))
    resume: Path | None = getattr(named, "resume", None)
    layers = [_from_environment(), source()]
    if resume is not None:
        if named.config or named.preset:
            raise ConfigurationError(
                "a run is resumed with its own settings, without --config or --preset; change single ones by options"
            )
        return Options(_resumed(resume, merge(*layers)), None, resume)
    file = load_toml(named.config) if named.config else {}
    preset = named.preset or (_fitting_preset(merge(file, *layers)) if trains else None)
    below = preset_values(preset) if preset else {}
    return Options(build(merge(below, file, *layers)), preset, None, getattr(named, "operand", ""))


def _from_environment() -> dict[str, object]:
    sections = Config.model_fields
    for name in os.environ:
        section = name.removeprefix(ENVIRONMENT_PREFIX).partition("__")[0].lower()
        if name.startswith(ENVIRONMENT_PREFIX) and section not in sections:
            raise ConfigurationError(f"the variable {name} names no section; there are: {', '.join(sections)}")
    source = EnvSettingsSource(Config)
    try:
        return source()
    except SettingsError:
        name, text = _unreadable(source)
        raise ConfigurationError(
            f'the variable {name.upper()} holds a table, which must be JSON such as {{"size": 5}}, not {text!r}'
        ) from None


def _unreadable(source: EnvSettingsSource) -> tuple[str, str | None]:
    """The variable that can't be read, and its text: the error itself names none."""
    for name, text in dict(source.env_vars).items():
        source.env_vars = {name: text}
        try:
            source()
        except SettingsError:
            return name, text
    raise AssertionError("every variable can be read by itself")


def _fitting_preset(values: dict[str, object]) -> str | None:
    """The preset for the environment that was asked for; without one, CartPole's, to have something to show."""
    environment = values.get("environment")
    identity = environment.get("id") if isinstance(environment, dict) else None
    return preset_for(identity) if isinstance(identity, str) else preset_for(Config().environment.id)


def _resumed(folder: Path, values: dict[str, object]) -> Config:
    run = RunFolder(folder)
    if not run.config.exists():
        raise ConfigurationError(
            f"{folder} is no run's folder: it has no config.toml; name one that `penstock train` made"
        )
    return build(merge(load_toml(run.config), values, {"run": {"dir": str(folder)}}))
