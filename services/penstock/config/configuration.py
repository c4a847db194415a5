"""The configuration of a run."""

from typing import Any, Literal

import pydantic
import tomli_w

from penstock.config.checks import first_conflict
from penstock.config.layers import merge
from penstock.config.messages import explain
from penstock.config.sections import Sections, fields
from penstock.config.setting_types import NONE
from penstock.errors import ConfigurationError
from penstock.types.networks import MEMORY_PARTS


class Config(Sections):
    """All settings of a run: the given values, and defaults for all others.

    No preset is applied; `penstock.configure` chooses one, as `penstock train` does.
    """

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
        """Returns this configuration without the run's folder, which a repetition does not share."""
        return self.changed({"run": {"dir": None}})

    def changed(self, values: dict[str, object]) -> "Config":
        """Returns this configuration with these nested values replaced. Raises `ConfigurationError` like `build`."""
        return build(merge(self._given(mode="python"), values))

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
    """Builds the configuration from nested values. Raises a `ConfigurationError` that lists all errors in one line."""
    try:
        return Config(**values)
    except pydantic.ValidationError as error:
        raise ConfigurationError(explain(error, fields())) from None
