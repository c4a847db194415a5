"""The settings that a run's folder records, which an earlier release may have written.

Commands that only read a run check the few settings that they use, so that no change of another setting makes a run
unreadable. A run that is resumed keeps its settings: those that were removed or renamed are converted, with a note for
the user, and values that this release refuses are errors.
"""

from pathlib import Path
from typing import NamedTuple

import pydantic

from penstock.config.layers import load_toml, merge
from penstock.config.messages import explain
from penstock.config.names import in_sections
from penstock.config.removed import BEFORE, REMOVED, reason_of
from penstock.config.sections import Sections, fields, setting_names
from penstock.errors import ConfigurationError
from penstock.machine.environment_arguments import NONE

ENVIRONMENT = tuple(
    f"environment.{key}"
    for key in (
        "id",
        "kwargs",
        "variants",
        "pad_spaces",
        "show_variant",
        "imports",
        "python",
        "wrappers",
        "vectorization",
        "workers",
        "frame_stack",
        "action_masks",
        "info_metrics",
    )
)
"""Settings from which the environment of a run is made."""

LIMITS = tuple(
    f"run.{key}" for key in ("total_steps", "total_updates", "total_episodes", "total_minutes", "stop_at_return")
)
"""Settings that end a run."""

OF_ONE_RUN = ("run.seed", "run.dir", "run.on_end", "checkpoint.copy_to")
"""Settings in which runs may differ that count as repetitions."""


_OF_EVERY_RUN = Sections.model_fields.keys() - {"security", "tracking"}
"""Sections in the file of every run, since the first release."""


class Recorded(NamedTuple):
    """Settings of a run.

    Attributes:
        values: Nested values in the names of this release; unknown settings remain.
        removed: Line for the user about settings that this release does not have; empty if there are none.
        unset: Line for the user about settings that the run lacks and that keep their former effect (`BEFORE`); empty
            if there are none.
    """

    values: dict[str, object]
    removed: str
    unset: str


def read_recorded(file: Path) -> Recorded:
    """Reads all settings of a run from its file. Raises `ConfigurationError` if it can't be read or parsed."""
    named = in_sections(load_toml(file))
    values = {**named.sections, **dict(named.questions)}
    tables: dict[str, dict[str, object]] = {
        name: dict(table) for name, table in values.items() if isinstance(table, dict)
    }
    removed = [name for name in REMOVED if _has(tables, name)]
    for name in removed:
        value, renamed = tables[_section(name)].pop(_key(name)), REMOVED[name].renamed
        if renamed and not _has(tables, renamed):
            _put(tables, renamed, value)
    # A file that a user wrote may leave out unchanged settings, and then means the defaults.
    unset = [name for name in BEFORE if not _has(tables, name)] if tables.keys() >= _OF_EVERY_RUN else []
    for name in unset:
        _put(tables, name, BEFORE[name])
    gone = "; ".join(f"{name} ({reason_of(name)})" for name in removed)
    kept = ", ".join(f"{name} {str(BEFORE[name]).lower()}" for name in unset)
    return Recorded(
        {**values, **tables},
        f"{file} has settings of an earlier release: {gone}" if removed else "",
        f"{file} is of an earlier release, whose behaviour it keeps: {kept}" if unset else "",
    )


def read_settings(file: Path, *names: str, changes: dict[str, object] | None = None) -> Sections:
    """Reads these settings, as section.key, of a run's file and checks no others, which have their defaults.

    `changes` are nested values of higher precedence. Raises `ConfigurationError` if the file can't be read, or one of
    the settings is invalid.
    """
    chosen = {
        section: {key: value for key, value in table.items() if f"{section}.{key}" in names}
        for section, table in read_recorded(file).values.items()
        if section in Sections.model_fields and isinstance(table, dict)
    }
    try:
        return Sections(**merge(chosen, changes or {}))  # type: ignore[arg-type]
    except pydantic.ValidationError as error:
        raise ConfigurationError(f"{explain(error, fields())}; {file} records it") from None


def texts(file: Path) -> dict[str, str]:
    """Returns the text of every setting of a run, as section.key, valid or not; those not recorded have their default.

    Raises `ConfigurationError` if the file can't be read or parsed.
    """
    return texts_of(read_recorded(file).values)


def texts_of(recorded: dict[str, object]) -> dict[str, str]:
    """Returns the text of every setting as `texts` does, from the nested values of a file; of {}: the defaults."""
    values = merge(Sections().model_dump(mode="json"), recorded)
    given = {
        f"{section}.{key}": "none" if value in (None, NONE) else str(value)
        for section, table in values.items()
        if isinstance(table, dict)
        for key, value in table.items()
    }
    # A quantity in one unit has removed those in others.
    return dict.fromkeys(setting_names(), "none") | given


def _has(tables: dict[str, dict[str, object]], name: str) -> bool:
    return _key(name) in tables.get(_section(name), {})


def _put(tables: dict[str, dict[str, object]], name: str, value: object) -> None:
    tables.setdefault(_section(name), {})[_key(name)] = value


def _section(name: str) -> str:
    return name.partition(".")[0]


def _key(name: str) -> str:
    return name.partition(".")[2]
