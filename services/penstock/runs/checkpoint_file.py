"""Checkpoint files as bytes: safetensors files whose metadata holds a format number and a SHA-256 of the file.

The digest is the first entry of the header, at the same offset in every file, so that it is verified before anything
is parsed. It covers all bytes of the file, with zeros in place of its own 64 digits. A trailer would be simpler, but
safetensors refuses files with bytes after the last tensor, and other tools must be able to open these files.

Files of releases before format 2 have no digest. They are read, and reported as not verified.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ConfigurationError, DamagedFile
from penstock.machine.system_errors import in_words

FORMAT = 3
"""Format of the files that are written. Files of format 2, and of earlier releases without a format, are read too.

Release 0.2.0 can't build policies of format 3, and would take them for damaged ones without another number.
"""

_FORMAT_KEY = "penstock.format"
_LENGTH_BYTES = 8
_OPENING = b'{"__metadata__":{"penstock.sha256":"'
_NO_DIGEST = b"0" * hashlib.sha256().digest_size * 2
_DIGEST_AT = _LENGTH_BYTES + len(_OPENING)
_DIGEST_END = _DIGEST_AT + len(_NO_DIGEST)
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """A checkpoint that was read. The metadata are the strings in its header, digest and format included.

    `verified` is whether a digest confirmed the bytes; False for a file of a release without digests.
    """

    path: Path
    data: bytes
    metadata: Mapping[str, str]
    verified: bool


def sealed(data: bytes, metadata: Mapping[str, str] | None = None) -> bytes:
    """Returns a safetensors file with format and digest, in whose metadata these entries replace others."""
    header, body = _split(data)
    kept = {**header.pop("__metadata__", {}), **(metadata or {})}
    kept = {name: text for name, text in kept.items() if name != "penstock.sha256"}
    entries = {"penstock.sha256": _NO_DIGEST.decode(), **kept, _FORMAT_KEY: str(FORMAT)}
    text = json.dumps({"__metadata__": entries, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    head = len(text).to_bytes(_LENGTH_BYTES, "little") + text
    digest = hashlib.sha256(head)
    digest.update(body)
    return b"".join((head[:_DIGEST_AT], digest.hexdigest().encode(), head[_DIGEST_END:], body))


def read(path: Path) -> CheckpointFile:
    """Reads a checkpoint and verifies its bytes.

    Raises `DamagedFile` if it can't be read, is cut short, or differs from the bytes that were written, and
    `ConfigurationError` if there is no such file, or a newer release wrote it.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ConfigurationError(
            f"the checkpoint {path} does not exist; choose a run folder or a .safetensors file"
        ) from None
    except OSError as error:
        raise damaged(path, f"it can't be read: {in_words(error, path)}") from None
    verified = _verify(path, data)
    try:
        header, _ = _split(data)
        metadata = {name: str(text) for name, text in header["__metadata__"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise damaged(path, "it is not a safetensors file of Penstock") from None
    if verified and metadata[_FORMAT_KEY] not in ("2", str(FORMAT)):
        raise ConfigurationError(
            f"the checkpoint {path} has format {metadata[_FORMAT_KEY]}, and this release reads format {FORMAT} and"
            " older ones; use the release that wrote it"
        )
    return CheckpointFile(path, data, metadata, verified)


def damaged(path: Path, what: str) -> DamagedFile:
    """Returns the error for a checkpoint that can't be used. It names the file and a remedy."""
    others = sorted(other for other in path.parent.glob("*.safetensors") if other != path)
    instead = f"use another checkpoint, such as {others[-1]}" if others else "restore it from a backup"
    return DamagedFile(f"the checkpoint {path} is damaged: {what}", instead)


def _verify(path: Path, data: bytes) -> bool:
    """Returns whether the file has a digest. Raises `DamagedFile` if the digest does not match."""
    header_bytes = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if data[_LENGTH_BYTES:_DIGEST_AT] != _OPENING:
        # Only files of releases without digests lack the format's name.
        if _FORMAT_KEY.encode() in data[: _LENGTH_BYTES + header_bytes]:
            raise damaged(path, "its header differs from the one that was written")
        return False
    digest = hashlib.sha256(data[:_DIGEST_AT] + _NO_DIGEST)
    digest.update(memoryview(data)[_DIGEST_END:])
    if data[_DIGEST_AT:_DIGEST_END] != digest.hexdigest().encode():
        raise damaged(path, "its bytes differ from those that were written (SHA-256 mismatch)")
    return True


def _split(data: bytes) -> tuple[dict[str, dict[str, object]], memoryview]:
    """Returns the header of a safetensors file and the bytes of its tensors. Raises `ValueError`."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    end = _LENGTH_BYTES + length
    if end > len(data):
        raise ValueError(f"a header of {length} bytes in a file of {len(data)}")
    return json.loads(data[_LENGTH_BYTES:end]), memoryview(data)[end:]
