"""Optional packages: which extra of Penstock installs which, and the one-line error if one is missing."""

import importlib.util

from penstock.errors import ConfigurationError
from penstock.machine import installation as own

EXTRA_OF = {
    "Box2D": "box2d",
    "ale_py": "atari",
    "envpool": "envpool",
    "fsspec": "remote",
    "huggingface_hub": "hub",
    "matplotlib": "plot",
    "minigrid": "minigrid",
    "mlflow": "mlflow",
    "moviepy": "video",
    "mujoco": "mujoco",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "onnxscript": "onnx",
    "optuna": "tune",
    "pettingzoo": "agents",
    "pygame": "video",
    "pyspiel": "openspiel",
    "stable_retro": "retro",
    "trackio": "trackio",
    "wandb": "wandb",
}
"""Extras by the modules that they install. Their requirements are in pyproject.toml."""

_IN_IMAGE = {
    "agents": "pettingzoo mpe2",
    "atari": "ale-py",
    "box2d": "gymnasium[box2d]",
    "envpool": "envpool",
    "hub": "huggingface_hub",
    "minigrid": "minigrid",
    "mlflow": "mlflow-skinny",
    "mujoco": "gymnasium[mujoco]",
    "onnx": "onnx onnxruntime onnxscript",
    "openspiel": "open_spiel",
    "plot": "matplotlib",
    "remote": "fsspec",
    "retro": "stable-retro",
    "trackio": "trackio",
    "tune": "optuna",
    "video": "gymnasium[classic-control] moviepy",
    "wandb": "wandb",
}
"""Packages of the extras as arguments of an image's build, which installs Penstock itself later."""


def missing(module: str) -> bool:
    """Returns whether a module is not installed. It does not import the module."""
    return importlib.util.find_spec(module) is None


def installation(module: str, otherwise: str = "") -> str:
    """Returns how to install a module, as the end of a message.

    `otherwise` is the argument of `pip install` for a module that no extra installs, if it is not the module's name.
    """
    if module == "torch":
        return own.how_to_install_torch()
    if (extra := EXTRA_OF.get(module)) is not None:
        return own.how_to_install(f"'penstock[{extra}]'", _IN_IMAGE[extra])
    package = otherwise or module
    return own.how_to_install(package, package.strip("'"))


def lacking(user: str, module: str) -> ConfigurationError:
    """Returns the error for a missing module: `user`, a command or an environment, needs it."""
    return ConfigurationError(f"{user} needs {module}; {installation(module)}")


def require(module: str, user: str) -> None:
    """Raises `ConfigurationError` if a module that `user` needs is not installed."""
    if missing(module):
        raise lacking(user, module)


def missing_module(error: BaseException) -> str | None:
    """Returns the top-level module whose absence caused an exception; None if that is not its cause.

    Gymnasium raises its own exception from Python's.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            return cause.name.partition(".")[0]
        cause = cause.__cause__
    return None
