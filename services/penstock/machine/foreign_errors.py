"""Descriptions, in one line, of exceptions that code of users raised: environments, networks and their modules."""

import contextlib
import functools
import signal
import site
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import Protocol

MISBEHAVIOUR = (Exception, SystemExit, KeyboardInterrupt)
"""Exceptions that count as a failure of that code and do not end the process."""

_SHOWN = 300
_LIBRARIES = ("penstock", "gymnasium", "numpy", "torch")
"""Packages that call code of users, or are called by it, so that a user can't correct their lines."""

_SESSIONS = ("<stdin>", "<console>", "<ipython-input-", "<python-input-")
"""Beginnings of the names that Python and IPython give to the code of a session.

All other names in angle brackets are of code that a program has generated.
"""


class SupportsClose(Protocol):
    """An object of a user's, such as an environment."""

    def close(self) -> object:
        """Releases what it holds."""


class _Owner(IntEnum):
    """Owner of the code of a frame. The last frame of the highest owner is shown."""

    LIBRARY = 0
    GENERATED = 1
    INSTALLED = 2
    USER = 3


def describe(error: BaseException) -> str:
    """Returns an exception's class and text in one line."""
    text, kind = shortened(str(error)), type(error).__name__
    return f"{kind}: {text}" if text else kind


def explain(error: BaseException) -> str:
    """Returns an exception's class and text, and the line of the user's code that raised it."""
    text, place = describe(error).rstrip("."), place_of(error)
    return f"{text} ({place})" if place else text


def place_of(error: BaseException) -> str:
    """Returns the file and line of the user's code that raised an exception; empty if no code of the user raised it.

    It is the last line in a file of the user. Without one, it is the last line in an installed package, such as the
    package of an environment. Penstock, Gymnasium, NumPy, PyTorch and the standard library do not count: an exception
    that they alone raised has the place of the exception that caused it, or that they handled when they raised it, as
    Gymnasium before 1.3 does.
    """
    calls = [(_owner(frame), frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    owner = max((call[0] for call in calls), default=_Owner.LIBRARY)
    if owner == _Owner.LIBRARY:
        earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return place_of(earlier) if earlier is not None else ""
    frame, line = [call[1:] for call in calls if call[0] == owner][-1]
    return f"{one_line(frame.f_code.co_filename)}, line {line}"


def one_line(text: str) -> str:
    """Returns a text without its line breaks and indentation."""
    return " ".join(text.split())


def shortened(text: str) -> str:
    """Returns at most 300 characters of a text in one line."""
    line = one_line(text)
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."


def let_ctrl_c_pass(error: BaseException) -> None:
    """Re-raises a KeyboardInterrupt of the user. In a service, which handles SIGINT, it is an environment's."""
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        raise error


def close_quietly(opened: SupportsClose) -> None:
    """Closes what code of users has made, whose failure to close says nothing more to its user."""
    with contextlib.suppress(*MISBEHAVIOUR):
        opened.close()


def _owner(frame: FrameType) -> _Owner:
    name, variables = frame.f_code.co_filename, frame.f_globals
    # Compiled modules name their source relative to the folder of their build.
    file = name if Path(name).is_absolute() else variables.get("__file__")
    if _is_of_library(str(variables.get("__name__")).partition(".")[0], file):
        return _Owner.LIBRARY
    if name.startswith("<") and name.endswith(">") and not name.startswith(_SESSIONS):
        return _Owner.GENERATED
    installed = file is not None and _is_within(file, [*site.getsitepackages(), site.getusersitepackages()])
    return _Owner.INSTALLED if installed else _Owner.USER


def _is_of_library(package: str, file: str | None) -> bool:
    standard = package in sys.stdlib_module_names
    if file is None:
        return standard or package in _LIBRARIES
    # Other packages can be installed below the folder of the standard library.
    return _is_within(file, _folders_of_libraries()) or (standard and _is_within(file, [sysconfig.get_path("stdlib")]))


def _folders_of_libraries() -> list[str]:
    loaded = (sys.modules.get(name) for name in _LIBRARIES)
    return [folder for module in loaded for folder in getattr(module, "__path__", ())]


def _is_within(file: str, folders: Iterable[str]) -> bool:
    return any(path.is_relative_to(place) for folder in folders for place in _paths(folder) for path in _paths(file))


@functools.lru_cache
def _paths(name: str) -> tuple[Path, Path]:
    """Returns the path of a file or folder, and the path to which links lead."""
    return Path(name).absolute(), Path(name).resolve()
