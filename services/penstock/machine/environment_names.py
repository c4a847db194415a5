"""Names of environments and of networks, with which every process of a run can make them by itself.

The name of an environment is one of:

    CartPole-v1            an id that is registered with Gymnasium
    package:MyEnv-v0       an id that is registered when the package is imported
    package.module:MyEnv   a class or a function of a module that returns an environment
    folder/file.py:MyEnv   either of them in a file
    gym:CartPole-v1        an id of Gym, the predecessor of Gymnasium
    open_spiel:2048        a game of OpenSpiel
    envpool:Pong-v5        a task of EnvPool
    pettingzoo:mpe2.simple_spread_v3   a module of an environment of several agents

`acting.environments.registry` finds the environment of a name. The functions here need no Gymnasium.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from penstock.errors import ConfigurationError
from penstock.machine.environment_arguments import plain

ENVPOOL = "envpool"
INTERFACES = (ENVPOOL, "gym", "open_spiel", "pettingzoo")
"""Packages with another interface than Gymnasium's, which Penstock converts (`acting.environments`)."""

_GAMES = """
Adventure AirRaid Alien Amidar Assault Asterix Asteroids Atlantis BankHeist BattleZone BeamRider Berzerk Bowling
Boxing Breakout Carnival Centipede ChopperCommand CrazyClimber Defender DemonAttack DoubleDunk ElevatorAction Enduro
FishingDerby Freeway Frostbite Gopher Gravitar Hero IceHockey Jamesbond JourneyEscape Kangaroo Krull KungFuMaster
MontezumaRevenge MsPacman NameThisGame Phoenix Pitfall Pong Pooyan PrivateEye Qbert Riverraid RoadRunner Robotank
Seaquest Skiing Solaris SpaceInvaders StarGunner Tennis TimePilot Tutankham UpNDown Venture VideoPinball WizardOfWor
YarsRevenge Zaxxon
"""
OLDER_GAMES = tuple(_GAMES.split())
"""Games of Atari that also have ids without a namespace, such as Pong-v4 and PongNoFrameskip-v4."""

_SUFFIX = ".py"
_ENVIRONMENT = "environment"


class MadeEnvironment(Protocol):
    """An environment that `gymnasium.make` has made, which has its specification, also in wrappers."""

    @property
    def spec(self) -> Any:
        """The specification, from which `gymnasium.make` would make it again."""


Environment = str | Callable[..., Any] | MadeEnvironment
"""A name, a class, a function that returns an environment, or an environment."""


def split(name: str) -> tuple[str, str]:
    """Returns the module or file of a name, empty if there is none, and the rest."""
    place, _, rest = name.rpartition(":")
    return place, rest


def is_file(place: str) -> bool:
    """Returns whether a module is given as the path of its file."""
    return place.endswith(_SUFFIX)


def absolute(name: str) -> str:
    """Returns a name, or a module to import, with the path of its file made absolute.

    Relative paths refer to the working directory, which other processes of a run need not share.
    """
    place, rest = (name, "") if is_file(name) else split(name)
    if not is_file(place):
        return name
    path = str(Path(place).expanduser().absolute())
    return f"{path}:{rest}" if rest else path


def absolute_program(path: str) -> str:
    """Returns the path of a program made absolute; a name without a folder, which is searched for in PATH, as it is.

    Links are kept: the interpreter of a virtual environment is one.
    """
    return str(Path(path).expanduser().absolute()) if "/" in path else path


def short(name: str) -> str:
    """Returns a name without the folder of its file."""
    place, rest = split(name)
    return f"{Path(place).stem}:{rest}" if is_file(place) else name


def same_code(own: str, other: str) -> bool:
    """Returns whether two names mean the same code: they are equal, or have files of one name in different folders.

    Machines and users keep the same file in different folders.
    """
    return own == other or (is_file(split(own)[0]) and is_file(split(other)[0]) and _in_file(own) == _in_file(other))


def section_of(environment: object) -> dict[str, object]:
    """Returns the settings of [environment] for anything that names an environment.

    That is a name, a class, a function that returns an environment, an environment that `gymnasium.make` has made, or
    settings with any of them as `id`. Raises `ConfigurationError` like `name_of`, and for a wrapped environment.
    """
    if isinstance(environment, dict):
        given = environment.get("id")
        return environment if given is None else {**environment, **section_of(given)}
    spec = None if isinstance(environment, (str, type)) else getattr(environment, "spec", environment)
    # Vector environments of Gymnasium and of Stable-Baselines3 have the attribute; of those of `gymnasium.make_vec`,
    # also the specification has it.
    number = getattr(spec, "kwargs", {}).get("num_envs", getattr(environment, "num_envs", None))
    if isinstance(number, int):
        env_id = getattr(spec, "id", None)
        given = f"its id, {env_id!r}" if env_id else "the id or the class of its single environment"
        raise ConfigurationError(
            f"a vector environment can't be used as the environment, because {_why(_ENVIRONMENT)}; give {given}, and"
            f" the number of environments as n_envs={number}"
        )
    return _section_of_spec(spec) if hasattr(spec, "additional_wrappers") else {"id": name_of(environment)}


def name_of(thing: object, *, what: str = "environment") -> str:
    """Returns the name of a class, or of a function that returns an environment. Names are returned unchanged.

    Messages call it the `what`. Raises `ConfigurationError` if other processes can't import it.
    """
    if isinstance(thing, str):
        return thing
    qualified, module = getattr(thing, "__qualname__", None), getattr(thing, "__module__", None)
    if not callable(thing) or not isinstance(qualified, str) or not isinstance(module, str):
        arguments = ", a function that returns it, or its id, and its arguments as environment.kwargs"
        raise ConfigurationError(
            f"{_kind(thing)} can't be used as the {what}, because {_why(what)}; give its class"
            f"{arguments if what == _ENVIRONMENT else ' or its name'}"
        )
    if "<" in qualified:
        arguments = ", and give its arguments as environment.kwargs" if what == _ENVIRONMENT else ""
        raise ConfigurationError(
            f"the services can't import {module}.{qualified}, because {_why(what)}; define the class or function at"
            f" the top level of a module or a file{arguments}"
        )
    return f"{importable(module, what=what)}:{qualified}"


def importable(module: str, *, what: str = "environment") -> str:
    """Returns the name under which other processes can import a module of this one: its name, or its file.

    Raises `ConfigurationError` for the session of an interpreter or a notebook, which has no file.
    """
    loaded, script = sys.modules.get(module), script_file()
    if module == "__main__":
        spec = getattr(loaded, "__spec__", None)
        if spec is not None:
            # As `python -m package.module` was started; `python -m package` runs package.__main__.
            return str(spec.name)
        if script is None:
            article = "an" if what[0] in "aeiou" else "a"
            raise ConfigurationError(
                f"the services can't import {article} {what} that is defined in this session, because {_why(what)};"
                " write it to a file, and give it as 'file.py:Name'"
            )
        return str(script)
    file = getattr(loaded, "__file__", None)
    if file is None:
        return module
    # Python finds modules beside the script of its command, or in the working directory of a session; services are
    # started by another command.
    folder = Path.cwd() if script is None else script.parent
    beside = folder.joinpath(*module.split("."))
    found = Path(file).absolute()
    return str(found) if found in (beside.with_suffix(_SUFFIX), beside / "__init__.py") else module


def script_file() -> Path | None:
    """Returns the file that this process runs; None in the session of an interpreter or a notebook.

    A program that Python reads from its standard input names a file that does not exist.
    """
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file).absolute() if file is not None and Path(file).is_file() else None


def _in_file(name: str) -> tuple[str, str]:
    place, rest = split(name)
    return Path(place).name, rest


def _section_of_spec(spec: Any) -> dict[str, object]:
    """Returns the settings with which the services make the same environment as this `EnvSpec` of Gymnasium."""
    gymnasium: Any = sys.modules.get("gymnasium")
    registered = gymnasium.registry.get(spec.id) if gymnasium is not None else None
    usual = registered.kwargs if registered is not None else {}
    wrappers = spec.additional_wrappers[len(registered.additional_wrappers) if registered is not None else 0 :]
    limited = registered is not None and spec.max_episode_steps != registered.max_episode_steps
    # A limit has no place among the wrappers, and counts other steps outside one that repeats actions.
    unknown = wrappers if limited else [each for each in wrappers if not _is_plain(each.kwargs)]
    if unknown:
        raise ConfigurationError(
            f"the services can't repeat the wrapper {unknown[0].name} of {spec.id}, because {_why(_ENVIRONMENT)};"
            " name it in environment.wrappers, or give a function that returns the wrapped environment"
        )
    missing = object()
    kwargs = {
        name: value
        for name, value in spec.kwargs.items()
        if name != "render_mode" and _differ(usual.get(name, missing), value)
    }
    if limited:
        kwargs["max_episode_steps"] = spec.max_episode_steps
    section = {
        "kwargs": kwargs,
        "wrappers": [{"name": _importable_name(each.entry_point), **each.kwargs} for each in wrappers],
    }
    return {"id": str(spec.id)} | {name: value for name, value in section.items() if value}


def _is_plain(arguments: dict[str, object] | None) -> bool:
    """Returns whether arguments of a wrapper, None if it did not record them, can be written to a file."""
    try:
        plain(arguments)
    except ValueError:
        return False
    return arguments is not None


def _importable_name(entry_point: str) -> str:
    module, name = split(entry_point)
    return f"{importable(module, what='wrapper')}:{name}"


def _differ(one: object, other: object) -> bool:
    try:
        return bool(one != other)
    except ValueError:
        # Arrays have no single answer.
        numpy: Any = sys.modules["numpy"]
        return not (isinstance(one, numpy.ndarray) and numpy.array_equal(one, other))


def _why(what: str) -> str:
    return f"every service of a run makes the {what} by itself"


def _kind(value: object) -> str:
    return f"an object of {type(value).__qualname__}"
