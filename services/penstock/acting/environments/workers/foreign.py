"""An environment in another Python (`environment.python`), as an environment of Gymnasium in this process.

All checks, masks and messages of Penstock then apply to it. Each environment has a process, which runs the file
`foreign_worker`.
"""

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from penstock.acting.environments.workers import foreign_worker
from penstock.errors import ConfigurationError
from penstock.machine.environment_names import split

_END_S = 5.0


def foreign_spec(python: str, name: str, imports: tuple[str, ...]) -> EnvSpec:
    """Returns the specification of an environment that another Python makes, for `gymnasium.make`."""
    return EnvSpec(id=split(name)[1], entry_point=partial(ForeignEnvironment, python, name, imports))


def describe_as(env: gymnasium.Env[Any, Any], described: Mapping[str, Any], render_mode: str | None) -> None:
    """Gives an environment the spaces and the metadata of `foreign_worker.Environment.describe`.

    Raises `ValueError` for a space that is not supported.
    """
    env.observation_space, env.action_space = (_space(described[role]) for role in ("observation", "action"))
    env.metadata, env.render_mode = described["metadata"], render_mode


class ForeignEnvironment(gymnasium.Env[Any, Any]):
    """An environment of Gymnasium or Gym in another Python.

    Exceptions have the class name and the text of the exception there.

    Attributes:
        timed: Whether a registered time limit ends each episode.
    """

    def __init__(self, python: str, name: str, imports: tuple[str, ...], /, **kwargs: Any) -> None:
        """Makes the environment there. Raises `ConfigurationError` if that fails."""
        self._what = f"can't make the environment {name!r} with environment.python {python}"
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [python, str(Path(foreign_worker.__file__)), str(theirs.fileno()), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    env=os.environ.copy(),
                    pass_fds=[theirs.fileno()],
                )
        except OSError as error:
            ours.close()
            raise ConfigurationError(
                f"{self._what}: {error.strerror}; give the path of a Python interpreter"
            ) from error
        self._connection = ours
        try:
            made = self._call("make", name=name, kwargs=kwargs, imports=list(imports))
            describe_as(self, made, kwargs.get("render_mode"))
        except EOFError:
            how = f"it {self._end()} at once; it must be a Python from 3.7 on, and the log has its last lines"
            if self._process.returncode == foreign_worker.NO_NUMPY:
                how = f"it has no NumPy; install it with {python} -m pip install numpy"
            raise ConfigurationError(f"{self._what}: {how}") from None
        except Exception as error:
            self._end()
            text = f"{type(error).__name__}: {error}".rstrip(".")
            remedy = f"; install it with {python} -m pip" if type(error).__name__ in _MISSING else ""
            raise ConfigurationError(f"{self._what}: {text}{remedy}") from error
        self.timed = made["timed"]
        if made["masks"]:
            self.action_masks = partial(self._called, "masks")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begins an episode."""
        return self._called("reset", seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """Takes a step. A step of Gym before 0.26 is converted."""
        return self._called("step", action=action)

    def render(self) -> Any:
        """Returns the rendered frame."""
        return self._called("render")

    def close(self) -> None:
        """Closes the environment and ends its process. Raises the exception of the environment's `close`."""
        if self._connection.fileno() < 0:
            return
        try:
            self._connection.settimeout(_END_S)
            # A process that has ended has nothing to close.
            with contextlib.suppress(EOFError, OSError):
                self._call("close")
        finally:
            self._end()

    def _called(self, call: str, **values: object) -> Any:
        try:
            return self._call(call, **values)
        except EOFError:
            raise RuntimeError(f"its Python process {self._end()}") from None

    def _call(self, call: str, **values: object) -> Any:
        try:
            foreign_worker.send(self._connection, {"call": call, **values})
        except OSError:
            raise EOFError from None
        reply = foreign_worker.receive(self._connection)
        if "error" in reply:
            raise type(reply["kind"], (RuntimeError,), {})(reply["error"])
        return reply["value"]

    def _end(self) -> str:
        """Ends the process; returns how it ended by itself."""
        self._connection.close()
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return "closed its connection"
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


_MISSING = ("ImportError", "ModuleNotFoundError")


def _space(form: Mapping[str, Any]) -> gymnasium.Space[Any]:
    match form["kind"]:
        case "Box":
            return spaces.Box(form["low"], form["high"], dtype=np.dtype(form["dtype"]).type)
        case "Discrete":
            return spaces.Discrete(form["n"], start=form["start"])
        case "MultiDiscrete":
            return spaces.MultiDiscrete(form["nvec"], start=form["start"])
        case "MultiBinary":
            return spaces.MultiBinary(form["n"] if form["n"].ndim else int(form["n"]))
        case "Text":
            return spaces.Text(form["max_length"])
        case "Dict":
            return spaces.Dict({key: _space(each) for key, each in form["spaces"].items()})
        case "Tuple":
            return spaces.Tuple([_space(each) for each in form["spaces"]])
        case _:
            raise ValueError(f"the space {form['shown']} is not supported")
