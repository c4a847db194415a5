"""Whether torch can use a GPU here and, if it can't, whose fault that is."""

import shutil
import subprocess

import torch

_TIMEOUT_S = 20.0


def describe_gpu() -> tuple[bool | None, str]:
    """What there is, in one line; True if torch can use it, None if there is none, False if something is in the way."""
    driver = _ask_driver()
    if torch.version.cuda is None:
        build = f"torch {torch.__version__} is built without CUDA"
        return (None, f"none; {build}") if driver is None else (False, f"{driver}, but {build}; install a CUDA build")
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        reason = " ".join(str(error).split()).partition(". ")[0]
        if driver is None:
            return None, f"none that a driver knows of ({reason})"
        return False, f"{driver}, but torch's CUDA {torch.version.cuda} can't use it: {reason}; update the driver"
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return True, f"{', '.join(names)}; CUDA {torch.version.cuda}"


def _ask_driver() -> str | None:
    """What nvidia-smi says of GPU and driver; None if there is no driver."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    query = [command, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi does not answer ({error})"
    first = next(iter((answer.stdout if answer.returncode == 0 else answer.stderr or answer.stdout).splitlines()), "")
    return f"{first} by nvidia-smi"
