"""The registered id that a user's id means, and the error for one that means none. It imports no environment.

An id in another case than the registered one is accepted if it means one id alone. A misspelt id, or another version,
is another environment, so it is only suggested.
"""

import re
from collections.abc import Collection, Iterable

import gymnasium

from penstock.acting.environments.packages import package_of, plugins
from penstock.errors import ConfigurationError, UnknownEnvironment
from penstock.machine import environment_names, extras
from penstock.machine.spelling import question, similar

_PARTS = re.compile(r"(?:(?P<namespace>.*)/)?(?P<name>[^/]*?)(?:-v(?P<version>\d+))?", re.IGNORECASE)
_UNREGISTERED = "can't make the environment {!r}: it is not registered"
_OWN = "your own environment needs --env-id package:Name-v0, --env-id file.py:Name or --env-import package"
_NEEDED = {"gymnasium.envs.box2d.": "Box2D", "gymnasium.envs.mujoco.": "mujoco"}
"""Modules that Gymnasium's own environments need, by the modules that have these."""


def checked_id(name: str, others: Collection[str] = ()) -> str:
    """Returns the id that a name means, as far as that is known without an import of other packages.

    `others` are ids of other packages that may be meant. Raises `UnknownEnvironment` if no package can have the
    environment, and `ConfigurationError` if the package that it needs is not installed.
    """
    place, given = environment_names.split(name)
    if place not in ("", "gymnasium"):
        return name
    known = {*gymnasium.registry, *others}
    found = meant_id(given, known)
    games = [each for each in others if "/" in each and _name(each).casefold() == given.casefold()]
    if found != given and games:
        # `pong` is rather a preset's game than Pong-v4, which the same package registers too.
        raise UnknownEnvironment(f"{_UNREGISTERED.format(given)}; {question(games[0])}")
    if found is None and package_of(given) is None:
        if best(given, known, same_name=True):
            raise unknown(given, known)
        if package_of(given, any_case=True) is None and next(plugins(), None) is None:
            raise unknown(given, known)
    require_packages(found or given)
    return name if found in (None, given) else f"{place}:{found}" if place else str(found)


def meant_id(given: str, known: Iterable[str] | None = None) -> str | None:
    """Returns the known id that equals a given one, or is the only one that does without regard to case.

    Without a version, the newest is meant. None if there is none. By default, the known ids are the registered ones.
    """
    ids = list(gymnasium.registry if known is None else known)
    if given in ids or (newest(given, ids) and not _version(given)):
        return given
    folded = given.casefold()
    same = [each for each in ids if each.casefold() == folded]
    unversioned = {_unversioned(each) for each in ids if _unversioned(each).casefold() == folded}
    if len(same) == 1:
        return same[0]
    return newest(unversioned.pop(), ids) if not same and len(unversioned) == 1 else None


def unknown(given: str, known: Iterable[str] | None = None) -> UnknownEnvironment:
    """Returns the error for an id that is not registered, with the known id that is probably meant."""
    ids = list(gymnasium.registry if known is None else known)
    reason = _UNREGISTERED.format(given)
    if same := best(given, ids, same_name=True):
        return UnknownEnvironment(f"{reason}; {question(same)}")
    meant = question(best(given, ids))
    return UnknownEnvironment(f"{reason}; {meant} Otherwise, {_OWN}" if meant else f"{reason}; {_OWN}")


def best(given: str, ids: Collection[str], *, same_name: bool = False) -> str | None:
    """Returns the id of the same name, of another namespace or version, or else (if not `same_name`) of a similar one.

    It prefers the same namespace, then the same version, then the newest one.
    """
    names = {_name(each) for each in ids}
    name = next((each for each in names if each.casefold() == _name(given).casefold()), None)
    if name is None and not same_name:
        name = similar(_name(given), sorted(names))
    found = [each for each in ids if _name(each) == name]
    own = (_part(given, "namespace"), _version(given))
    return max(
        found,
        key=lambda each: (
            _part(each, "namespace") == own[0],
            _version(each) == own[1],
            not _part(each, "namespace"),
            int(_version(each) or 0),
        ),
        default=None,
    )


def newest(unversioned: str, ids: Iterable[str]) -> str | None:
    """Returns the id of the newest version, or None."""
    found = [each for each in ids if _unversioned(each) == unversioned]
    return max(found, key=lambda each: int(_version(each) or 0), default=None)


def require_packages(name: str) -> None:
    """Raises `ConfigurationError` if the package that has the environment, or that it needs, is not installed."""
    package = package_of(name, any_case=True) if name not in gymnasium.registry else None
    if package is not None and extras.missing(package.module):
        how = extras.installation(package.module, package.installation)
        raise UnknownEnvironment(f"the environment {name!r} needs {package.module}; {how}")
    spec = gymnasium.registry.get(name)
    entry = spec.entry_point if spec is not None else None
    for beginning, module in _NEEDED.items():
        if isinstance(entry, str) and entry.startswith(beginning) and extras.missing(module):
            raise ConfigurationError(
                f"can't make the environment {name!r}: it needs {module}; {extras.installation(module)}"
            )


def _part(env_id: str, part: str) -> str:
    match = _PARTS.fullmatch(env_id)
    return (match[part] or "") if match else ""


def _name(env_id: str) -> str:
    return _part(env_id, "name")


def _version(env_id: str) -> str:
    return _part(env_id, "version")


def _unversioned(env_id: str) -> str:
    return re.sub(r"-v\d+$", "", env_id, flags=re.IGNORECASE)
