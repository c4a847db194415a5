"""The configuration of a run."""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pydantic
import tomli_w

from penstock.config.checks import first_conflict
from penstock.config.foreign_code import FileNames, imported_by
from penstock.config.layers import load_toml, merge
from penstock.config.messages import explain
from penstock.config.names import answered, in_sections
from penstock.config.recorded import read_recorded
from penstock.config.sections import Sections, fields
from penstock.errors import ConfigurationError
from penstock.machine.environment_arguments import NONE
from penstock.runs.folder import RunFolder
from penstock.types.spaces import MEMORY_PARTS


class Config(Sections):
    """All settings of a run: the given values, and defaults for all others.

    For example::

        config = penstock.Config(env_id="Pendulum-v1", ppo={"epochs": 4}, seed=1)
        config = config.changed(lr=1e-3)
        print(config.ppo.learning_rate, config.to_toml())

    Takes sections, `Config(ppo={"epochs": 4})`, and settings by the names that options have, `Config(epochs=4)`. No
    preset is applied; `penstock.configure` chooses one, as `penstock train` does.
    """

    _file_names: FileNames = FileNames()

    def __init__(self, **settings: object) -> None:
        """Raises a `ConfigurationError` that lists all errors in one line."""
        named = in_sections(settings)
        try:
            values = named.sections
            if named.questions:
                values = merge(values, answered(named.questions, lambda found: Sections(**merge(values, found))))
            super().__init__(**values)
        except pydantic.ValidationError as error:
            raise ConfigurationError(explain(error, fields())) from None

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, trust_code: bool = False) -> "Config":
        """Reads the configuration of a run from its folder, or a configuration from a TOML file.

        No preset is applied. Removed settings of a run of an earlier release are converted, with a warning. Nothing is
        imported. If the file names code (an environment with a module, modules to import, a network, a loss),
        `penstock.train` and `penstock.make` refuse it with `ForeignCode`, unless you trust it or give these settings by
        `changed`.

        Args:
            path: Folder or file.
            trust_code: Whether the code that the file names may be imported later.

        Raises:
            ConfigurationError: The file can't be read or has a wrong setting.
        """
        folder = RunFolder(Path(path))
        if folder.root.is_dir():
            file, recorded = folder.config, read_recorded(folder.config)
            values = recorded.values
            for note in filter(None, (recorded.removed, recorded.unset)):
                warnings.warn(note, stacklevel=2)
        else:
            file, values = folder.root, load_toml(folder.root)
        config = cls(**values)
        return config if trust_code else config.as_data(file)

    @pydantic.model_validator(mode="after")
    def _check(self) -> "Config":
        if reason := first_conflict(self):
            raise ValueError(reason)
        return self

    @property
    def recorded(self) -> dict[str, Any]:
        """Columns of a segment besides the environment's: the arguments of `segment_schema`."""
        policy, memory = self.policy, None
        if policy.memory is not None:
            memory = (MEMORY_PARTS[policy.memory], policy.memory_size)
        return {"unroll_length": self.actor.unroll_length, "memory": memory, "burn_in": self.ppo.burn_in_steps}

    @property
    def names_code(self) -> bool:
        """Whether a process imports code that these settings name."""
        return bool(imported_by(self))

    def as_data(self, file: Path, *own: Mapping[str, object]) -> "Config":
        """Returns this configuration as one that a file gives, except for a process's own settings.

        `refuse_foreign_code` then refuses the code that the file names, until `changed` gives it. The own settings are
        nested by section, or have names without a section.
        """
        names = FileNames.all_in(file, self)
        for settings in own:
            names = names.without(in_sections(settings).sections)
        return self._named_by(names)

    def trusted(self) -> "Config":
        """Returns this configuration as the process's own, so that the code that it names may be imported."""
        return self._named_by(FileNames())

    def refuse_foreign_code(self) -> None:
        """Raises `ForeignCode` if a file alone names code. Call it before anything is imported for this run."""
        self._file_names.refuse(self)

    def repeatable(self) -> "Config":
        """Returns this configuration without the settings that a repetition chooses.

        That is the run's folder, who is told of its end, where its copies go, the node, the job, the ready file, and
        the certificate of one service.
        """
        folders = {"run": {"dir": None, "on_end": None}, "actor": {"run": None}, "evaluation": {"run": None}}
        folders["checkpoint"] = {"copy_to": None}
        service = {"telemetry": {"node": None, "job": None, "ready_file": None}}
        return self.changed({**folders, **service, "security": {"certificate": None, "key": None, "authority": None}})

    def changed(self, values: Mapping[str, object] | None = None, /, **settings: object) -> "Config":
        """Returns this configuration with other values: sections, or settings by the names that options have.

        Raises `ConfigurationError` as the constructor does.
        """
        named = in_sections({**(values or {}), **settings})
        given = merge(self._given(mode="python"), named.sections)
        changes = merge(named.sections, answered(named.questions, lambda found: Config(**merge(given, found))))
        changed = Config(**merge(given, changes))
        return changed._named_by(self._file_names.without(changes))

    def to_toml(self) -> str:
        """Returns this configuration as TOML, which `parse_toml` reads back to an equal one."""
        return tomli_w.dumps(self._given(mode="json"))

    def _named_by(self, names: FileNames) -> "Config":
        copy = self.model_copy()
        # Not by `Constant`, which refuses it.
        pydantic.BaseModel.__setattr__(copy, "_file_names", names)
        return copy

    def _given(self, mode: Literal["python", "json"]) -> dict[str, object]:
        """Returns all values except those that are unset by default; None becomes `NONE`."""
        unset = {(section, key) for section, settings in Config() for key, value in settings if value is None}
        return {
            section: {
                key: NONE if value is None else value
                for key, value in settings.items()
                if value is not None or (section, key) not in unset
            }
            for section, settings in self.model_dump(mode=mode).items()
        }


def build(values: dict[str, object]) -> Config:
    """Builds the configuration from nested values. Raises `ConfigurationError` as `Config` does."""
    return Config(**values)
