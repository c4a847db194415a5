"""Checkpoint files can be opened by other tools, and every flipped bit is detected before anything is parsed."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch

from penstock.errors import ConfigurationError, DamagedFile
from penstock.runs import checkpoint_file

TENSORS = {"weight": torch.arange(6, dtype=torch.float32).reshape(2, 3), "optimizer/0/step": torch.tensor(3.0)}


def written(path: Path, **metadata: str) -> Path:
    path.write_bytes(checkpoint_file.sealed(safetensors.torch.save(TENSORS), metadata))
    return path


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_a_sealed_file_is_a_safetensors_file(tmp_path: Path) -> None:
    path = written(tmp_path / "a.safetensors", penstock="policy")
    tensors = safetensors.torch.load_file(path)
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    with safetensors.safe_open(path, "np") as file:
        metadata = file.metadata()
    assert (metadata["penstock"], metadata["penstock.format"]) == ("policy", "3")
    assert len(metadata["penstock.sha256"]) == 64


def test_the_digest_covers_the_file_with_zeros_in_place_of_the_digest(tmp_path: Path) -> None:
    data = written(tmp_path / "a.safetensors").read_bytes()
    with safetensors.safe_open(tmp_path / "a.safetensors", "np") as file:
        digest = file.metadata()["penstock.sha256"]
    assert hashlib.sha256(data.replace(digest.encode(), b"0" * 64)).hexdigest() == digest


def test_sealing_again_replaces_metadata_and_keeps_the_tensors(tmp_path: Path) -> None:
    path = written(tmp_path / "a.safetensors", kept="1", changed="before")
    path.write_bytes(checkpoint_file.sealed(path.read_bytes(), {"changed": "after", "new": "x" * 1000}))
    file = checkpoint_file.read(path)
    assert file.verified
    assert [file.metadata[name] for name in ("kept", "changed", "new")] == ["1", "after", "x" * 1000]
    assert torch.equal(safetensors.torch.load(file.data)["weight"], TENSORS["weight"])


def test_every_flipped_bit_is_detected_and_reported(tmp_path: Path) -> None:
    path = written(tmp_path / "a.safetensors", penstock="policy")
    data = path.read_bytes()
    for bit in range(8 * len(data)):
        path.write_bytes(flipped(data, bit))
        with pytest.raises(DamagedFile, match=str(path)):
            checkpoint_file.read(path)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.9, 0.999])
def test_truncated_zeroed_and_extended_files_are_detected(tmp_path: Path, share: float) -> None:
    path = written(tmp_path / "a.safetensors")
    data = path.read_bytes()
    end = int(share * len(data))
    for damaged in (data[:end], data[:end] + bytes(len(data) - end), data + data[:end] + b"\0"):
        path.write_bytes(damaged)
        with pytest.raises(DamagedFile, match=str(path)):
            checkpoint_file.read(path)


def test_a_file_of_a_release_without_digests_is_read_and_not_verified(tmp_path: Path) -> None:
    path = tmp_path / "old.safetensors"
    path.write_bytes(safetensors.torch.save(TENSORS, {"penstock": "policy"}))
    file = checkpoint_file.read(path)
    assert (file.verified, file.metadata) == (False, {"penstock": "policy"})


def of_format(path: Path, number: bytes) -> Path:
    """Writes a file that only its format distinguishes from the files of this release."""
    data = written(path).read_bytes()
    head = int.from_bytes(data[:8], "little")
    digest = json.loads(data[8 : 8 + head])["__metadata__"]["penstock.sha256"].encode()
    other = data.replace(b'"penstock.format":"3"', b'"penstock.format":"%s"' % number).replace(digest, b"0" * 64)
    path.write_bytes(other.replace(b"0" * 64, hashlib.sha256(other).hexdigest().encode()))
    return path


def test_a_file_of_an_earlier_format_with_a_digest_is_read(tmp_path: Path) -> None:
    assert checkpoint_file.read(of_format(tmp_path / "old.safetensors", b"2")).verified


def test_a_file_of_a_newer_release_is_refused_but_not_as_damaged(tmp_path: Path) -> None:
    path = of_format(tmp_path / "new.safetensors", b"4")
    with pytest.raises(ConfigurationError, match="has format 4, and this release reads format 3") as refused:
        checkpoint_file.read(path)
    assert not isinstance(refused.value, DamagedFile)


def test_the_error_for_a_damaged_file_suggests_another_checkpoint(tmp_path: Path) -> None:
    path, other = written(tmp_path / "best.safetensors"), written(tmp_path / "000000000100.safetensors")
    path.write_bytes(flipped(path.read_bytes(), 8 * 200))
    with pytest.raises(DamagedFile, match=f"use another checkpoint, such as {other}"):
        checkpoint_file.read(path)


def test_a_folder_in_place_of_a_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").mkdir()
    with pytest.raises(DamagedFile, match=r"a\.safetensors is damaged: it can't be read"):
        checkpoint_file.read(tmp_path / "a.safetensors")


def test_large_tensors_are_sealed_without_changing_a_byte(tmp_path: Path) -> None:
    array = torch.from_numpy(np.random.default_rng(0).integers(0, 255, 3_000_000, np.uint8))
    path = tmp_path / "large.safetensors"
    path.write_bytes(checkpoint_file.sealed(safetensors.torch.save({"frames": array})))
    assert torch.equal(safetensors.torch.load(checkpoint_file.read(path).data)["frames"], array)
