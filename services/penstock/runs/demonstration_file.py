"""Files of demonstrations, for `sampling.demonstrations`.

A file is a safetensors file with a digest (`runs.checkpoint_file`), and has the columns of one long segment.
"""

import json
from pathlib import Path

import numpy as np
import safetensors.numpy

from penstock.errors import ConfigurationError, DamagedFile
from penstock.machine.files import READABLE_FILE, write_atomically
from penstock.machine.system_errors import in_words
from penstock.runs import checkpoint_file
from penstock.types.demonstrations import Demonstrations
from penstock.types.spaces import EnvironmentSpec

SUFFIX = ".safetensors"
_KEY = "penstock.demonstrations"


def write(path: Path, demonstrations: Demonstrations) -> None:
    """Writes a file. Raises `ConfigurationError` if that fails."""
    about = {
        "spec": demonstrations.spec.to_json(),
        "squash_actions": demonstrations.squash_actions,
        "widest_range": demonstrations.widest_range,
        "has_log_probs": demonstrations.has_log_probs,
    }
    columns = {name: np.ascontiguousarray(column) for name, column in demonstrations.columns.items()}
    data = checkpoint_file.sealed(safetensors.numpy.save(columns), {_KEY: json.dumps(about)})
    try:
        write_atomically(path, data, READABLE_FILE)
    except OSError as error:
        raise ConfigurationError(f"can't write {path}: {in_words(error, path, 'choose another file')}") from None


def read(path: Path) -> Demonstrations:
    """Reads a file. Raises `DamagedFile`, or `ConfigurationError` if it is missing or of another kind."""
    require(path)
    try:
        file = checkpoint_file.read(path)
    except DamagedFile as error:
        finding = error.finding.replace("the checkpoint", "the file of demonstrations", 1)
        raise DamagedFile(finding, "record them again, or copy the file again") from None
    if _KEY not in file.metadata:
        raise ConfigurationError(
            f"{path} has no demonstrations; record some with penstock.record_demonstrations, and name that file in"
            " sampling.demonstrations"
        )
    about = json.loads(file.metadata[_KEY])
    columns = safetensors.numpy.load(file.data)
    return Demonstrations(EnvironmentSpec.from_json(about.pop("spec")), columns=columns, **about)


def require(path: Path) -> None:
    """Raises `ConfigurationError` if there is no such file."""
    if not path.is_file():
        raise ConfigurationError(
            f"sampling.demonstrations: there is no file {path}; record it with penstock.record_demonstrations, or"
            " correct its path"
        )
