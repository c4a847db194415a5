"""What a command means: a run by name or the newest one, settings by file or preset, an environment by its id."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from penstock.config import Config, load_toml, read_recorded
from penstock.errors import ConfigurationError
from penstock.local import variables
from penstock.machine.spelling import question, similar
from penstock.presets import configured, preset_environments, preset_names
from penstock.process.service import PRESET_VARIABLE
from penstock.runs.folder import RunFolder
from penstock.runs.known import newest_run, run_named


def chosen_run(name: str | None, has: Callable[[RunFolder], bool] = lambda folder: True, what: str = "") -> Path:
    """Returns the path of a run; None: the newest one that meets the needs of the command, which is printed.

    Messages say `what` the run `has`, such as "a checkpoint". Raises as `newest_run` and `run_named`.
    """
    if name is not None:
        return run_named(name)
    path, skipped = newest_run(has, what)
    # Not on the standard output, which may be parsed.
    print(f"the newest run{f' with {what}' if skipped else ''} is {path}", file=sys.stderr)
    if skipped:
        print(f"skipped, without {what}: {', '.join(map(str, skipped))}", file=sys.stderr)
    return path


def settings_named(name: str) -> Config:
    """Returns the settings of a file, as `penstock train --config` reads it, or of a preset.

    Raises `ConfigurationError` if there is no such file or preset, or a setting is wrong.
    """
    own, path = variables.settings_of_variables(), Path(name)
    if path.suffix == ".toml" or path.is_file():
        return configured(load_toml(path), own, preset=os.environ.get(PRESET_VARIABLE)).config
    if name in preset_names():
        return configured(own, preset=name).config
    close, known = question(similar(name, preset_names())), ", ".join(preset_names())
    raise ConfigurationError(f"there is no file and no preset {name!r}; {close or f'the presets are {known}'}")


def note_removed_settings(folder: RunFolder) -> None:
    """Prints a line about settings of an earlier release that a run records, which the command does not need."""
    if folder.config.exists() and (note := read_recorded(folder.config).removed):
        print(note, file=sys.stderr)


def add_code_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that allow the code that a checkpoint or a run names."""
    parser.add_argument("--policy.module", dest="module", metavar="NAME", help="module of the policy, if it has one")
    parser.add_argument(
        "--trust-code", action="store_true", help="import the modules and files that the run names (docs/security.md)"
    )


def add_node_options(group: argparse._ArgumentGroup) -> None:
    """Adds the options that say how nodes of a cluster run Penstock."""
    group.add_argument(
        "--setup",
        metavar="LINE",
        action="append",
        default=[],
        help="shell line that prepares each node, such as 'module load cuda'; may be repeated",
    )
    group.add_argument(
        "--penstock", metavar="COMMAND", help="command that runs Penstock on the nodes [the Python that runs this]"
    )


def add_sbatch_option(group: argparse._ArgumentGroup, name: str, jobs: str, example: str) -> None:
    """Adds an option that passes options of sbatch on to some jobs."""
    group.add_argument(
        f"--{name}",
        metavar="=OPTION",
        action="append",
        default=[],
        help=f"option of sbatch for {jobs}, as in --{name}={example}; may be repeated",
    )


def with_known_environment(config: Config) -> tuple[Config, str]:
    """Returns the configuration with the registered id of its environment, and a line for the user if it was not given.

    Raises `ConfigurationError` if no installed package can have the environment.
    """
    # Loads Gymnasium, which a service that parses the same options may not need.
    from penstock.acting.environments.ids import checked_id

    given = config.environment.id
    # Modules that are imported first may register any id.
    found = given if config.environment.imports else checked_id(given, preset_environments())
    if found == given:
        return config, ""
    return config.changed({"environment": {"id": found}}), f"{given} is registered as {found}, which is used"
