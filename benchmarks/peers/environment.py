"""Virtual environments for the peers of the benchmarks, whose pinned requirements conflict."""

import subprocess
import sys
from pathlib import Path

_HERE = Path(__file__).parent
_ENVIRONMENTS = _HERE.parents[1] / "build" / "peers"


def peer_python(name: str) -> Path:
    """Returns the interpreter of a peer's virtual environment, `build/peers/<name>`.

    Creates the environment if it does not exist or if `benchmarks/peers/<name>.txt` has changed, and reports this on
    stderr. This takes minutes and needs the network.

    Args:
        name: Name of the peer; its requirements are in `benchmarks/peers/<name>.txt`.

    Raises:
        subprocess.CalledProcessError: The environment could not be created; pip prints the cause on stderr.
    """
    requirements = _HERE / f"{name}.txt"
    environment = _ENVIRONMENTS / name
    python = environment / "bin" / "python"
    # Written last, so that an interrupted installation is repeated.
    installed = environment / "installed.txt"
    if installed.is_file() and installed.read_text() == requirements.read_text():
        return python
    sys.stderr.write(f"Installing {requirements.relative_to(_HERE.parents[1])} into {environment} ...\n")
    # Our own version of Python, so that both sides of a benchmark run on the same interpreter.
    subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True, stdout=sys.stderr)
    pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", requirements], check=True, stdout=sys.stderr)
    installed.write_text(requirements.read_text())
    return python
