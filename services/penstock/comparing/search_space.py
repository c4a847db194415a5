"""Search spaces of studies: settings with their ranges or choices, read from TOML and checked as settings.

A list is a choice, and a table with `low` and `high` a range, in which each number, or with `log = true` each order of
magnitude, is as likely. A range of whole numbers may have a `step`.
"""

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.comparing.grid import Cell, check_comparable, with_cell
from penstock.config import Config, parse_toml
from penstock.config.names import in_sections, suggestions
from penstock.config.sections import setting_names
from penstock.errors import ConfigurationError

DEFAULT_SPACE = """\
# The default search space of `penstock tune`.
[ppo]
learning_rate = { low = 1e-4, high = 3e-3, log = true }
discount = [0.98, 0.99, 0.995, 0.999]
trace_decay = [0.9, 0.95, 0.98, 0.99]
entropy_coefficient = { low = 1e-4, high = 0.03, log = true }
clip_range = [0.1, 0.2, 0.3]
epochs = { low = 2, high = 10 }
target_kl = [0.01, 0.02, 0.05, "none"]
minibatches = ["auto"] # one choice sets a value: the number of the preset may not fit other batches

[actor]
unroll_length = [16, 32, 64, 128]

[sampling]
fresh_fraction = [0.125, 0.25, 0.5, 1.0]
half_life = { low = 1.5, high = 12.0, log = true }
batch_segments = ["auto"]

[policy]
hidden_sizes = [[64, 64], [128, 128], [256, 256]]
"""

_OF_RANGE = {"low", "high", "log", "step"}


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `low` to `high`, both included.

    Attributes:
        low, high: Its ends; whole numbers if both are.
        log: Whether logarithms are drawn uniformly.
        step: Distance of whole numbers; None: 1, or all numbers if the ends are not whole.
    """

    low: float
    high: float
    log: bool = False
    step: int | None = None

    @property
    def whole(self) -> bool:
        """Whether its numbers are whole."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def contains(self, value: object) -> bool:
        """Returns whether a value can be drawn."""
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not self.low <= value <= self.high:
            return False
        return not self.whole or (value == int(value) and (value - self.low) % (self.step or 1) == 0)

    def __str__(self) -> str:
        step = f", in steps of {self.step}" if self.step else ""
        return f"{self.low:g} to {self.high:g}{' (log)' if self.log else ''}{step}"


@dataclass(frozen=True, slots=True)
class Choice:
    """Values of equal probability, as texts in JSON."""

    texts: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(self.texts)


Space = Mapping[str, Range | Choice]
"""Ranges and choices by setting, as section.key."""


def default_space(base: Config) -> Space:
    """Returns the default search space, without the discount if its sign has a meaning (`ppo.discount`)."""
    values = parse_toml(DEFAULT_SPACE)
    if base.ppo.discount < 0.0:
        values["ppo"] = {name: each for name, each in dict(values["ppo"]).items() if name != "discount"}  # type: ignore[call-overload]
    return read_space(values, base, "the default search space")


def read_space(values: Mapping[str, object], base: Config, source: str) -> Space:
    """Reads a search space from nested values, and checks each end and each choice as a setting of `base`.

    `source` names the space in messages. Raises `ConfigurationError` for an unknown setting, an impossible range, and a
    value that the settings refuse.
    """
    named = in_sections(values)
    space: dict[str, Range | Choice] = {}
    for section, table in [*named.sections.items(), *named.questions]:
        if not isinstance(table, dict) or section not in Config.model_fields:
            raise ConfigurationError(f"{source} has an unknown setting {section}; {_known(section)}")
        for key, given in table.items():
            name = f"{section}.{key}"
            if name not in setting_names():
                raise ConfigurationError(f"{source} has an unknown setting {name}; {_known(name)}")
            check_comparable("run.seed" if section == "run" else name, source)
            space[name] = _dimension(name, given, source)
    if not space:
        raise ConfigurationError(f"{source} has no settings; name at least one, as in penstock tune --print-space")
    # Every trial but the first has these.
    fixed = {name: ends[0] for name, each in space.items() if len(ends := _ends(each)) == 1}
    for name, each in space.items():
        for value in _ends(each):
            try:
                with_cell(base, {**fixed, name: value})
            except ConfigurationError as error:
                raise ConfigurationError(f"{source} has {name} = {json.dumps(value)}: {error}") from None
    return space


def _known(name: str) -> str:
    return suggestions(name) or "`penstock train --help-all` lists all settings"


def _dimension(name: str, given: object, source: str) -> Range | Choice:
    if isinstance(given, list) and given:
        texts = [json.dumps(value) for value in given]
        if len(set(texts)) < len(texts):
            raise ConfigurationError(f"{source} repeats a choice of {name}; give each once")
        return Choice(tuple(texts))
    if not isinstance(given, dict) or not {"low", "high"} <= given.keys() <= _OF_RANGE:
        raise ConfigurationError(
            f"{source} has {name} = {given!r}; write a list of choices, or {{ low = 0.1, high = 1.0 }}, with log = true"
            " for orders of magnitude"
        )
    low, high, log, step = given["low"], given["high"], given.get("log", False), given.get("step")
    if not all(
        isinstance(end, (int, float)) and not isinstance(end, bool) and math.isfinite(end) for end in (low, high)
    ):
        raise ConfigurationError(f"{source} has ends of {name} that are not numbers: {low!r} and {high!r}")
    if not isinstance(log, bool):
        raise ConfigurationError(f"{source} has log = {log!r} for {name}; write true or false")
    if low >= high:
        raise ConfigurationError(f"{source} has {name} from {low:g} to {high:g}; low must be below high")
    if log and low <= 0:
        raise ConfigurationError(f"{source} has {name} from {low:g} with log = true; raise low above 0, or remove log")
    found = Range(low, high, log, step)
    if step is not None:
        fits = isinstance(step, int) and not isinstance(step, bool) and found.whole and not log
        if not fits or step < 1 or (high - low) % step:
            raise ConfigurationError(
                f"{source} has step = {step!r} for {name}; a step is a whole number that divides a range of whole"
                " numbers without log"
            )
    return found if found.whole else Range(float(low), float(high), log)


def _ends(dimension: Range | Choice) -> list[object]:
    if isinstance(dimension, Range):
        return [dimension.low, dimension.high]
    return [json.loads(text) for text in dimension.texts]


def values_in(base: Config, space: Space) -> Cell:
    """Returns the values of settings in `base` that its space contains."""
    own, found = base.model_dump(mode="json"), dict[str, object]()
    for name, dimension in space.items():
        section, _, key = name.partition(".")
        if isinstance(dimension, Range):
            found |= {name: own[section][key]} if dimension.contains(own[section][key]) else {}
            continue
        for value in _ends(dimension):
            # A choice may be written in other words, such as auto or none.
            with contextlib.suppress(ConfigurationError):
                if with_cell(base, {name: value}) == base:
                    found[name] = value
    return found
