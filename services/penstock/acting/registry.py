"""Finds environments by their names (`penstock.environment_names`), and imports the modules that have them."""

import importlib
import importlib.util
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import gymnasium
from gymnasium.envs.registration import EnvSpec, find_highest_version, parse_env_id

from penstock import environment_names, extras
from penstock.acting import faults
from penstock.acting.packages import package_of, plugins
from penstock.errors import ConfigurationError, UnknownEnvironment


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
        entry: object = import_module(place)
    except ConfigurationError as error:
        raise ConfigurationError(f"can't make the environment {name!r}: {error}") from error
    for part in rest.split("."):
        entry = getattr(entry, part, None)
    if callable(entry):
        return EnvSpec(id=rest, entry_point=entry)
    if not _is_registered(rest) and rest.isidentifier():
        raise ConfigurationError(
            f"can't make the environment {name!r}: {place} has no class or function {rest!r} and registers no"
            " environment of that name; correct the part of --env-id after the colon"
        )
    return rest


def has_native_form(name: str) -> bool:
    """Returns whether a registered environment has its own vectorised form; False if it is not registered.

    Raises `ConfigurationError` like `find`.
    """
    found = find(name)
    registered = gymnasium.registry.get(found) if isinstance(found, str) else found
    return registered is not None and registered.vector_entry_point is not None


def import_modules(places: Sequence[str]) -> None:
    """Imports modules, given by name or by file, that register environments. Raises like `import_module`."""
    for place in places:
        import_module(place)


def import_module(place: str) -> ModuleType:
    """Imports a module by its name, or by the path of its file. Raises `ConfigurationError` if that fails.

    A file that belongs to a package, or that Python finds by its name, has that name. Any other file has a name of its
    own, so that it never takes the place of a module. The folder of a file is added to Python's search path, behind all
    others.
    """
    try:
        return _import_file(Path(place)) if environment_names.is_file(place) else importlib.import_module(place)
    except ConfigurationError:
        raise
    except ModuleNotFoundError as error:
        if error.name in extras.EXTRA_OF:
            raise extras.lacking(f"the import of {place!r}", error.name) from error
        itself = error.name is not None and f"{place}.".startswith(f"{error.name}.")
        elsewhere = ", run penstock in the folder that contains it, or give the path of its file" if itself else ""
        raise ConfigurationError(f"can't import {place!r}: {error}; install {error.name!r}{elsewhere}") from error
    except faults.MISBEHAVIOUR as error:
        faults.let_ctrl_c_pass(error)
        raise ConfigurationError(f"can't import {place!r}: {faults.explain(error)}; correct it") from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigurationError(
            f"there is no file {path}; correct its path, which must be absolute or relative to {Path.cwd()}"
        )
    folder, name = path.parent, path.stem
    while (folder / "__init__.py").exists():
        folder, name = folder.parent, f"{folder.name}.{name}"
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    importlib.invalidate_caches()
    if "." in name or _origin(name) == path:
        return importlib.import_module(name)
    return _load(path, f"{name}_{zlib.crc32(str(path).encode()):08x}")


def _origin(name: str) -> Path | None:
    """Returns the file of the module that Python finds by this name; None if there is none."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:
        return None
    return Path(spec.origin) if spec is not None and spec.origin is not None else None


def _load(path: Path, name: str) -> ModuleType:
    """Imports a file once under a name that Python does not find by itself."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


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
            import_module(plugin)
        return
    if extras.missing(package.module):
        how = extras.installation(package.module, package.installation)
        raise UnknownEnvironment(f"the environment {env_id!r} needs {package.module}; {how}")
    import_module(package.module)
