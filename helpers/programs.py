"""Programs of others, faked: what a command finds on its path."""

from pathlib import Path


def program(folder: Path, name: str, script: str) -> None:
    """An executable of this name that runs a shell script."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
