"""The configuration of a run."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pydantic
import tomli_w

from penstock.config.checks import first_conflict
from penstock.config.layers import load_toml, merge
from penstock.config.messages import explain
from penstock.config.names import answered, in_sections
from penstock.config.recorded import read_recorded
from penstock.config.sections import Sections, fields
from penstock.config.setting_types import NONE
from penstock.errors import ConfigurationError
from penstock.run_folder import RunFolder
from penstock.types.networks import MEMORY_PARTS


class Config(Sections):
    """All settings of a run: the given values, and defaults for all others.

    No preset is applied; `penstock.configure` chooses one, as `penstock train` does.
    """

    def __init__(self, **settings: object) -> None:
        """Takes sections, `ppo={"epochs": 4}`, and settings by the names that options have, `epochs=4`.

        Raises a `ConfigurationError` that lists all errors in one line.
        """
        named = in_sections(settings)
        try:
            values = named.sections
            if named.questions:
                values = merge(values, answered(named.questions, Sections(**values)))
            super().__init__(**values)
        except pydantic.ValidationError as error:
            raise ConfigurationError(explain(error, fields())) from None

    @classmethod
    def load(cls, path: str | Path) -> "Config":
        """Reads the configuration of a run from its folder, or a configuration from a TOML file.

        No preset is applied. Removed settings of a run of an earlier release are converted, with a warning. Raises
        `ConfigurationError` if the file can't be read or has a wrong setting.
        """
        folder = RunFolder(Path(path))
        if not folder.root.is_dir():
            return cls(**load_toml(folder.root))
        recorded = read_recorded(folder.config)
        for note in filter(None, (recorded.removed, recorded.unset)):
            warnings.warn(note, stacklevel=2)
        return cls(**recorded.values)

    @pydantic.model_validator(mode="after")
    def _check(self) -> "Config":
        if reason := first_conflict(self):
            raise ValueError(reason)
        return self

    @property
    def recorded(self) -> dict[str, Any]:
        """What a segment records besides the environment's columns: the arguments of `segment_schema`."""
        policy, memory = self.policy, None
        if policy.memory is not None:
            memory = (MEMORY_PARTS[policy.memory], policy.memory_size)
        return {"unroll_length": self.actor.unroll_length, "memory": memory, "burn_in": self.ppo.burn_in_steps}

    def repeatable(self) -> "Config":
        """Returns this configuration without what a repetition chooses.

        That is the run's folder, the node, the job, the ready file, and the certificate of one service.
        """
        folders = {"run": {"dir": None}, "actor": {"run": None}, "evaluation": {"run": None}}
        service = {"telemetry": {"node": None, "job": None, "ready_file": None}}
        return self.changed({**folders, **service, "security": {"certificate": None, "key": None, "authority": None}})

    def changed(self, values: Mapping[str, object] | None = None, /, **settings: object) -> "Config":
        """Returns this configuration with other values: sections, or settings by the names that options have.

        Raises `ConfigurationError` as the constructor does.
        """
        named = in_sections({**(values or {}), **settings})
        changes = merge(named.sections, answered(named.questions, self))
        return Config(**merge(self._given(mode="python"), changes))

    def to_toml(self) -> str:
        """Returns this configuration as TOML, which `load_toml` reads back to an equal one."""
        return tomli_w.dumps(self._given(mode="json"))

    def _given(self, mode: Literal["python", "json"]) -> dict[str, object]:
        """Returns all values except those that are unset by default; None becomes `NONE`."""
        unset = {(section, key) for section, settings in Config() for key, value in settings if value is None}
        return {
            section: {
                key: NONE if value is None else _without_none(value)
                for key, value in settings.items()
                if value is not None or (section, key) not in unset
            }
            for section, settings in self.model_dump(mode=mode).items()
        }


def _without_none(value: object) -> object:
    if isinstance(value, dict):
        return {key: NONE if each is None else _without_none(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [NONE if each is None else _without_none(each) for each in value]
    return value


def build(values: dict[str, object]) -> Config:
    """Builds the configuration from nested values. Raises `ConfigurationError` as `Config` does."""
    return Config(**values)
