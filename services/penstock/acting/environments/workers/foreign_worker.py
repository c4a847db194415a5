"""One environment in another Python, which needs NumPy and the packages of the environment alone.

Penstock runs this file with the interpreter of `environment.python`, from Python 3.7 on. The file imports nothing of
Penstock, and `foreign` imports its messages from here. The arguments are the descriptor of the connection and the
process id of the process that started it. Requests and replies alternate, and the process ends with the connection.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import inspect
import json
import os
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

NO_NUMPY = 80
"""Exit code of an interpreter that lacks NumPy."""

# The folder of this file has modules of Penstock, whose names modules of the environment may have.
if __name__ == "__main__":
    sys.path = [*sys.path[1:], str(Path.cwd())]

try:
    import numpy as np
except ModuleNotFoundError:
    sys.exit(NO_NUMPY)

_SIZES = struct.Struct("!QQ")
_ARRAY, _SCALAR, _TUPLE, _ITEMS = "__array__", "__scalar__", "__tuple__", "__items__"
_PR_SET_PDEATHSIG = 1
_NEW_STEP = 5


class Unsendable(Exception):
    """A value that no message can hold."""


def send(connection: socket.socket, value: object) -> None:
    """Sends a value of plain Python types and arrays. Raises `Unsendable`, or `OSError` if the other end is closed."""
    arrays: list[bytes] = []
    text = json.dumps(_encoded(value, arrays)).encode()
    payload = b"".join(arrays)
    connection.sendall(_SIZES.pack(len(text), len(payload)) + text + payload)


def receive(connection: socket.socket) -> Any:
    """Returns the next value, whose arrays can be written. Raises `EOFError` if the other end is closed."""
    text_bytes, payload_bytes = _SIZES.unpack(_read(connection, _SIZES.size))
    text = bytes(_read(connection, text_bytes))
    return _decoded(json.loads(text.decode()), _read(connection, payload_bytes), [0])


def _read(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        try:
            count = connection.recv_into(rest)
        except ConnectionResetError:
            count = 0
        if not count:
            raise EOFError
        rest = rest[count:]
    return data


def _encoded(value: Any, arrays: list[bytes]) -> object:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        found = np.asarray(value)
        if found.dtype.kind not in "biufUS":
            raise Unsendable(f"an array of type {found.dtype}")
        arrays.append(found.tobytes())
        return {_SCALAR if isinstance(value, np.generic) else _ARRAY: [found.dtype.str, list(found.shape)]}
    if isinstance(value, list):
        return [_encoded(each, arrays) for each in value]
    if isinstance(value, tuple):
        return {_TUPLE: [_encoded(each, arrays) for each in value]}
    if isinstance(value, dict):
        return {_ITEMS: [[_encoded(key, arrays), _encoded(each, arrays)] for key, each in value.items()]}
    raise Unsendable(f"a value of type {type(value).__name__}")


def _decoded(value: Any, payload: bytearray, offset: list[int]) -> Any:
    if isinstance(value, list):
        return [_decoded(each, payload, offset) for each in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == _TUPLE:
        return tuple(_decoded(each, payload, offset) for each in content)
    if kind == _ITEMS:
        return {_decoded(key, payload, offset): _decoded(each, payload, offset) for key, each in content}
    dtype, shape = np.dtype(content[0]), tuple(content[1])
    count = int(np.prod(shape, dtype=np.int64))
    if not count * dtype.itemsize:
        return np.zeros(shape, dtype)
    found = np.frombuffer(payload, dtype, count, offset[0]).reshape(shape)
    offset[0] += found.nbytes
    return found[()] if kind == _SCALAR else found


def _sendable(value: Any) -> bool:
    try:
        _encoded(value, [])
    except (Unsendable, RecursionError):
        return False
    return True


class Environment:
    """The environment, by the interface of Gymnasium, of Gym from 0.26 on, or of earlier Gym."""

    def __init__(self, name: str, kwargs: dict[str, Any], imports: list[str]) -> None:
        for place in imports:
            _import(place)
        self._seeds_apart, self._rendered_as = False, None
        make = _creator(name)
        try:
            self._env = make(**kwargs)
        except TypeError as error:
            # Gym before 0.26 takes the mode of rendering in the call.
            if "render_mode" not in kwargs or "render_mode" not in str(error):
                raise
            self._rendered_as = kwargs.pop("render_mode")
            self._env = make(**kwargs)

    def describe(self) -> dict[str, Any]:
        """Returns the plain form of its spaces and metadata, and whether it has a time limit and action masks."""
        env = self._env
        metadata = {key: each for key, each in dict(getattr(env, "metadata", None) or {}).items() if _sendable(each)}
        limit = getattr(getattr(env, "spec", None), "max_episode_steps", None)
        return {
            "observation": _described(env.observation_space),
            "action": _described(env.action_space),
            "metadata": metadata,
            "timed": limit is not None,
            "masks": callable(self._mask_method()),
        }

    def reset(self, seed: Any, options: Any) -> Any:
        """Begins an episode; returns the observation and the info."""
        given = {} if options is None else {"options": options}
        if not self._seeds_apart:
            try:
                return self._begun(self._env.reset(seed=seed, **given))
            except TypeError as error:
                if "seed" not in str(error):
                    raise
                self._seeds_apart = True
        if seed is not None and hasattr(self._env, "seed"):
            # Simulators in C and NumPy's older generator take fewer bits.
            self._env.seed(seed % 2**31)
        return self._begun(self._env.reset())

    def _begun(self, result: Any) -> Any:
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
            return result[0], _plain_info(result[1])
        return result, {}

    def step(self, action: Any) -> Any:
        """Takes a step; returns the five values of Gymnasium."""
        result = self._env.step(action)
        if not isinstance(result, tuple) or not result or not isinstance(result[-1], dict):
            return result
        info = _plain_info(result[-1])
        if len(result) != _NEW_STEP - 1:
            return result[:-1] + (info,)
        observation, reward, done = result[:3]
        truncated = bool(done) and bool(info.get("TimeLimit.truncated", False))
        return observation, reward, bool(done) and not truncated, truncated, info

    def masks(self) -> Any:
        """Returns the action mask. Only for an environment that has the method."""
        return self._mask_method()()

    def render(self) -> Any:
        """Returns the rendered frame."""
        return self._env.render(mode=self._rendered_as) if self._rendered_as else self._env.render()

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()

    def _mask_method(self) -> Any:
        # Wrappers of Gymnasium hide the methods of their environment.
        return getattr(self._env, "action_masks", None) or getattr(self._env.unwrapped, "action_masks", None)


def _plain_info(info: dict[Any, Any]) -> dict[Any, Any]:
    """Returns the values of an info that can be sent; Penstock uses the action mask alone."""
    return {key: value for key, value in info.items() if _sendable(key) and _sendable(value)}


def _described(space: Any) -> dict[str, Any]:
    """Returns the plain form of a space of Gymnasium or Gym."""
    kind = next((each.__name__ for each in type(space).__mro__ if each.__name__ in _FORMS), "")
    return dict(_FORMS[kind](space), kind=kind) if kind else {"kind": "other", "shown": str(space)}


_FORMS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "Box": lambda space: {"low": space.low, "high": space.high, "dtype": np.dtype(space.dtype).str},
    "Discrete": lambda space: {"n": int(space.n), "start": int(getattr(space, "start", 0))},
    "MultiDiscrete": lambda space: {"nvec": np.asarray(space.nvec), "start": getattr(space, "start", None)},
    "MultiBinary": lambda space: {"n": np.array(space.shape if space.shape else space.n)},
    "Text": lambda space: {"max_length": int(space.max_length)},
    "Dict": lambda space: {"spaces": {key: _described(each) for key, each in space.spaces.items()}},
    "Tuple": lambda space: {"spaces": [_described(each) for each in space.spaces]},
}


def _import(place: str) -> Any:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    sys.path.append(str(Path(place).parent))
    name = Path(place).stem
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, place)
    if spec is None or spec.loader is None or not Path(place).exists():
        raise ImportError(f"there is no file {place}")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _creator(name: str) -> Callable[..., Any]:
    """Returns the function that makes the environment of a name, as `registry.find` documents names."""
    place, _, rest = name.rpartition(":")
    if place:
        found: Any = _import(place)
        for part in rest.split("."):
            found = getattr(found, part, None)
        if callable(found):
            return found  # type: ignore[no-any-return]
    named = ("gymnasium", "gym")
    libraries = [place] if place in named else [each for each in named if importlib.util.find_spec(each) is not None]
    if not libraries:
        raise ImportError("neither gymnasium nor gym is installed there")
    makes = [_make_of(each) for each in libraries]

    def make(**kwargs: Any) -> Any:
        for candidate in makes[:-1]:
            try:
                return candidate(rest, **kwargs)
            except Exception as error:
                if type(error).__name__ not in ("NameNotFound", "UnregisteredEnv", "NamespaceNotFound"):
                    raise
        return makes[-1](rest, **kwargs)

    return make


def _make_of(library: str) -> Callable[..., Any]:
    make: Callable[..., Any] = importlib.import_module(library).make
    if library == "gym" and "disable_env_checker" in inspect.signature(make).parameters:
        # The checker of Gym 0.26 needs a name that NumPy 2 does not have.
        return functools.partial(make, disable_env_checker=True)
    return make


def _fault(error: BaseException) -> dict[str, str]:
    """Returns the class of an exception, its text, and the line that raised it, of the environment if there is one."""
    calls = traceback.extract_tb(error.__traceback__)
    skipped = (__file__, importlib.__file__, "<frozen")
    own = [call for call in calls if not call.filename.startswith(skipped)]
    where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return {"kind": type(error).__name__, "error": " ".join(str(error).split())[:300] + where}


def main() -> None:
    """Makes the requested environment and calls it until the connection is closed."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    os.register_at_fork(after_in_child=connection.close)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(sys.argv[2]):
            return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: None)
    environment: Any = None
    while True:
        try:
            request = receive(connection)
        except EOFError:
            break
        call = request.pop("call")
        try:
            if call == "make":
                environment = Environment(**request)
            reply = {"value": environment.describe() if call == "make" else getattr(environment, call)(**request)}
            send(connection, reply)
        except Unsendable as unsendable:
            send(connection, {"kind": "TypeError", "error": f"{unsendable} can't leave its process"})
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            send(connection, _fault(error))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
