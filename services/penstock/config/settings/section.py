"""The base of all sections of the configuration."""

import ast
import functools
import inspect
import itertools
from typing import NoReturn

import pydantic

from penstock.config.setting_types import holds_bool, is_optional, takes_numbers_only
from penstock.errors import ConfigurationError
from penstock.machine.environment_arguments import NONE
from penstock.machine.system_errors import not_utf8


class Constant(pydantic.BaseModel):
    """A model whose values can't be changed."""

    def __setattr__(self, name: str, value: object) -> NoReturn:
        """Refuses the change. Raises `ConfigurationError`."""
        raise ConfigurationError(
            f"{name} can't be set, because a configuration does not change; config.changed({name}=...) returns another"
        )


class Section(Constant):
    """A frozen section of the configuration. Unknown keys are errors, and numbers are finite unless stated."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _read_none(cls, value: object, info: pydantic.ValidationInfo) -> object:
        """Converts the text none to None, so that an option can unset a preset's value."""
        assert info.field_name is not None
        annotation = cls.model_fields[info.field_name].annotation
        return None if is_optional(annotation) and value in ("none", NONE) else value

    @pydantic.field_validator("*")
    @classmethod
    def _refuse_other_codings(cls, value: object) -> object:
        """Refuses the path of a file or folder whose name is not UTF-8."""
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str) and (reason := not_utf8(text)):
                raise ValueError(reason)
        return value

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _refuse_booleans_as_numbers(cls, value: object, info: pydantic.ValidationInfo) -> object:
        """Refuses booleans for settings that take numbers; Pydantic would read true as 1."""
        assert info.field_name is not None
        if holds_bool(value) and takes_numbers_only(cls.model_fields[info.field_name].annotation):
            raise ValueError(f"must be a number, not true or false; got {value!r}")
        return value


@functools.cache
def texts_of(section: type[Section]) -> dict[str, str]:
    """Returns the text below each setting in the source of a section.

    Help and documentation need them. Pydantic would read them at each import, which takes a quarter of its time.
    """
    (found,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(found, ast.ClassDef)
    return {
        setting.target.id: text.value.value
        for setting, text in itertools.pairwise(found.body)
        if isinstance(setting, ast.AnnAssign) and isinstance(setting.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }
