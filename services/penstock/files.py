"""Small files, written so that a reader, or a crash, meets all of the new content or all of the old."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces a file, lastingly. Raises `OSError`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


@contextlib.contextmanager
def restored_after(error: type[Exception], *paths: Path) -> Iterator[None]:
    """Puts files back as they were, or were not, if this error passes through. Raises `OSError`."""
    before = [path.read_bytes() if path.exists() else None for path in paths]
    try:
        yield
    except error:
        for path, data in zip(paths, before, strict=True):
            if data is None:
                path.unlink(missing_ok=True)
            else:
                write_atomically(path, data)
        raise


def write_json(path: Path, value: object) -> None:
    """Replaces a small JSON file, lastingly. Raises `OSError`."""
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder last. Raises `OSError`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
