"""Finds environments by their names (`penstock.environment_names`), and imports the modules that have them."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, find_highest_version, parse_env_id

from penstock import environment_names, extras
from penstock.acting.packages import package_of, plugins
from penstock.errors import ConfigurationError, UnknownEnvironment
from penstock.module_imports import import_installed, import_named


def find(name: str) -> str | EnvSpec:
    """Returns the argument of `gymnasium.make` for a name: a registered id, or the spec of a class or function.

    It imports the module of the name or, if the id is not registered, the package that is known to register it. Raises
    `ConfigurationError` if a module can't be imported, or has no such environment.
    """
    place, rest = environment_names.split(name)
    if not place:
        if not _is_registered(name):
            _import_package_of(name)
        return name
    try:
        entry = import_named(place, rest)
    except ConfigurationError as error:
        raise ConfigurationError(f"can't make the environment {name!r}: {error}") from error
    if callable(entry):
        return EnvSpec(id=rest, entry_point=entry)
    if not _is_registered(rest) and rest.isidentifier():
        raise ConfigurationError(
            f"can't make the environment {name!r}: {place} has no class or function {rest!r} and registers no"
            " environment of that name; correct the part of --env-id after the colon"
        )
    return rest


def make(found: str | EnvSpec, kwargs: Mapping[str, Any], **further: Any) -> gymnasium.Env[Any, Any]:
    """Makes a found environment with its arguments, which may have the name `id`, as the first one of Gymnasium has."""
    if "id" in kwargs:
        spec = gymnasium.spec(found) if isinstance(found, str) else found
        found, kwargs = dataclasses.replace(spec, kwargs={**spec.kwargs, **kwargs}), {}
    return gymnasium.make(found, **further, **kwargs)


def has_native_form(name: str) -> bool:
    """Returns whether a registered environment has its own vectorised form; False if it is not registered.

    Raises `ConfigurationError` like `find`.
    """
    found = find(name)
    registered = gymnasium.registry.get(found) if isinstance(found, str) else found
    return registered is not None and registered.vector_entry_point is not None


def _is_registered(env_id: str) -> bool:
    if env_id in gymnasium.registry:
        return True
    try:
        namespace, name, version = parse_env_id(env_id)
    except gymnasium.error.Error:
        return False
    return version is None and find_highest_version(namespace, name) is not None


def _import_package_of(env_id: str) -> None:
    package = package_of(env_id)
    if package is None:
        for plugin in plugins():
            import_installed(plugin)
        return
    if extras.missing(package.module):
        how = extras.installation(package.module, package.installation)
        raise UnknownEnvironment(f"the environment {env_id!r} needs {package.module}; {how}")
    import_installed(package.module)
