"""Whether this machine can have a CUDA device, without an import of torch, which takes seconds.

It refuses what is certain alone; the learner, which has torch, decides about the rest.
"""

import ctypes
import importlib.util
import os
import re
import sys
from pathlib import Path

from penstock.config import Config
from penstock.errors import ConfigurationError

_BUILD = re.compile(r"^(cuda|hip)\b[^=\n]*=\s*['\"]", re.MULTILINE)
_DRIVER = "libcuda.so.1"
_GPUS = Path("/proc/driver/nvidia/gpus")


def check_device(config: Config) -> None:
    """Raises `ConfigurationError` if the learner's device, or what needs a GPU, certainly can't be used here."""
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
