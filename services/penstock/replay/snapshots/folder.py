"""A folder of snapshots of one store: their files, manifests and removal.

Each snapshot is a folder named after it, with chunk files (`chunk_files`), the headers of its segments, the watermarks
and session record, the learner's checkpoint at the same version, and a manifest. It is written under a temporary name
and renamed when it is complete, so a folder without a manifest is not a snapshot. Files never change, and snapshots
share them by hard links.

It refuses invalid names, and manifests of another format.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigurationError, InvalidSegment, Overloaded
from penstock.machine.files import make_folder, sync_folder, write_json
from penstock.machine.system_errors import in_words
from penstock.replay.store.description import describe_schema, schema_of
from penstock.replay.store.layout import HEADER
from penstock.types.block import Schema
from penstock.types.snapshots import Snapshot

FORMAT = 4
MANIFEST_FILE, HEADERS_FILE, RECORDS_FILE = "manifest.json", "headers.bin", "records.bin"
POLICY_FILE = "policy.safetensors"

_UNFINISHED = ".unfinished-"
_SUMMARY = [field.name for field in fields(Snapshot) if field.name not in ("name", "folder")]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Chunk file: the first key of its range, and the number of rows in the file."""

    first_key: int
    rows: int

    @property
    def file(self) -> str:
        """File name in the snapshot's folder."""
        return f"{self.first_key:020}.chunk"


@dataclass(frozen=True, slots=True)
class Manifest:
    """Contents of a snapshot.

    Attributes:
        snapshot: Summary of the snapshot.
        number: Sequence number of the snapshot in its folder, so that their order does not depend on a clock.
        schema: Schema of the segments.
        chunk_keys: Number of keys in each chunk's range, which begins at a multiple of it.
        chunks: Chunks in the order of their keys.
        headers_crc, records_crc: CRC-32 of those files. The rows' checksums do not cover all of their contents.
        policy_version: Policy version of the checkpoint.
        policy_sha256: SHA-256 of the checkpoint's file, in hexadecimal digits. All stores of a run's snapshot have the
            same.
    """

    snapshot: Snapshot
    number: int
    schema: Schema
    chunk_keys: int
    chunks: tuple[Chunk, ...]
    headers_crc: int
    records_crc: int
    policy_version: int
    policy_sha256: str


def check_name(name: str) -> str:
    """Returns the name if it is valid for a snapshot. Raises `InvalidSegment` otherwise."""
    if not _NAME.fullmatch(name):
        raise InvalidSegment(
            f"a snapshot can't be called {name!r}: names have up to 100 letters, digits and . _ - and begin with a"
            " letter or digit"
        )
    return name


class SnapshotFolder:
    """Snapshots in one folder. Any thread may call any method, but those that change the folder need `locked`."""

    def __init__(self, root: Path) -> None:
        """Stores the path. The folder is created for the first snapshot."""
        self.root = root

    def path(self, name: str) -> Path:
        """Returns the path for a snapshot of this name. Raises `InvalidSegment` if the name is invalid."""
        return self.root / check_name(name)

    def unfinished(self, name: str) -> Path:
        """Returns the temporary path for a snapshot of this name."""
        return self.root / f"{_UNFINISHED}{check_name(name)}"

    def complete(self) -> list[Manifest]:
        """Returns the manifests of all readable snapshots, oldest first."""
        found = []
        for path in self.root.glob(f"*/{MANIFEST_FILE}"):
            if _NAME.fullmatch(path.parent.name):
                try:
                    found.append(self.read(path.parent.name))
                except ConfigurationError:
                    # Snapshots of another version of Penstock and damaged ones are neither used nor removed.
                    continue
        return sorted(found, key=lambda manifest: manifest.number)

    def read(self, name: str) -> Manifest:
        """Returns the manifest of a snapshot. If there is none, raises `ConfigurationError` with the existing names."""
        path = self.path(name) / MANIFEST_FILE
        try:
            return _parse(json.loads(path.read_text()), name, path.parent)
        except FileNotFoundError:
            names = ", ".join(manifest.snapshot.name for manifest in self.complete()) or "none"
            raise ConfigurationError(f"no snapshot {name!r} in {self.root}; there are: {names}") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(f"{path} does not describe a snapshot ({error}); choose another") from None

    def headers(self, manifest: Manifest) -> NDArray[Any]:
        """Returns the headers <HEADER>[segments] by ascending key. Raises `ConfigurationError` if they are damaged."""
        return np.frombuffer(self._read(manifest, HEADERS_FILE, zlib.crc32, manifest.headers_crc), HEADER)

    def records(self, manifest: Manifest) -> NDArray[np.uint8]:
        """Returns the records <uint8>[RECORDS_BYTES]. Raises `ConfigurationError` if they are damaged."""
        return np.frombuffer(self._read(manifest, RECORDS_FILE, zlib.crc32, manifest.records_crc), np.uint8)

    def policy(self, manifest: Manifest) -> bytes:
        """Returns the learner's checkpoint in a snapshot. Raises `ConfigurationError` if it is damaged."""
        return self._read(manifest, POLICY_FILE, _sha256, manifest.policy_sha256)

    def _read(self, manifest: Manifest, file: str, digest: Callable[[bytes], object], expected: object) -> bytes:
        path = self.path(manifest.snapshot.name) / file
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ConfigurationError(f"can't read {path}: {in_words(error, path, 'choose another snapshot')}") from None
        if digest(content) != expected:
            raise ConfigurationError(f"{path} is damaged; choose another snapshot")
        return content

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Creates the folder and locks it against other processes. Raises `Overloaded` if it is locked."""
        make_folder(self.root)
        descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Overloaded(
                    f"another process makes a snapshot in {self.root}; give each service a replay.snapshot_folder of"
                    " its own"
                ) from None
            yield
        finally:
            os.close(descriptor)

    def publish(self, manifest: Manifest) -> None:
        """Writes the manifest and renames the snapshot to its final name. Raises `OSError`."""
        unfinished = self.unfinished(manifest.snapshot.name)
        content = _describe(manifest)
        write_json(unfinished / MANIFEST_FILE, {**content, "sha256": _digest(content)})
        unfinished.rename(self.path(manifest.snapshot.name))
        sync_folder(self.root)

    def remove(self, name: str) -> None:
        """Removes a snapshot. If killed meanwhile, it leaves an unfinished one. Raises `OSError`."""
        self.path(name).rename(self.unfinished(name))
        shutil.rmtree(self.unfinished(name))

    def sweep(self) -> None:
        """Removes unfinished snapshots of earlier processes. Raises `OSError`."""
        for path in self.root.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(path)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _digest(content: dict[str, Any]) -> str:
    """Returns the SHA-256 of a manifest without its digest, in hexadecimal digits."""
    return _sha256(json.dumps(content, sort_keys=True).encode())


def _describe(manifest: Manifest) -> dict[str, object]:
    return {
        "format": FORMAT,
        "number": manifest.number,
        **{field: getattr(manifest.snapshot, field) for field in _SUMMARY},
        **describe_schema(manifest.schema),
        "headers_crc32": manifest.headers_crc,
        "records_crc32": manifest.records_crc,
        "policy_version": manifest.policy_version,
        "policy_sha256": manifest.policy_sha256,
        "chunk_keys": manifest.chunk_keys,
        "chunks": [{"file": c.file, "first_key": c.first_key, "rows": c.rows} for c in manifest.chunks],
    }


def _parse(content: dict[str, Any], name: str, folder: Path) -> Manifest:
    if content["format"] != FORMAT:
        raise ValueError(f"it has format {content['format']}, and this version reads {FORMAT}")
    if content.pop("sha256") != _digest(content):
        raise ValueError("it is damaged: it is not what was written")
    return Manifest(
        # Name and folder are taken from the path, so that snapshots may be moved and copied.
        snapshot=Snapshot(name, str(folder), **{field: content[field] for field in _SUMMARY}),
        number=content["number"],
        schema=schema_of(content, folder / MANIFEST_FILE),
        chunk_keys=content["chunk_keys"],
        chunks=tuple(Chunk(chunk["first_key"], chunk["rows"]) for chunk in content["chunks"]),
        headers_crc=content["headers_crc32"],
        records_crc=content["records_crc32"],
        policy_version=content["policy_version"],
        policy_sha256=content["policy_sha256"],
    )
