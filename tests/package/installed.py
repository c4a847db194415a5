"""An empty virtual environment with Penstock's wheel: what is installed, how large it is, and what its commands do."""

import importlib.metadata
import re
import subprocess
import sys
import sysconfig
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from penstock.machine.extras import EXTRA_OF
from penstock.runs.summary import Summary
from tests.package.failure import Failure
from tests.support.services.processes import Command, Ended, end_of

ROOT = Path(__file__).parents[2]
_SHOWN = 8
"""Number of packages whose sizes are reported."""
_WITHOUT_REPOSITORY = {"PYTHONPATH": "", "PYTHONNOUSERSITE": "1"}


@dataclass(frozen=True, slots=True)
class Installed:
    """A virtual environment."""

    folder: Path

    @property
    def site(self) -> Path:
        """Its folder of installed packages."""
        return next(self.folder.glob("lib/python3*/site-packages"))

    def install(self, *requirements: str) -> float:
        """Installs requirements, in the versions of the lock files; returns the seconds, with downloads."""
        started = time.monotonic()
        pip = [str(self.folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        # Without the hashes, because the wheel of Penstock has none, and extras may need packages that no lock has.
        locks = "".join((ROOT / name).read_text() for name in ("requirements.lock", "requirements-torch.lock"))
        versions = self.folder / "versions.txt"
        versions.write_text("\n".join(re.findall(r"^\S+==\S+", locks, re.MULTILINE)))
        command = [*pip, f"--constraint={versions}", *requirements]
        subprocess.run(command, check=True, capture_output=True, text=True)
        return time.monotonic() - started

    def install_beside(self, wheel: Path) -> None:
        """Installs a wheel without its dependencies, which the environment of this process has.

        Raises `Failure` if the Penstock of that environment would be used.
        """
        pip = [str(self.folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, str(wheel)], check=True, capture_output=True, text=True)
        # A path in a .pth file comes last, and the .pth files in it are not read: one of them names this repository.
        (self.site / "beside.pth").write_text(sysconfig.get_path("purelib"))
        python = [str(self.folder / "bin" / "python"), "-P", "-c", "import penstock; print(penstock.__file__)"]
        found = subprocess.run(python, check=True, capture_output=True, text=True, cwd=self.folder).stdout.strip()
        if not Path(found).is_relative_to(self.site):
            raise Failure(f"the environment uses {found}")

    def start(self, folder: Path, *arguments: str) -> Command:
        """Starts a `penstock` command in a folder. It finds nothing of this repository."""
        program = str(self.folder / "bin" / "penstock")
        return Command(*arguments, directory=folder, program=(program,), environment=_WITHOUT_REPOSITORY)

    def run(self, folder: Path, *arguments: str) -> Ended:
        """Runs a `penstock` command in a folder to its end."""
        with self.start(folder, *arguments) as command:
            return end_of(command)


def create(folder: Path) -> Installed:
    """Creates an empty environment of this Python version."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return Installed(folder)


def sizes_mb(environment: Installed) -> dict[str, float]:
    """Returns the sizes of all installed packages in MB, the largest first. Compiled Python code counts."""
    sizes = {}
    for package in importlib.metadata.distributions(path=[str(environment.site)]):
        files = (Path(str(package.locate_file(file))) for file in package.files or [])
        sizes[package.metadata["Name"]] = round(sum(file.stat().st_size for file in files if file.exists()) / 1e6, 1)
    return dict(sorted(sizes.items(), key=lambda each: -each[1]))


def describe(environment: Installed) -> dict[str, Any]:
    """Returns the number and sizes of the packages. Raises `Failure` if an optional one is among them."""
    subprocess.run([environment.folder / "bin" / "pip", "check"], check=True, capture_output=True, text=True)
    # torch requires fsspec.
    if optional := [name for name in EXTRA_OF if name != "fsspec" and (environment.site / name).exists()]:
        raise Failure(f"the core has installed {', '.join(optional)}")
    sizes = {name: size for name, size in sizes_mb(environment).items() if name != "pip"}
    return {
        "packages": len(sizes),
        "site_packages_mb": round(sum(sizes.values()), 1),
        "largest_mb": dict(list(sizes.items())[:_SHOWN]),
    }


def without_torch(environment: Installed, wheel: Path, folder: Path, run: str) -> dict[str, Any]:
    """Installs what needs no torch, as docs/installation.md says; returns the seconds, and the size in MB.

    Raises `Failure` if torch is there, or if a command that needs none fails.
    """
    started = time.monotonic()
    pip = [str(environment.folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, f"--requirement={ROOT / 'requirements-actor.lock'}"], check=True)
    subprocess.run([*pip, "--no-deps", str(wheel)], check=True)
    seconds = time.monotonic() - started
    if (environment.site / "torch").exists():
        raise Failure("requirements-actor.lock installs torch")
    for arguments in (("status", run), ("evaluate", run, "--episodes=1"), ("replay", "--help"), ("actor", "--help")):
        if (done := environment.run(folder, *arguments)).code:
            raise Failure(f"penstock {' '.join(arguments)} fails without torch: {done.stderr}")
    size = sum(size for name, size in sizes_mb(environment).items() if name != "pip")
    return {"install_seconds_with_downloads": round(seconds, 1), "site_packages_mb": round(size, 1)}


def train(environment: Installed, folder: Path, run: str) -> dict[str, Any]:
    """Trains the first run of the documentation; returns its times, and the largest memory of each process in MB.

    Raises `Failure` if it fails or does not reach its threshold.
    """
    started = time.monotonic()
    with environment.start(folder, "train", "--seed=1", f"--run-dir={run}") as command:
        memory = _Memory(command)
        end = end_of(command)
        memory.stop()
    seconds = time.monotonic() - started
    if end.code or end.left_behind:
        raise Failure(f"penstock train ended with exit code {end.code}: {end.stderr or end.left_behind}")
    summary = Summary.read(folder / run / "summary.json")
    if summary.learn_wall_s_to_threshold is None:
        raise Failure(f"penstock train did not reach its threshold: {end.stdout}")
    return {
        "seconds": round(seconds, 1),
        "seconds_from_first_step_to_threshold": round(summary.learn_wall_s_to_threshold, 1),
        "environment_steps_to_threshold": summary.env_steps_to_threshold,
        "memory_mb": dict(sorted(memory.largest_mb.items())),
    }


def check_messages(environment: Installed, folder: Path, run: str) -> dict[str, float]:
    """Checks that commands name the extra that they lack, and work after its installation as printed.

    Returns the MB that each extra added. Raises `Failure` if a message is wrong, or a command fails.
    """
    added: dict[str, float] = {}
    for extra, arguments in {"plot": ("plot",), "video": ("evaluate", "--record-video", "--episodes=1")}.items():
        arguments = (arguments[0], run, *arguments[1:])
        said = environment.run(folder, *arguments)
        how = f"pip install 'penstock[{extra}]'"
        if said.code != 2 or not said.stderr.endswith(f"install it with: {how}\n"):
            raise Failure(f"penstock {arguments[0]} printed {said.stderr!r} and not {how}")
        added |= add_extras(environment, extra)
        done = environment.run(folder, *arguments)
        if done.code:
            raise Failure(f"penstock {arguments[0]} fails after {how}: {done.stderr}")
    return added


def add_extras(environment: Installed, *extras: str) -> dict[str, float]:
    """Installs extras one after another, by name as in the messages; returns the MB that each added."""
    added, before = {}, sum(sizes_mb(environment).values())
    for extra in extras:
        environment.install(f"penstock[{extra}]")
        now = sum(sizes_mb(environment).values())
        added[extra], before = round(now - before, 1), now
    return added


class _Memory:
    """The largest proportional set sizes of a command's processes, read by a thread. Shared pages are divided."""

    def __init__(self, command: Command, every_s: float = 0.2) -> None:
        self.largest_mb: dict[str, float] = {}
        self._command, self._every_s, self._stopped = command, every_s, threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._stopped.wait(self._every_s):
            with suppress(psutil.Error):
                command = {"command": psutil.Process(self._command.pid)}
                for name, process in {**command, **self._command.children()}.items():
                    with suppress(psutil.Error):
                        size = round(process.memory_full_info().pss / 1e6, 1)
                        self.largest_mb[name] = max(size, self.largest_mb.get(name, 0.0))
