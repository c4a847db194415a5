"""Presets, which are TOML files that a user can read and copy, and the choice of one for an environment."""

import importlib.resources
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock.config import Config, build, merge
from penstock.config.checks import ONLY_SINGLE
from penstock.config.names import answered, in_sections, setting_of, spelled
from penstock.errors import ConfigurationError
from penstock.machine.environment_names import OLDER_GAMES, Environment, section_of, split
from penstock.machine.spelling import question, similar

NO_PRESET = "none"
"""Name that selects the defaults alone; an empty name does the same."""

_VERSION = re.compile(r"-v\d+$")

_OLDER_GAME = re.compile(rf"({'|'.join(OLDER_GAMES)})(NoFrameskip)?(-v[04])?", re.IGNORECASE)
"""Older ids of a game of Atari, such as PongNoFrameskip-v4, which has the preset of ALE/Pong-v5."""

_FAMILIES = {"atari": ("ALE/*-v5", re.compile(r"ALE/\w+?(-v5)?", re.IGNORECASE))}
"""Presets for all environments whose id matches, unless another preset is for one of them; and the ids in words."""

_OF_THE_ENVIRONMENT = ("kwargs", "training_kwargs", "variants", "vectorization", *ONLY_SINGLE)
"""Settings with which the environment is not the one that the preset of a family was made for."""

_KINDS = {
    "Atari": ("atari", "breakout", "pong"),
    "Box2D": ("lunar_lander",),
    "MuJoCo": ("half_cheetah",),
    "emulators": ("retro", "catch"),
    "classic control": ("cartpole", "pendulum", "acrobot", "mountain_car"),
    "toy text": ("taxi", "frozen_lake"),
}
"""Presets by kinds of environments, whose names users may give in place of a preset's."""


class Configured(NamedTuple):
    """A configuration.

    Attributes:
        config: All settings.
        preset: Name of the preset that it is based on; None: it is based on the defaults.
        notes: Lines for the user about names of other libraries whose unit differs, and about settings of the preset
            that do not apply.
    """

    config: Config
    preset: str | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Preset:
    """A preset that ships with Penstock.

    For example::

        for preset in penstock.list_presets():
            print(preset.name, preset.environment, preset.total_steps, preset.threshold)

    Attributes:
        name: Name, for `penstock.preset` and `penstock.train(preset=...)`.
        environment: Id of its environment; None: it is for all. The preset `atari` is for all games of ALE.
        total_steps: Environment steps to train for; None if another limit ends its runs.
        threshold: Mean return of an evaluation that counts as solved; None without one.
    """

    name: str
    environment: str | None
    total_steps: int | None
    threshold: float | None


def configured(*layers: Mapping[str, object], preset: str | None = None) -> Configured:
    """Returns the configuration of layers of values, the last the strongest, on a preset.

    Values are nested by section, or have names without a section (`config.names`). `NO_PRESET` and an empty name stand
    for the defaults. Without a name it is the preset that ships for the environment, if there is one, and CartPole's
    without an environment. Raises `ConfigurationError` if the preset does not exist or is for another environment, or a
    value is invalid.
    """
    named = [in_sections(layer) for layer in layers]
    values = merge(*(each.sections for each in named))
    found = _configured(values, preset)
    questions = [question for each in named for question in each.questions]
    if questions:
        answers = answered(questions, lambda answers: _configured(merge(values, answers), preset).config)
        found = _configured(merge(values, answers), preset)
    return found._replace(notes=(*(note for each in named for note in each.notes), *found.notes))


def _configured(values: dict[str, object], preset: str | None) -> Configured:
    environment = values.get("environment")
    given = environment.get("id") if isinstance(environment, dict) else None
    own = environment if isinstance(environment, dict) else {}
    if preset is None:
        chosen = preset_for(given if isinstance(given, str) else Config().environment.id)
        if chosen in _FAMILIES and (changed := next(filter(own.get, _OF_THE_ENVIRONMENT), None)):
            note = f"the preset {chosen} is not used, because environment.{changed} is given; --preset {chosen} uses it"
            return Configured(build(values), None, (note,))
    else:
        chosen = None if preset in ("", NO_PRESET) else _resolved(preset)
    if chosen is None:
        return Configured(build(values), None)
    below = preset_values(chosen)
    if isinstance(given, str) and not _is_for(chosen, given):
        raise ConfigurationError(_misfit(chosen, given))
    notes = _without_vectorised_form(below, own, chosen)
    return Configured(build(merge(below, values)), chosen, notes)


def _without_vectorised_form(below: dict[str, object], own: Mapping[str, object], name: str) -> tuple[str, ...]:
    """Removes the vectorised form of a preset's environment, and its arguments, if the user's settings exclude it.

    Returns a line that says so, or none.
    """
    single = next(filter(own.get, ONLY_SINGLE), None)
    if single is None and own.get("vectorization") not in (None, "native"):
        single = "vectorization"
    environment = below.get("environment")
    if single is None or not isinstance(environment, dict) or environment.get("vectorization") != "native":
        return ()
    for setting in ("vectorization", "kwargs", "training_kwargs"):
        environment.pop(setting, None)
    return (
        f"environment.{single} needs single environments, so the vectorised form of the preset {name} and its arguments"
        " are not used",
    )


def preset(name: str, /, **settings: object) -> Config:
    """Returns the configuration of a preset, overridden by the given values.

    For example::

        config = penstock.preset("cartpole", seed=1, ppo={"epochs": 4})

    Args:
        name: Name of the preset; "none": the defaults.
        settings: Settings, as for `penstock.configure`.

    Raises:
        ConfigurationError: The preset does not exist or is for another environment, or a value is invalid.
    """
    return configured(_named(None, settings), preset=name).config


def configure(environment: Environment | None = None, /, *, preset: str | None = None, **settings: object) -> Config:
    """Returns the configuration that `penstock train` uses: the given values on the environment's preset, if one ships.

    For example::

        config = penstock.configure("Pendulum-v1", seed=1, total_steps=50_000, lr=3e-4)
        own = penstock.configure(MyEnv, environment={"kwargs": {"size": 5}}, ppo={"epochs": 4})

    Args:
        environment: An id, a class, a function that returns an environment, or an environment that `gymnasium.make`
            has made; also accepted as the setting `environment`. None: the preset's environment.
        preset: Name of a preset; "none": the defaults. None: the preset for the environment, if one ships.
        settings: Settings by the names that the options of `penstock train` have, with underscores; or sections of
            settings, as in a file.

    Raises:
        ConfigurationError: The preset does not exist or is for another environment, a value is invalid, or the services
            can't import the class or function.
    """
    return configured(_named(environment, settings), preset=preset).config


def preset_names() -> list[str]:
    """Returns the names of the presets that ship with Penstock."""
    folder = importlib.resources.files(__package__)
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def preset_values(name: str) -> dict[str, object]:
    """Returns the nested values of a shipped preset. Raises `ConfigurationError` if it does not exist."""
    return tomllib.loads(preset_text(name))


def preset_text(name: str) -> str:
    """Returns the file of a shipped preset. Raises `ConfigurationError` if it does not exist."""
    if name not in preset_names():
        choices = f"choose from: {', '.join(preset_names())}, {NO_PRESET}"
        raise ConfigurationError(f"unknown preset {name!r}; {' '.join(filter(None, [_meant_by(name), choices]))}")
    return (importlib.resources.files(__package__) / f"{name}.toml").read_text()


def _meant_by(name: str) -> str:
    """Returns the presets of a kind of environments, or a question that suggests one, or ""."""
    given = _letters(name)
    for kind, presets in _KINDS.items():
        if given and (_letters(kind).startswith(given) or given.startswith(_letters(kind))):
            return f"for {kind}: {', '.join(presets)};"
    return question(similar(name, preset_names()))


def _letters(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).lower()


def list_presets() -> list[Preset]:
    """Returns the presets that ship with Penstock, by name, as `penstock presets` lists them.

    For example::

        solved_at = {each.name: each.threshold for each in penstock.list_presets()}
        config = penstock.preset("cartpole", seed=1)
    """
    found = []
    for name in preset_names():
        config = build(preset_values(name))
        environment = config.environment.short_name if _environment_of(name) else None
        found.append(Preset(name, environment, config.run.total_steps, config.evaluation.threshold))
    return found


def described_presets() -> list[tuple[str, str, str, str]]:
    """Returns the name, the environment ("any" if it names none), the steps and the threshold of each preset."""
    return [
        (
            each.name,
            _shown(each.name) or "any",
            f"{each.total_steps:,}" if each.total_steps else "",
            "" if each.threshold is None else f"{each.threshold:g}",
        )
        for each in list_presets()
    ]


def _resolved(name: str) -> str:
    """Returns the name of a preset that is given in another case, or by its environment; other names unchanged."""
    known = {each.lower(): each for each in preset_names()}
    return known.get(name.lower().replace("-", "_")) or preset_for(name) or name


def preset_environments() -> set[str]:
    """Returns the ids of the environments that have a preset."""
    return {env_id for name in preset_names() if (env_id := _environment_of(name))}


def preset_for(environment_id: str) -> str | None:
    """Returns the name of the preset that ships for this environment or else for its family, or None."""
    names = sorted(preset_names(), key=lambda name: (name in _FAMILIES, name))
    return next((name for name in names if _environment_of(name) and _is_for(name, environment_id)), None)


def _is_for(name: str, environment_id: str) -> bool:
    """Returns whether a preset is for an environment. One that names no environment is for all.

    It recognises Gymnasium's other spellings of an id: `package:Id-v0` imports a package first, and an id without a
    version means the latest, to which the presets apply. Its case may differ, which
    `cli.named.with_known_environment` corrects. The class `my_module:Pendulum` is another environment.
    """
    place, wanted = split(environment_id)
    of_ale = place in ("", "gymnasium", "ale_py")
    if of_ale and (older := _OLDER_GAME.fullmatch(wanted)) is not None:
        wanted = f"ALE/{older[1]}-v5"
    own = _environment_of(name)
    if own is None or own in (wanted, environment_id):
        return True
    if name in _FAMILIES:
        return of_ale and _FAMILIES[name][1].fullmatch(wanted) is not None
    return place in ("", "gymnasium") and wanted.lower() in (own.lower(), _VERSION.sub("", own).lower())


def _named(environment: Environment | None, settings: Mapping[str, object]) -> dict[str, object]:
    """Returns the settings with the name of the environment in place of a class, a function or an environment."""
    values = dict(settings)
    given: list[object] = [] if environment is None else [environment]
    given += [values.pop(name) for name in settings if setting_of(name) == "environment.id"]
    given += [values.pop(name) for name in settings if spelled(name) == "environment"]
    sections = [section_of(each) for each in given]
    ids = list(dict.fromkeys(str(section["id"]) for section in sections if "id" in section))
    if len(ids) > 1:
        raise ConfigurationError(f"environment.id is given as {ids[0]!r} and as {ids[1]!r}; give it once")
    layers: list[dict[str, object]] = [{"environment": section} for section in sections]
    return merge(values, *layers)


def _environment_of(name: str) -> str | None:
    """Returns the id of the environment that a preset is for; None if it is for all."""
    environment = preset_values(name).get("environment")
    return str(environment["id"]) if isinstance(environment, dict) else None


def _shown(name: str) -> str | None:
    """Returns the id, or the pattern of ids, of the environments that a preset is for; None if it is for all."""
    return _FAMILIES[name][0] if name in _FAMILIES else _environment_of(name)


def _misfit(name: str, environment_id: str) -> str:
    fitting = preset_for(environment_id)
    instead = f"use the preset {fitting}" if fitting else f"use the preset {NO_PRESET} for the defaults"
    return (
        f"the preset {name} is for {_shown(name)}, and environment.id is {environment_id}; {instead}, or edit"
        f" [environment] and [evaluation] of a copy (`penstock presets {name} > my.toml`), and pass it with --config"
    )
