"""Virtual environments for the peers of the benchmarks, whose pinned requirements conflict."""

import subprocess
import sys
from pathlib import Path

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
ENVIRONMENTS = _ROOT / "build" / "peers"
"""Folder of the environments, one folder per peer."""


def peer_python(name: str) -> Path:
    """Returns the interpreter of a peer's virtual environment, `build/peers/<name>`.

    Creates the environment if it does not exist or if its requirements have changed, and reports this on stderr. This
    takes minutes and needs the network.

    Args:
        name: Name of the peer. Its requirements are in `benchmarks/peers/<name>.txt`, and those that contradict the
            requirements of others in `benchmarks/peers/<name>_alone.txt`, if there is such a file; they are installed
            last and without their own requirements.

    Raises:
        subprocess.CalledProcessError: The environment could not be created; pip prints the cause on stderr.
    """
    python = ENVIRONMENTS / name / "bin" / "python"
    if is_current(name):
        return python
    made(name)
    pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", _HERE / f"{name}.txt"], check=True, stdout=sys.stderr)
    if _alone(name).exists():
        subprocess.run([*pip, "--no-deps", "-r", _alone(name)], check=True, stdout=sys.stderr)
    mark_current(name)
    return python


def made(name: str) -> None:
    """Makes an empty environment. Raises `subprocess.CalledProcessError` if that fails."""
    sys.stderr.write(f"Installing {name} into {(ENVIRONMENTS / name).relative_to(_ROOT)} ...\n")
    # Our own version of Python, so that both sides of a benchmark run on the same interpreter.
    subprocess.run([sys.executable, "-m", "venv", "--clear", ENVIRONMENTS / name], check=True, stdout=sys.stderr)


def is_current(name: str) -> bool:
    """Returns whether an environment was installed from the present requirements."""
    mark = _mark(name)
    return mark.is_file() and mark.read_text() == _requirements(name)


def mark_current(name: str) -> None:
    """Marks an environment as complete. Called last, so that an interrupted installation is repeated."""
    _mark(name).write_text(_requirements(name))


def _mark(name: str) -> Path:
    return ENVIRONMENTS / name / "installed.txt"


def _alone(name: str) -> Path:
    return _HERE / f"{name}_alone.txt"


def _requirements(name: str) -> str:
    alone = _alone(name)
    return (_HERE / f"{name}.txt").read_text() + (alone.read_text() if alone.exists() else "")
