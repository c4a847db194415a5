"""Checkpoint files as bytes: a safetensors file whose own metadata holds a format number and a SHA-256 of the file.

The digest is the first entry of the header, at the same place in every file, so that it is verified before anything
is parsed. It covers all bytes of the file, with zeros in the place of its own 64 digits. A trailer would have been
simpler, but safetensors refuses files with bytes after the last tensor, and other tools are to open these files.

Files of releases before format 2 have no digest: they are read, and reported as not verified.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ConfigurationError, DamagedFile

FORMAT = 2
"""Of the files that are written. Format 2 is read, and files without a format, of releases before; no others."""

_FORMAT_KEY = "penstock.format"
_LENGTH_BYTES = 8
_OPENING = b'{"__metadata__":{"penstock.sha256":"'
_NO_DIGEST = b"0" * hashlib.sha256().digest_size * 2
_DIGEST_AT = _LENGTH_BYTES + len(_OPENING)
_DIGEST_END = _DIGEST_AT + len(_NO_DIGEST)
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """A checkpoint as it was read.

    Attributes:
        path: Where it was read.
        data: All bytes, a safetensors file.
        metadata: The strings in its header, without digest and format.
        verified: Whether the bytes are those that were written; False: the file is of a release without digests.
    """

    path: Path
    data: bytes
    metadata: Mapping[str, str]
    verified: bool


def sealed(data: bytes, metadata: Mapping[str, str] | None = None) -> bytes:
    """A safetensors file with its format and digest, and with these entries laid over its metadata."""
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

    Raises:
        DamagedFile: The file can't be read, is cut short, or a bit of it differs from what was written.
        ConfigurationError: There is no such file, or it is of a newer release.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ConfigurationError(f"there is no checkpoint {path}; name a run's folder or a .safetensors file") from None
    except OSError as error:
        raise damaged(path, f"it can't be read: {error.strerror or error}") from None
    verified = _verify(path, data)
    try:
        header, _ = _split(data)
        metadata = {name: str(text) for name, text in header["__metadata__"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise damaged(path, "it does not begin as a safetensors file of Penstock does") from None
    if verified and metadata[_FORMAT_KEY] != str(FORMAT):
        raise ConfigurationError(
            f"the checkpoint {path} has format {metadata[_FORMAT_KEY]}, and this release reads format {FORMAT} and"
            " older ones; use the release that wrote it"
        )
    return CheckpointFile(path, data, metadata, verified)


def damaged(path: Path, what: str) -> DamagedFile:
    """The one error for a checkpoint that can't be used; it names the file and what to use instead."""
    others = sorted(other for other in path.parent.glob("*.safetensors") if other != path)
    instead = f"use another checkpoint, such as {others[-1]}" if others else "restore it from a backup"
    return DamagedFile(f"the checkpoint {path} is damaged: {what}", instead)


def _verify(path: Path, data: bytes) -> bool:
    """Whether the file has a digest, and it is right. Raises `DamagedFile` if it is wrong."""
    header_bytes = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if data[_LENGTH_BYTES:_DIGEST_AT] != _OPENING:
        # The format's name is missing in the files of releases without digests, and there alone.
        if _FORMAT_KEY.encode() in data[: _LENGTH_BYTES + header_bytes]:
            raise damaged(path, "its header is not the one that was written")
        return False
    digest = hashlib.sha256(data[:_DIGEST_AT] + _NO_DIGEST)
    digest.update(memoryview(data)[_DIGEST_END:])
    if data[_DIGEST_AT:_DIGEST_END] != digest.hexdigest().encode():
        raise damaged(path, "its bytes are not those that were written (their SHA-256 differs)")
    return True


def _split(data: bytes) -> tuple[dict[str, dict[str, object]], memoryview]:
    """The header of a safetensors file, and the bytes of its tensors. Raises `ValueError`."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    end = _LENGTH_BYTES + length
    if end > len(data):
        raise ValueError(f"a header of {length} bytes in a file of {len(data)}")
    return json.loads(data[_LENGTH_BYTES:end]), memoryview(data)[end:]
