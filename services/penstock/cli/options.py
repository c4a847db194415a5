"""Combines the command line, environment variables, files and presets into one `Config`.

In descending precedence: options, `PENSTOCK__SECTION__KEY` variables, the file of --config, the preset (--preset, or
`PENSTOCK_PRESET`), the defaults.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from penstock.cli.help_page import help_page
from penstock.cli.named import chosen_run
from penstock.cli.one_line_parser import OneLineParser
from penstock.cli.setting_options import VERBOSE, SettingsParser, add_settings, expanded, values_of
from penstock.config import Config, load_toml, read_recorded
from penstock.errors import ConfigurationError
from penstock.local import variables
from penstock.machine import installation
from penstock.presets import NO_PRESET, Configured, configured, preset_values
from penstock.process.service import PRESET_VARIABLE
from penstock.runs.folder import RunFolder

_NEWEST = ""
"""Value of --resume without a run."""

_ENVIRONMENT = "environment, such as CartPole-v1, ALE/Pong-v5, my_module:MyEnv or my_file.py:MyEnv"


@dataclass(frozen=True, slots=True)
class Options:
    """A parsed command line.

    Attributes:
        config: All settings.
        preset: Name of the preset that the settings are based on; None: the defaults or a resumed run.
        resume: Folder of the run to resume; None: no run is resumed.
        operand: The positional argument; empty if there is none.
        notes: Lines to print about units, for names of other libraries.
        verbose: Whether to show everything about a run that is trained.
        more: Values of the command's own options.
    """

    config: Config
    preset: str | None
    resume: Path | None
    operand: str = ""
    notes: tuple[str, ...] = ()
    verbose: bool = False
    more: argparse.Namespace = field(default_factory=argparse.Namespace)


def settings_of(folder: Path) -> Path:
    """Returns the file with a run's settings. Raises `ConfigurationError` if `folder` is not one."""
    file = RunFolder(folder).config
    if not file.exists():
        raise ConfigurationError(
            f"{folder} is not a run folder, because it has no config.toml; choose the folder of a run that has begun"
        )
    return file


def parse(
    prog: str,
    description: str,
    arguments: Sequence[str],
    *,
    trains: bool,
    operand: str = "",
    more: argparse.ArgumentParser | None = None,
    settings_of: Callable[[Path], Path] = settings_of,
    file_is_data: bool = False,
    recorded: Path | None = None,
) -> Options:
    """Parses the arguments after a command's name. Raises `ConfigurationError`, in one line, if a setting is wrong.

    Args:
        prog: Name of the command, in messages and in --help.
        description: Its description there.
        arguments: The arguments.
        trains: Whether it is a command that trains, which takes an environment, selects its preset and resumes runs.
        operand: Name of the optional positional argument of another command; empty: there is none.
        more: Options of this command alone, without --help.
        settings_of: Returns the file with the settings of a run to resume.
        file_is_data: Whether the file of --config may not name code, as the settings of a run to resume may not.
        recorded: File with the settings of a run, which the arguments override; None: none.
    """
    given = expanded(arguments)
    own = _own_options(operand="ENV" if trains else operand, resumes=trains, more=[more] if more else [])
    parser = SettingsParser(prog=prog, description=description, allow_abbrev=False, add_help=False, parents=[own])
    add_settings(parser, None)
    named = parser.parse_args(given)
    combined = _combined(named, trains=trains, settings_of=settings_of, file_is_data=file_is_data, recorded=recorded)
    options = replace(combined, more=named, verbose=trains and named.verbose)
    if named.help or named.help_all:
        print(help_page(prog, description, own, options.config, trains=trains, whole=named.help_all), end="")
        raise SystemExit(0)
    return options


def _own_options(*, operand: str, resumes: bool, more: Sequence[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Returns a parser of the options that are not settings."""
    parser = OneLineParser(add_help=False, parents=more)
    if operand == "ENV":
        parser.add_argument("operand", metavar="ENV", nargs="?", default="", help=_ENVIRONMENT)
    elif operand:
        parser.add_argument("operand", metavar=operand, nargs="?", default="")
    parser.add_argument("--preset", metavar="NAME", help="preset to start from; none: the defaults")
    parser.add_argument("--config", metavar="FILE", type=Path, help="TOML file with settings")
    if resumes:
        parser.add_argument(
            "--resume", metavar="RUN", nargs="?", const=_NEWEST, help="resume a run, by default the newest one"
        )
        parser.add_argument(
            "--trust-code",
            action="store_true",
            help="import the modules and files that the settings of that run name (docs/security.md)",
        )
        parser.add_argument(
            VERBOSE,
            action="store_true",
            help="show the ages and priorities of the data as well, and all results at the end",
        )
    parser.add_argument("-h", "--help", action="store_true", help="show this help and exit")
    parser.add_argument("--help-all", action="store_true", help="show all settings and exit")
    return parser


def _of_run(file: Path, *layers: dict[str, object]) -> tuple[Configured, list[str]]:
    """Returns the settings that a run's file records, overridden by layers, and notes about settings of earlier
    releases.

    Raises `ConfigurationError` if the file can't be read or a setting is wrong, and names the file if that is its own.
    """
    recorded = read_recorded(file)
    try:
        found = configured(recorded.values, *layers, preset=NO_PRESET)
    except ConfigurationError as error:
        try:
            configured(recorded.values, preset=NO_PRESET)
        except ConfigurationError:
            raise ConfigurationError(
                f"{error}; {file} records it: give another value as an option, or correct the file"
            ) from None
        raise
    return found, [note for note in (recorded.removed, recorded.unset) if note]


def _instead_of_presets(resume: Path) -> str:
    """Returns the alternative to a preset for a resumed run. Under Docker Compose, the preset is always set."""
    if installation.kind() == "compose":
        return f"resume the run with {installation.how_to_resume('', str(resume))}, with changed settings in .env"
    return "change individual settings with options"


def _combined(
    named: argparse.Namespace,
    *,
    trains: bool,
    settings_of: Callable[[Path], Path],
    file_is_data: bool,
    recorded: Path | None,
) -> Options:
    name: str | None = getattr(named, "resume", None)
    resume = None if name is None else chosen_run(None if name == _NEWEST else name)
    environment = {"env_id": named.operand} if trains and named.operand else {}
    layers = [variables.settings_of_variables(), environment, values_of(named)]
    preset: str | None = os.environ.get(PRESET_VARIABLE) if named.preset is None else named.preset
    if resume is not None:
        if named.config or preset:
            raise ConfigurationError(
                "--resume uses the settings of the run and can't be combined with --config, --preset or"
                f" {PRESET_VARIABLE}; {_instead_of_presets(resume)}"
            )
        layers.append({"run": {"dir": str(resume)}})
        of_run = settings_of(resume)
        resumed, notes = _of_run(of_run, *layers)
        config = resumed.config if named.trust_code else resumed.config.as_data(of_run, *layers)
        return Options(config, None, resume, notes=(*notes, *resumed.notes))
    if recorded is not None:
        if named.config or named.preset:
            raise ConfigurationError(
                f"the settings come from {recorded}, and can't be combined with --config or --preset; change"
                " individual settings with options"
            )
        kept, notes = _of_run(recorded, *layers)
        return Options(kept.config, None, None, getattr(named, "operand", ""), (*notes, *kept.notes))
    file = load_toml(named.config) if named.config else {}
    # Only training selects a preset by the environment; services are given the settings that they share.
    chosen = configured(file, *layers, preset=preset if trains or preset is not None else NO_PRESET)
    config = chosen.config
    if file and file_is_data and not named.trust_code:
        config = config.as_data(named.config, *layers, preset_values(chosen.preset) if chosen.preset else {})
    return Options(config, chosen.preset, None, getattr(named, "operand", ""), chosen.notes)
