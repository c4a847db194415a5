"""Virtual environments for the peers of the benchmarks: their pins conflict with ours and with each other's."""

import subprocess
import sys
from pathlib import Path

_HERE = Path(__file__).parent
_ENVIRONMENTS = _HERE.parents[1] / "build" / "peers"


def peer_python(name: str) -> Path:
    """The interpreter of a peer's own environment, `build/peers/<name>`.

    Makes the environment when there is none, or when `benchmarks/peers/<name>.txt` has changed since, and says so on
    stderr: this takes minutes and needs the network.

    Args:
        name: The peer's; its requirements stand in `benchmarks/peers/<name>.txt`.

    Raises:
        subprocess.CalledProcessError: The environment could not be made; pip has said why on stderr.
    """
    requirements = _HERE / f"{name}.txt"
    environment = _ENVIRONMENTS / name
    python = environment / "bin" / "python"
    # Written last, so that an installation that broke off is begun again.
    installed = environment / "installed.txt"
    if installed.is_file() and installed.read_text() == requirements.read_text():
        return python
    sys.stderr.write(f"Installing {requirements.relative_to(_HERE.parents[1])} into {environment} ...\n")
    # The same Python as ours, so that both sides of a benchmark run on one interpreter.
    subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True, stdout=sys.stderr)
    pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", requirements], check=True, stdout=sys.stderr)
    installed.write_text(requirements.read_text())
    return python
