"""The two images: their user, file system and tools, and the time of a container that only imports."""

import time

from tests.e2e.stack import Failure, Stack, command

TAG = "e2e"
IMAGES = ("penstock-actor", "penstock-learner")
_OPTIONAL = {"penstock-actor": "ale_py fsspec", "penstock-learner": "fsspec"}
"""Optional packages of each image, without the build argument PACKAGES. torch requires fsspec."""

_INSIDE = """
import os, shutil, sys
from pathlib import Path
site = Path(next(path for path in sys.path if path.endswith("site-packages")))
try:
    Path("/probe").touch()
    written = True
except OSError:
    written = False
print(os.getuid(), written, *(name for name in ("gcc", "cc", "ld", "pytest") if shutil.which(name)), sep=",")
print(*sorted(path.name for path in site.glob("nvidia*") if path.is_dir() and path.suffix != ".dist-info"))
from penstock.machine.extras import EXTRA_OF, missing
print(*(name for name in EXTRA_OF if not missing(name)))
"""


def look_inside(image: str) -> str:
    """Returns the user and the contents of an image. Raises `Failure` if they are not as expected."""
    user_and_tools, cuda, optional, *_ = _python_in(image, _INSIDE).split("\n")
    if optional != _OPTIONAL[image]:
        raise Failure(f"optional packages: {optional or 'none'}, expected {_OPTIONAL[image] or 'none'}")
    if user_and_tools != "10001,False" or (cuda and image != "penstock-learner"):
        raise Failure(f"uid, whether / can be written, tools: {user_and_tools}; CUDA packages: {cuda or 'none'}")
    # Like a service of compose: numba needs to write next to its compiled code.
    _python_in(image, "import penstock.replay.buffer", "--tmpfs=/tmp")
    return f"uid 10001, read-only, none; CUDA packages: {cuda or 'none'}"


def bare_start_s(stack: Stack, service: str) -> float:
    """Returns the seconds in which a container of the service imports the service's code, and ends."""
    started = time.monotonic()
    imports = f"import penstock.apps.{service}"
    stack.compose("run", "--rm", "--no-deps", "--no-TTY", "--entrypoint=python", service, "-c", imports)
    return time.monotonic() - started


def _python_in(image: str, code: str, *options: str) -> str:
    confined = ("--rm", "--read-only", "--cap-drop=ALL", "--network=none", *options)
    return command("docker", "run", *confined, "--entrypoint=python", f"{image}:{TAG}", "-c", code)
