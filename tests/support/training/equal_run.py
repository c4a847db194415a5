"""A run that writes the same best checkpoint, byte for byte, on every engine.

With degree 0 and one actor, each batch follows from the one before it. With synchronous evaluations, the same versions
are evaluated. Processors and the versions of NumPy and torch must be the same too.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock.local.variables import SETTING_PREFIX
from penstock.runs.folder import RunFolder
from tests.support.machine.timing import start_patience_s

PRESET = "cartpole"
SETTINGS: Mapping[str, str] = {
    # The size of a batch follows from the number of actors.
    "train.actors": "1",
    "run.seed": "3",
    "run.total_steps": "20000",
    "sampling.off_policy_degree": "0",
    "evaluation.mode": "synchronous",
}


def options() -> list[str]:
    """Returns the settings as options of a command; each service needs them."""
    return [f"--preset={PRESET}", *(f"--{name}={value}" for name, value in SETTINGS.items())]


def variables() -> dict[str, str]:
    """Returns the settings as environment variables; the preset is not one."""
    return {f"{SETTING_PREFIX}{name.replace('.', '__').upper()}": value for name, value in SETTINGS.items()}


def digest_here() -> str:
    """Returns the SHA-256 that a run of `penstock train` on this machine has."""
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        train = (sys.executable, "-m", "penstock", "train", *options(), f"--run-dir={run}")
        # Settings of the caller's environment do not apply.
        own = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK")}
        subprocess.run(train, check=True, stdout=subprocess.DEVNULL, env=own, cwd=folder, timeout=start_patience_s())
        return digest(run)


def digest(run: Path) -> str:
    """Returns the SHA-256 of a run's best checkpoint."""
    return hashlib.sha256(RunFolder(run).best_checkpoint.read_bytes()).hexdigest()
