"""Imports: modules of users by name or by file, for environments and networks, and modules of Penstock.

Only a process's own settings name such modules (`config.foreign_code`, `algo.published.with_own_module`).
"""

import gc
import importlib
import importlib.util
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from penstock.errors import ConfigurationError
from penstock.machine import environment_names, extras, foreign_errors, installation, library_variables
from penstock.machine.foreign_errors import shortened

Made = TypeVar("Made")


@contextmanager
def uncollected() -> Iterator[None]:
    """Excludes the objects that the block creates from all garbage collections.

    Collections take a fifth of the time of torch's imports, and as much again when the process ends. They also write to
    the memory pages that forked services share.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def loading() -> Iterator[None]:
    """Imports modules of Penstock in the block, for a command.

    Raises `ConfigurationError` if that fails because torch is missing or inherited variables may be why.
    """
    try:
        with uncollected():
            yield
    except (ImportError, SyntaxError, AttributeError, TypeError, ValueError) as error:
        if extras.missing_module(error) == "torch" and extras.missing("torch"):
            raise extras.lacking("this command", "torch") from error
        suspects = library_variables.suspects(os.environ)
        if not suspects:
            raise
        raise ConfigurationError(
            f"can't import the libraries of Penstock: {foreign_errors.describe(error)}; they work without"
            f" variables that concern other programs, so unset {' or '.join(suspects)}"
        ) from error


def import_modules(places: Sequence[str]) -> None:
    """Imports modules, given by name or by file. Raises like `import_module`."""
    for place in places:
        import_module(place)


def import_module(place: str) -> ModuleType:
    """Imports a module by its name, or by the path of its file. Raises `ConfigurationError` if that fails.

    A file that belongs to a package, or that Python finds by its name, has that name. Any other file has a name of its
    own, so that it never takes the place of a module. The current folder and the folder of a file are added to Python's
    search path, behind all others.
    """
    return _imported(place, _import_own)


def import_installed(name: str) -> ModuleType:
    """Imports an installed module, in whose place no file of the current folder is found. Raises as `import_module`."""
    return _imported(name, importlib.import_module)


def import_named(place: str, name: str) -> object:
    """Returns the object of a module with this name, possibly with dots; None if there is none. Raises as
    `import_module`.
    """
    found: object = import_module(place)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def import_for(setting: str, name: str, *, kind: str, examples: str) -> object:
    """Returns the class or function that a setting names as module:name; None if the module has none.

    Raises `ConfigurationError`, with the setting, as `import_module`, and if a part is missing: then it says which
    `kind` of object is expected, and how it is written.
    """
    place, attribute = environment_names.split(name)
    if not place or not attribute:
        raise ConfigurationError(f"{setting} {name!r} has no module or no {kind}; write it as {examples}")
    try:
        return import_named(place, attribute)
    except ConfigurationError as error:
        raise ConfigurationError(f"{setting} {name!r}: {error}") from error


def instance_for(setting: str, name: str, found: Callable[[], Made]) -> Made:
    """Returns an instance of the class that a setting names, made without arguments.

    Raises `ConfigurationError`, with the setting and the line, if that fails.
    """
    try:
        return found()
    except foreign_errors.MISBEHAVIOUR as error:
        foreign_errors.let_ctrl_c_pass(error)
        raise ConfigurationError(
            f"{setting} {name!r} can't be made without arguments: {foreign_errors.explain(error)}; give them default"
            " values"
        ) from error


def _imported(place: str, load: Callable[[str], ModuleType]) -> ModuleType:
    try:
        return load(place)
    except ConfigurationError:
        raise
    except ModuleNotFoundError as error:
        if error.name in extras.EXTRA_OF:
            raise extras.lacking(f"the import of {place!r}", error.name) from error
        itself = error.name is not None and f"{place}.".startswith(f"{error.name}.")
        remedy = installation.how_to_find(error.name or place, itself=itself)
        raise ConfigurationError(f"can't import {place!r}: {error}; {remedy}") from error
    except SystemExit as end:
        where = foreign_errors.place_of(end)
        raise ConfigurationError(
            f"can't import {place!r}: {foreign_errors.describe(end)}{where and f' ({where})'}, with the arguments"
            f' {shortened(str(sys.argv))}; read arguments below `if __name__ == "__main__":`, or give those that it'
            " accepts to the script that calls penstock.train"
        ) from end
    except foreign_errors.MISBEHAVIOUR as error:
        foreign_errors.let_ctrl_c_pass(error)
        raise ConfigurationError(f"can't import {place!r}: {foreign_errors.explain(error)}; correct it") from error


def _import_own(place: str) -> ModuleType:
    # Not earlier, because a folder that came with somebody's run may hold files with the names of modules.
    _search(Path.cwd())
    return _import_file(Path(place)) if environment_names.is_file(place) else importlib.import_module(place)


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigurationError(
            f"there is no file {path}; correct its path, which must be absolute or relative to {Path.cwd()}"
        )
    folder, name = path.parent, path.stem
    while (folder / "__init__.py").exists():
        folder, name = folder.parent, f"{folder.name}.{name}"
    _search(folder)
    if "." in name or _origin(name) == path:
        return importlib.import_module(name)
    return _load(path, f"{name}_{zlib.crc32(str(path).encode()):08x}")


def _search(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    importlib.invalidate_caches()


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
