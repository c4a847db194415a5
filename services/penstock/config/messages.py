"""Pydantic's errors in the words of the settings."""

from collections.abc import Mapping

import pydantic
from pydantic.fields import FieldInfo

from penstock.config.names import suggestions
from penstock.config.removed import REFUSED_VALUES
from penstock.config.wanted import choices, wanted
from penstock.machine.spelling import question, similar

_SCHEDULES = {
    "ppo.learning_rate": "ppo.learning_rate_schedule",
    "ppo.clip_range": "ppo.clip_range_schedule",
    "ppo.entropy_coefficient": "ppo.entropy_schedule",
}
"""Settings that change during a run, for which other libraries take a function or a list of points."""


def explain(error: pydantic.ValidationError, fields: Mapping[str, FieldInfo]) -> str:
    """Returns all errors in one line.

    Args:
        error: The error of building a configuration.
        fields: The fields of all sections, and of all settings as section.key.
    """
    lines = []
    for item in error.errors(include_url=False):
        place = [str(part) for part in item["loc"]]
        setting = ".".join(place[:2])
        if item["type"] == "extra_forbidden":
            lines.append(unknown(setting))
        elif item["type"] == "value_error":
            # An error about several settings names them itself.
            reason = str(item["ctx"]["error"])
            lines.append(f"{'.'.join(place)} {reason}" if len(place) > 1 else reason)
        elif setting in fields:
            lines.append(_refusal(setting, fields[setting], item["input"]))
        else:
            raise AssertionError(f"no setting has the name {setting}")
    # A setting with several alternatives has an error for each.
    return "; ".join(dict.fromkeys(lines))


def unknown(name: str) -> str:
    """Returns the sentence for a name that is neither a section nor a setting."""
    return f"unknown setting {name}; {suggestions(name) or '`penstock train --help-all` lists all settings'}"


def _refusal(name: str, field: FieldInfo, value: object) -> str:
    if "." not in name:
        return f"{name} is a section, not a setting; got {value!r} for it"
    close = similar(value, choices(field)) if isinstance(value, str) else None
    meant = f"; {question(close)}" if close else ""
    if earlier := REFUSED_VALUES.get((name, str(value))):
        meant = f"; {earlier}"
    schedule = _SCHEDULES.get(name)
    if schedule and not _is_number(value):
        meant = f"; for a schedule, give the number at the start, and set {schedule} to linear"
    return f"{name} must be {wanted(field)}; got {_shown(value)}{meant}"


def _is_number(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True


def _shown(value: object) -> str:
    """Returns a value as text, and the name of a function or of an object's class without its address."""
    text = repr(value)
    if " at 0x" not in text:
        return text
    return (
        f"the function {value.__name__}" if hasattr(value, "__name__") else f"an object of {type(value).__qualname__}"
    )
