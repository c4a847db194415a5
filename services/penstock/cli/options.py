"""Combines the command line, environment variables, files and presets into one `Config`.

In descending precedence: options, `PENSTOCK__SECTION__KEY` variables, the file of --config, the preset (--preset, or
`PENSTOCK_PRESET`), the defaults.
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic_settings import CliSettingsSource, SettingsError

from penstock.cli.one_line_parser import OneLineParser
from penstock.config import Config, build, load_toml, merge
from penstock.config.setting_types import is_table, read_scalar
from penstock.errors import ConfigurationError
from penstock.local import variables
from penstock.presets import NO_PRESET, configured, preset_names
from penstock.run_folder import RunFolder

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
    """A parsed command line.

    Attributes:
        config: All settings.
        preset: Name of the preset that the settings are based on; None: the defaults or a resumed run.
        resume: Folder of the run to resume; None: no run is resumed.
        operand: The positional argument; empty if there is none.
    """

    config: Config
    preset: str | None
    resume: Path | None
    operand: str = ""


def parse(prog: str, description: str, arguments: Sequence[str], *, trains: bool, operand: str = "") -> Options:
    """Parses the arguments after a command's name. Raises `ConfigurationError`, in one line, if a setting is wrong.

    `prog` and `description` name the command in messages and in --help. `trains` is for `penstock train`, which selects
    presets and resumes runs. `operand` names the optional positional argument; empty: there is none.
    """
    parser = OneLineParser(prog=prog, description=description, allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE", type=Path, help="TOML file with settings")
    parser.add_argument("--preset", help=f"preset to start from: {', '.join([*preset_names(), NO_PRESET])}")
    if operand:
        parser.add_argument("operand", metavar=operand, nargs="?", default="")
    if trains:
        parser.add_argument("--resume", metavar="RUN", type=Path, help="resume the run in this folder")
    options, named = _from_options(parser, arguments)
    resume: Path | None = getattr(named, "resume", None)
    layers = [_with_scalars(variables.settings_of_variables()), _with_scalars(options)]
    preset: str | None = os.environ.get(variables.PRESET) if named.preset is None else named.preset
    if resume is not None:
        if named.config or preset:
            raise ConfigurationError(
                "--resume uses the settings of the run and can't be combined with --config, --preset or"
                " PENSTOCK_PRESET; change individual settings with options"
            )
        run: dict[str, object] = {"run": {"dir": str(resume)}}
        return Options(build(merge(load_toml(settings_of(resume)), *layers, run)), None, resume)
    file = load_toml(named.config) if named.config else {}
    # Only training selects a preset by the environment; services are given the settings that they share.
    chosen = configured(merge(file, *layers), preset=preset if trains or preset is not None else NO_PRESET)
    return Options(chosen.config, chosen.preset, None, getattr(named, "operand", ""))


def settings_of(folder: Path) -> Path:
    """Returns the file with a run's settings. Raises `ConfigurationError` if the folder is not that of a run."""
    file = RunFolder(folder).config
    if not file.exists():
        raise ConfigurationError(
            f"{folder} is not a run folder, because it has no config.toml; choose one that `penstock train` created"
        )
    return file


def _from_options(parser: OneLineParser, arguments: Sequence[str]) -> tuple[dict[str, object], argparse.Namespace]:
    """Returns the nested values of the options that are settings, and all parsed options."""
    try:
        source: CliSettingsSource[argparse.ArgumentParser] = CliSettingsSource(
            Config,  # type: ignore[arg-type]
            cli_parse_args=list(arguments),
            root_parser=parser,
            cli_kebab_case=True,
            cli_avoid_json=True,
            cli_hide_none_type=True,
            cli_shortcuts=_SHORTCUTS,
        )
        return source(), parser.parse_args(list(arguments))
    except SettingsError as error:
        parser.error(str(error))


def _with_scalars(values: dict[str, object]) -> dict[str, object]:
    """Returns nested values of options or variables with the text in tables converted to scalars."""
    read = dict(values)
    for section, settings in values.items():
        fields = getattr(Config.model_fields[section].annotation, "model_fields", {})
        if isinstance(settings, dict):
            tables = {key: value for key, value in settings.items() if key in fields and isinstance(value, dict)}
            read[section] = settings | {
                key: {name: read_scalar(text) for name, text in table.items()}
                for key, table in tables.items()
                if is_table(fields[key].annotation)
            }
    return read
