"""The settings of a file that name code to import, which only a process's own settings may do.

A process's own settings are its options, its variables, the presets, what Python code gives, and the file of --config
of a command that trains or serves. A run's `config.toml`, and the file of `penstock doctor --config`, are data: the
code that they name is imported only if an own setting names it too, or the user trusts them.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.config.code_names import CodeName, code_name
from penstock.config.sections import Sections
from penstock.config.settings.environment import EnvironmentConfig
from penstock.config.settings.policy import PolicyConfig
from penstock.errors import ForeignCode
from penstock.machine.environment_names import INTERFACES, split
from penstock.machine.foreign_errors import shortened

_PLACE = re.compile(r"[/\\:.]")
"""Characters of a file's path, or of a module's name with an object in it. Environments may import such an argument."""


@functools.cache
def code_settings() -> Mapping[str, CodeName]:
    """Returns the settings whose types say that they name code, by name."""
    sections: Mapping[str, Any] = {name: each.annotation for name, each in Sections.model_fields.items()}
    return {
        f"{section}.{key}": mark
        for section, of in sections.items()
        for key, setting in of.model_fields.items()
        if (mark := code_name(setting.annotation, *setting.metadata)) is not None
    }


_ON_END, _COPY_TO = "run.on_end", "checkpoint.copy_to"
_OF_ENVIRONMENTS = tuple(
    f"environment.{key}" for key in ("id", "imports", "python", "kwargs", "training_kwargs", "variants", "wrappers")
)

CODE = (*_OF_ENVIRONMENTS, *code_settings(), _COPY_TO, _ON_END)
"""Settings that may name code."""

_HOW_TO_TRUST = (
    "if you trust that code, add --trust-code (in Python trust_code=True), or give these settings yourself, as options"
    " such as --env-id, --env-import and --policy.module"
)


@dataclass(frozen=True, slots=True)
class FileNames:
    """The settings of a configuration that a file alone names, and that name code. They are not part of its value.

    Attributes:
        file: Path of the file.
        names: Names of the settings, and of arguments as environment.kwargs.NAME.
    """

    file: str = field(default="", compare=False)
    names: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def all_in(cls, file: Path, settings: Sections) -> "FileNames":
        """Returns the settings that name code in a configuration that this file gives alone."""
        return cls(str(file), frozenset(_all_code_in(settings)))

    def without(self, own: Mapping[str, object]) -> "FileNames":
        """Returns the names of code that settings of the process, nested by section, do not give."""
        return FileNames(self.file, self.names - frozenset(_given(own)))

    def refuse(self, settings: Sections) -> None:
        """Raises `ForeignCode` with the file and these settings, if there are any. Nothing is imported."""
        if self.names:
            found = _all_code_in(settings)
            named = ", ".join(f"{name} {found[name]!r}" for name in sorted(self.names & found.keys()))
            raise ForeignCode(f"{self.file} names code that would run: {shortened(named)}", _HOW_TO_TRUST)


def imported_by(settings: Sections) -> dict[str, object]:
    """Returns the values that name code which a process of a run imports, by the names of `FileNames`."""
    named = {setting: ",".join(names) for setting, names in named_code(settings).items()}
    return {**code_in(settings.environment, settings.policy), **named}


def code_of(settings: Sections) -> dict[str, dict[str, object]]:
    """Returns the values of `code_settings`, by section and name."""
    found: dict[str, dict[str, object]] = {}
    for setting in code_settings():
        section, _, key = setting.partition(".")
        found.setdefault(section, {})[key] = getattr(getattr(settings, section), key)
    return found


def named_code(settings: Sections) -> dict[str, tuple[str, ...]]:
    """Returns the names of classes and functions of users in the settings that are for them (`CodeName`)."""
    found = {}
    for section, values in code_of(settings).items():
        for key, value in values.items():
            names = value if isinstance(value, tuple) else (value,)
            # What Penstock has itself, such as a rule or a tracker, has no module.
            if own := tuple(name for name in names if name and split(name)[0]):
                found[f"{section}.{key}"] = own
    return found


def code_in(environment: EnvironmentConfig, policy: PolicyConfig) -> dict[str, object]:
    """Returns the values that name code for acting, by the names of `FileNames`."""
    found: dict[str, object] = {}
    if split(environment.id)[0] not in ("", *INTERFACES):
        found["environment.id"] = environment.id
    if environment.imports:
        found["environment.imports"] = ",".join(environment.imports)
    if environment.python is not None:
        found["environment.python"] = environment.python
    if policy.module is not None:
        found["policy.module"] = policy.module
    for setting in ("kwargs", "training_kwargs"):
        for name, value in getattr(environment, setting).items():
            if (text := next(_places(value), None)) is not None:
                found[f"environment.{setting}.{name}"] = text
    for setting in ("variants", "wrappers"):
        if (text := next(_places(getattr(environment, setting)), None)) is not None:
            found[f"environment.{setting}"] = text
    return found


def _all_code_in(settings: Sections) -> dict[str, object]:
    """Returns the values of `imported_by`, and the command at the end of a run and the target of copies.

    No process imports these, but one runs a command, and the other sends data to others.
    """
    given = {_ON_END: settings.run.on_end, _COPY_TO: settings.checkpoint.copy_to}
    named = {name: value for name, value in given.items() if value is not None}
    return imported_by(settings) | named


def _places(value: object) -> Iterator[str]:
    """Yields the texts in an argument that may be a file or a module."""
    if isinstance(value, str):
        if _PLACE.search(value):
            yield value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _places(name)
            yield from _places(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _places(each)


def _given(own: Mapping[str, object]) -> Iterator[str]:
    for section, settings in own.items():
        for key, value in settings.items() if isinstance(settings, Mapping) else ():
            yield f"{section}.{key}"
            if isinstance(value, Mapping):
                yield from (f"{section}.{key}.{name}" for name in value)
