"""Finds environments by their names (`penstock.machine.environment_names`), and imports the modules that have them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec, VectorEnvCreator
from gymnasium.vector import VectorEnv

from penstock.acting.environments.ids import meant_id, require_packages
from penstock.acting.environments.interfaces import old_gym, open_spiel, parallel_agents
from penstock.acting.environments.native import envpool
from penstock.acting.environments.native.choice import with_native_form
from penstock.acting.environments.packages import package_of, plugins
from penstock.acting.environments.workers.foreign import foreign_spec
from penstock.errors import ConfigurationError
from penstock.machine import environment_names
from penstock.machine.module_imports import import_installed, import_modules, import_named

_INTERFACES = {
    environment_names.ENVPOOL: envpool.spec_of,
    old_gym.PLACE: old_gym.gym_spec,
    open_spiel.PLACE: open_spiel.open_spiel_spec,
    parallel_agents.PLACE: parallel_agents.parallel_spec,
}


def find(name: str) -> str | EnvSpec:
    """Returns the argument of `gymnasium.make` for a name: a registered id, or the spec of a class or function.

    It imports the module of the name or, if the id is not registered, the package that is known to register it. Raises
    `ConfigurationError` if a module can't be imported, or has no such environment. An id in another case than the
    registered one is accepted.
    """
    place, rest = environment_names.split(name)
    if place in environment_names.INTERFACES:
        return _INTERFACES[place](rest)
    if not place:
        if meant_id(name) is None:
            _import_package_of(name)
        return meant_id(name) or name
    try:
        entry = import_named(place, rest)
    except ConfigurationError as error:
        raise ConfigurationError(f"can't make the environment {name!r}: {error}") from error
    if isinstance(entry, type) and issubclass(entry, VectorEnv):
        return EnvSpec(id=rest, vector_entry_point=cast("VectorEnvCreator", entry))
    if parallel_agents.is_parallel(entry):
        return parallel_agents.of_agents(rest, entry)
    if callable(entry):
        return EnvSpec(id=rest, entry_point=entry)
    if meant_id(rest) is None and rest.isidentifier():
        raise ConfigurationError(
            f"can't make the environment {name!r}: {place} has no class or function {rest!r} and registers no"
            " environment of that name; correct the part of --env-id after the colon"
        )
    return meant_id(rest) or rest


def import_and_find(name: str, imports: Sequence[str] = (), python: str | None = None) -> str | EnvSpec:
    """Returns the argument of `gymnasium.make` for a name, as `find`, after it has imported modules.

    With `python`, the path of an interpreter, an environment of its packages is found (`workers.foreign`), and nothing
    is imported here.
    """
    if python is not None:
        return foreign_spec(python, name, tuple(imports))
    import_modules(imports)
    return find(name)


def make(found: str | EnvSpec, kwargs: Mapping[str, Any], **further: Any) -> gymnasium.Env[Any, Any]:
    """Makes a found environment with its arguments, which may have the name `id`, as the first one of Gymnasium has.

    `further` arguments replace them.
    """
    if "id" in kwargs:
        spec = gymnasium.spec(found) if isinstance(found, str) else found
        found, kwargs = dataclasses.replace(spec, kwargs={**spec.kwargs, **kwargs}), {}
    return gymnasium.make(found, **{**kwargs, **further})


def has_native_form(name: str) -> bool:
    """Returns whether a registered environment has its own vectorised form; False if it is not registered.

    Raises `ConfigurationError` like `find`.
    """
    registered = registered_spec(find(name))
    return registered is not None and registered.vector_entry_point is not None


def registered_spec(found: str | EnvSpec) -> EnvSpec | None:
    """Returns the spec of what `find` has found, with Penstock's vectorised form if it has one.

    None if it is not registered, or Gymnasium chooses its version.
    """
    spec = gymnasium.registry.get(found) if isinstance(found, str) else found
    return None if spec is None else with_native_form(spec)


def _import_package_of(env_id: str) -> None:
    package = package_of(env_id, any_case=True)
    require_packages(env_id)
    for module in plugins() if package is None else [package.registration]:
        import_installed(module)
