"""Grids of settings: the combinations of given values, and the best of them by the outcomes of their runs."""

import itertools
import tomllib
from collections.abc import Mapping, Sequence

from penstock.comparing.outcomes import Means
from penstock.config import Config
from penstock.config.names import setting_of
from penstock.errors import ConfigurationError

Cell = Mapping[str, object]
"""Values of settings by name, one for each dimension of a grid."""


def cells(dimensions: Sequence[str]) -> list[Cell]:
    """Returns all combinations of values, the last dimension varying fastest.

    Args:
        dimensions: A setting with its values each, such as `ppo.learning_rate=1e-4,3e-4`. Values are separated by
            commas; lists are written as in TOML, `policy.hidden_sizes=[64,64],[256]`.

    Raises:
        ConfigurationError: A dimension has no values or repeats one, or is about the seed, the environment or the
            evaluations.
    """
    named: dict[str, list[object]] = {}
    for text in dimensions:
        name, equals, given = text.partition("=")
        setting = setting_of(name.strip()) or name.strip()
        if not equals or not given.strip():
            raise ConfigurationError(f"--grid {text!r} has no values; write it as 'ppo.learning_rate=1e-4,3e-4'")
        check_comparable(setting, "--grid")
        values = _values(given)
        if setting in named or any(values.count(each) > 1 for each in values):
            raise ConfigurationError(f"--grid {text!r} repeats a setting or a value; give each once")
        named[setting] = values
    return [dict(zip(named, each, strict=True)) for each in itertools.product(*named.values())]


def check_comparable(setting: str, source: str) -> None:
    """Raises `ConfigurationError` if runs with other values of a setting can't be compared. `source` gives them."""
    if setting in ("run.seed", "run.dir") or setting.startswith(("environment.", "evaluation.")):
        raise ConfigurationError(
            f"{source} can't change {setting}, because runs with other values can't be compared; seeds are set by"
            " --seeds, and the others in the file"
        )


def with_cell(base: Config, cell: Cell) -> Config:
    """Returns settings with the values of a cell. Raises `ConfigurationError` if one is wrong."""
    sections: dict[str, object] = {}
    for name, value in cell.items():
        section, dot, key = name.partition(".")
        if not dot:
            sections[name] = value
            continue
        settings = sections.setdefault(section, {})
        assert isinstance(settings, dict)
        settings[key] = value
    return base.changed(sections)


def best(found: Sequence[Means], *, threshold: bool) -> int:
    """Returns the index of the best means: the fewest steps to the threshold, if there is one, then the return."""

    def rank(means: Means) -> tuple[float, float]:
        return (means.steps_to_threshold.mean if threshold else 0.0, -means.final_return.mean)

    return min(range(len(found)), key=lambda index: rank(found[index]))


def _values(text: str) -> list[object]:
    try:
        values: list[object] = tomllib.loads(f"values = [{text}]")["values"]
    except tomllib.TOMLDecodeError:
        return [each.strip() for each in text.split(",")]
    return values
