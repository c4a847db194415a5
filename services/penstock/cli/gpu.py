"""Checks whether torch can use a GPU and, if it can't, finds the cause."""

import os
import shutil
import subprocess

import torch

_TIMEOUT_S = 20.0


def describe_gpu() -> tuple[bool | None, str]:
    """Returns True if torch can use a GPU, None if there is none, False if a fault prevents it; and a line about it."""
    works, driver = _ask_driver()
    if works is False:
        return False, f"{driver}; install NVIDIA's driver, or restart the machine after it was updated"
    if torch.version.cuda is None:
        build = f"torch {torch.__version__} is built without CUDA"
        return (None, f"none; {build}") if works is None else (False, f"{driver}, but {build}; install a CUDA build")
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        reason = " ".join(str(error).split()).partition(". ")[0]
        if works is None:
            return None, f"none found by a driver ({reason})"
        return False, f"{driver}, but torch's CUDA {torch.version.cuda} can't use it: {reason}; update the driver"
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return True, f"{', '.join(names)}; CUDA {torch.version.cuda}"


def _ask_driver() -> tuple[bool | None, str]:
    """Returns whether the driver works (None: there is none), and the report of nvidia-smi about it and the GPU."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None, ""
    query = [command, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(
            query, env=os.environ.copy(), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, f"nvidia-smi does not answer ({error})"
    lines = (answer.stdout if answer.returncode == 0 else answer.stderr or answer.stdout).splitlines()
    return answer.returncode == 0, f"{next(iter(lines), 'nothing')} by nvidia-smi"
