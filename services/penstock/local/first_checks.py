"""The checks before a run that take no time, and load no library that does. Called before anything is printed."""

import ctypes
import errno
import importlib.util
import os
import re
import resource
import shlex
import sys
from datetime import datetime
from pathlib import Path

from penstock.config import Config
from penstock.config.foreign_code import named_code
from penstock.errors import ConfigurationError
from penstock.machine import installation
from penstock.machine.environment_names import is_file, split
from penstock.machine.system_errors import in_words, not_utf8
from penstock.runs.folder import RunFolder
from penstock.runs.known import RUNS
from penstock.runs.summary import nothing_left

_BUILD = re.compile(r"^(cuda|hip)\b[^=\n]*=\s*['\"]", re.MULTILINE)
_DRIVER = "libcuda.so.1"
_GPUS = Path("/proc/driver/nvidia/gpus")


_LIVE_TIMEOUT_S = 1.0
_LEAST_DESCRIPTORS = 24
"""Open files of the launcher and of the learner without those for each actor and each replay service."""


def check_device(config: Config) -> None:
    """Raises `ConfigurationError` if the learner's device or a setting for a GPU certainly can't be used here."""
    learner = config.learner
    if not learner.device.startswith("cuda"):
        for setting, value in (("execution", "graphed"), ("precision", "tf32")):
            if getattr(learner, setting) == value and (learner.device == "cpu" or why_no_cuda()):
                instead = "auto" if setting == "execution" else "float32"
                raise ConfigurationError(
                    f"learner.{setting} {value!r} needs CUDA, and learner.device is {learner.device!r};"
                    f" use --learner.{setting} {instead}"
                )
    elif reason := why_no_cuda(int(learner.device.partition(":")[2] or 0)):
        raise ConfigurationError(
            f"learner.device {learner.device!r} can't be used: {reason}; use --device auto, --device cpu, or cuda:N"
            " with the number of a GPU that nvidia-smi shows"
        )


def why_no_cuda(number: int = 0) -> str:
    """Returns why there is certainly no CUDA device of this number; empty if there may be one."""
    torch = importlib.util.find_spec("torch")
    version = Path(torch.origin).with_name("version.py") if torch is not None and torch.origin else None
    if version is not None and version.exists():
        builds = _BUILD.findall(version.read_text(errors="replace"))
        if not builds:
            return "torch is built without CUDA"
        if "hip" in builds or sys.platform != "linux":
            return ""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    # Numbers from 0; a negative one hides those that follow.
    if visible is not None and (not visible.strip() or visible.strip().startswith("-")):
        return f"CUDA_VISIBLE_DEVICES is {visible!r}, which hides all GPUs"
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return f"no driver of NVIDIA is installed ({_DRIVER} is missing)"
    present = len(visible.split(",")) if visible is not None else len(list(_GPUS.glob("*"))) if _GPUS.is_dir() else None
    if present is not None and number >= present:
        return f"device {number} does not exist; there {'is' if present == 1 else 'are'} {present}, numbered from 0"
    return ""


def check_at_once(config: Config, *, resume: bool) -> None:
    """Checks everything that takes no time. Nothing is changed.

    Raises `ConfigurationError`, and `ForeignCode` if a file alone names code.

    Args:
        config: All settings, with the folder of the run.
        resume: Whether the run in that folder would be resumed.
    """
    config.refuse_foreign_code()
    _check_files_of_code(config)
    _check_demonstrations(config.sampling.demonstrations)
    _check_unprotected(config)
    _check_descriptors(config)
    folder = RunFolder(Path(config.run.dir or "."))
    _check_folder(folder, resume=resume)
    # Resuming a finished run would only replace its summary.
    if resume and (reason := nothing_left(folder.summary, config.run)):
        raise ConfigurationError(f"{reason}; its result is in {folder.summary}")
    check_device(config)


def is_active(folder: RunFolder) -> bool:
    """Returns whether a service of the run in a folder answers."""
    if not folder.services.exists():
        return False
    from penstock.rpc.health import is_serving

    try:
        places = folder.places()
    except FileNotFoundError:
        # Its services have ended in the meantime.
        return False
    return any(is_serving(place.addresses, _LIVE_TIMEOUT_S) for place in places.values())


def with_run_dir(config: Config) -> Config:
    """Returns the configuration with a folder for the run, by default named after the environment and the time."""
    if config.run.dir is not None:
        return config
    name = config.environment.short_name.replace("/", "-").replace(":", "-")
    return config.changed({"run": {"dir": str(RUNS / f"{name}-{datetime.now():%Y%m%d-%H%M%S}")}})


def _check_files_of_code(config: Config) -> None:
    for setting, name in ((setting, name) for setting, names in named_code(config).items() for name in names):
        file = split(name)[0]
        if is_file(file) and not Path(file).is_file():
            raise ConfigurationError(
                f"{setting} {name!r}: there is no file {file}; correct its path, which is absolute or relative to"
                f" {Path.cwd()}"
            )


def _check_demonstrations(file: str | None) -> None:
    if file is not None:
        from penstock.runs.demonstration_file import require

        require(Path(file))


def _check_unprotected(config: Config) -> None:
    if config.security.certificate is not None:
        raise ConfigurationError(
            f"security.certificate is {config.security.certificate}, but penstock train connects its services by Unix"
            " sockets in a private folder, without TLS; unset it, or start the services individually"
        )


def _check_descriptors(config: Config) -> None:
    # Without enough of them, gRPC may crash in place of raising an error.
    needed = _LEAST_DESCRIPTORS + 2 * (config.train.least_actors + config.train.replay_shards)
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < needed:
        reason = in_words(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
        raise ConfigurationError(f"each process of this run may need to open {needed} files: {reason}")


def _check_folder(folder: RunFolder, *, resume: bool) -> None:
    if reason := not_utf8(str(folder.root.absolute())):
        raise ConfigurationError(f"the run's folder {reason}")
    if not resume and folder.config.exists():
        run_dir = str(folder.root)
        resuming = installation.how_to_resume(f"--resume {shlex.quote(run_dir)} (in Python, resume=True)", run_dir)
        raise ConfigurationError(
            f"{folder.root} already contains a run; resume it with {resuming}, or choose another --run-dir"
        )
    # A service may outlive its launcher, and two runs in one folder would overwrite each other's files.
    if is_active(folder):
        raise ConfigurationError(f"the run in {folder.root} is still active; stop it first, or wait for its end")
