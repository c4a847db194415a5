"""Files of demonstrations: what they keep, and what is refused as one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.errors import ConfigurationError, DamagedFile
from penstock.runs.demonstration_file import read, write
from penstock.types.demonstrations import Demonstrations
from penstock.types.spaces import BoxSpace, EnvironmentSpec, Leaf, Tree
from tests.support.environments.tiny import spec_of
from tests.support.training.policies import fresh_weights

SPEC = EnvironmentSpec(
    "Test-v0",
    Tree(
        (
            Leaf(("far",), BoxSpace("float32", (2,), (-np.inf,), (np.inf,))),
            Leaf(("near",), BoxSpace("uint8", (), (0.0,), (9.0,))),
        )
    ),
    Tree.of(BoxSpace("float32", (1,), (-2.0,), (2.0,))),
    frames=3,
)


def written(folder: Path) -> tuple[Path, Demonstrations]:
    columns: dict[str, NDArray[Any]] = {
        "observation.far": np.arange(8, dtype=np.float32).reshape(4, 2),
        "observation.near": np.arange(4, dtype=np.uint8),
        "action": np.ones((3, 1), np.float32),
        "valid": np.array([True, True, False]),
    }
    made = Demonstrations(SPEC, squash_actions=True, widest_range=5.0, has_log_probs=False, columns=columns)
    write(folder / "expert.safetensors", made)
    return folder / "expert.safetensors", made


def test_a_file_keeps_rows_spaces_and_scaling(tmp_path: Path) -> None:
    path, made = written(tmp_path)
    found = read(path)
    assert (found.spec, found.squash_actions, found.widest_range, found.has_log_probs) == (SPEC, True, 5.0, False)
    assert found.rows == 3 and found.steps == 2
    assert found.columns.keys() == made.columns.keys()
    for name, column in made.columns.items():
        np.testing.assert_array_equal(found.columns[name], column)
        assert found.columns[name].dtype == column.dtype


def test_a_changed_byte_is_found(tmp_path: Path) -> None:
    path, _ = written(tmp_path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        DamagedFile, match=r"the file of demonstrations .*expert.safetensors is damaged: .*; record them again"
    ):
        read(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no file .*none.safetensors"):
        read(tmp_path / "none.safetensors")
    policy = tmp_path / "policy.safetensors"
    policy.write_bytes(fresh_weights(spec_of("CartPole-v1")).data)
    with pytest.raises(ConfigurationError, match="has no demonstrations; record some"):
        read(policy)


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    _, made = written(tmp_path)
    with pytest.raises(ConfigurationError, match=r"can't write .*none/expert.safetensors"):
        write(tmp_path / "none" / "expert.safetensors", made)
