"""Settings that give one quantity in different units.

A source of settings that gives one of them replaces the settings of all sources below it: `--run.total-minutes 10`
replaces the `run.total_steps` of a preset, and all defaults. Settings that one source gives apply together, where that
is possible. Only `config` calls these functions.
"""

from collections.abc import Mapping

from pydantic import BaseModel

LIMITS = ("total_steps", "total_updates", "total_episodes", "total_minutes")
EVALUATION_INTERVALS = ("interval_steps", "interval_updates", "interval_episodes", "interval_minutes")
SAVE_INTERVALS = ("save_interval", "save_interval_updates", "save_interval_episodes", "save_interval_minutes")
CAPACITIES = ("capacity_bytes", "capacity_segments", "capacity_steps")

_GROUPS = {"run": LIMITS, "evaluation": EVALUATION_INTERVALS, "checkpoint": SAVE_INTERVALS, "replay": CAPACITIES}


def kept(section: str, below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """Returns the settings of a section that `above`, a source of higher precedence, does not replace by others."""
    group = _GROUPS.get(section, ())
    replaced = group if any(above.get(name) not in (None, "none", "None") for name in group) else ()
    return {name: value for name, value in below.items() if name not in replaced}


def complete(section: BaseModel, name: str, group: tuple[str, ...]) -> None:
    """Removes the defaults of a group if another of its settings is given.

    Raises `ValueError` if no setting of the group is left.
    """
    if any(each in section.model_fields_set and getattr(section, each) is not None for each in group):
        for each in group:
            if each not in section.model_fields_set:
                # Pydantic's way to replace a field of a frozen model in a validator.
                object.__setattr__(section, each, None)
    if all(getattr(section, each) is None for each in group):
        steps = group[0]
        default = type(section).model_fields[steps].default
        others = ", ".join(group[1:-1])
        raise ValueError(
            f"{name}.{steps} is none, and its other units are not set; set it, such as to {default}, or set {others} or"
            f" {group[-1]}"
        )


def check_single(section: BaseModel, name: str, group: tuple[str, ...]) -> None:
    """Raises `ValueError` if more than one of these settings is given."""
    given = [f"{name}.{each}" for each in group if getattr(section, each) is not None]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} give the same size in different units; set all but one to none")
